"""Translation of validation pairs, for measures such as BLEU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from paribus.errors import DataError, Problem
from paribus.inference.generate import generate_hypotheses
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.prompts import asked, build_prompts
from paribus.registry import Registry, installed
from paribus.slots.measure import GeneratedPair
from paribus.slots.objective import GenerationTarget
from paribus.slots.tokens import Tokens
from paribus.train.data import Data
from paribus.train.lightning_module import Model
from paribus.train.measures import MeasureResults, measure_runner
from paribus.train.token_store import EncodedCorpus


class _Pair(NamedTuple):
    """Both sides of a pair as ids, with their languages."""

    source: list[int]
    target: list[int]
    languages: GenerationTarget


def ask(model: Model, data: Data, *, registry: Registry | None = None) -> MeasureResults:
    """Evaluate the measures of a model's spec: `metrics`, and in `unmeasured` the reason for each missing number.

    `paribus.ask(paribus.load(trial), paribus.data(spec))`
    """
    measures = measure_runner(model.spec, registry or installed(), model, data, translate_validation)
    return measures() if measures is not None else MeasureResults({}, {})


def translate_validation(
    model: Model,
    text: EncodedCorpus,
    examples: int,
    *,
    beam: int = 1,
    length_penalty: float = 0.0,
    tokens: int | None = None,
) -> list[GeneratedPair]:
    """Translate the first pairs of the validation split.

    Pairs that exceed the model's sequence length are skipped. Targets are encoded and decoded by the tokenizer.
    """
    config = GenerationConfig(tokens=tokens, beam=beam, length_penalty=length_penalty)
    if text.val.targets is None:
        message = "expected a corpus of pairs"
        raise DataError(Problem(code="no-pairs", path="corpus", message=message, valid="a corpus of pairs"))
    pairs = _fitting(model, text.val, text.val.targets, examples)
    outputs: dict[int, Sequence[int]] = {}
    for languages, numbers in _by_languages(pairs).items():  # one batch for each pair of languages
        request = asked(model, [pairs[number].source for number in numbers], config, languages)
        lines, _ = generate_hypotheses(model, request, config)
        outputs |= {number: lines[index][0].ids for index, number in enumerate(numbers)}
    decode = text.tokenizer.decode
    return [
        GeneratedPair(decode(pair.source), decode(pair.target), decode(outputs[index]))
        for index, pair in enumerate(pairs)
    ]


def _fitting(model: Model, sources: Tokens, targets: Tokens, limit: int) -> list[_Pair]:
    """Return the first pairs that fit the model's sequence length."""
    length = int(model.spec["dims"]["length"])
    fitting: list[_Pair] = []
    for pair in _pairs(sources, targets):
        if len(fitting) == limit:
            break
        _, (prompt,) = build_prompts(model, [pair.source], pair.languages)
        if len(prompt.source or ()) <= length and len(prompt.body) + len(pair.target) <= length:
            fitting.append(pair)
    return fitting


def _pairs(sources: Tokens, targets: Tokens) -> Iterator[_Pair]:
    for document in range(len(sources.documents) - 1):
        source_language, target_language = (
            None if it.languages is None else int(it.languages[document]) for it in (sources, targets)
        )
        yield _Pair(
            _ids(sources, document), _ids(targets, document), GenerationTarget(target_language, source_language)
        )


def _ids(tokens: Tokens, document: int) -> list[int]:
    start, end = (int(tokens.sentences[tokens.documents[index]]) for index in (document, document + 1))
    return [int(token) for token in tokens.ids[start:end]]


def _by_languages(pairs: Sequence[_Pair]) -> Mapping[GenerationTarget, list[int]]:
    """Group the indices of pairs by their languages."""
    numbers: dict[GenerationTarget, list[int]] = {}
    for number, pair in enumerate(pairs):
        numbers.setdefault(pair.languages, []).append(number)
    return numbers
