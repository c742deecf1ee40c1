"""The other side of pairs, as a model writes it: what measures are told of a model that writes."""

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
from paribus.train.measures import MeasureResults, measure_runner
from paribus.train.model import Model
from paribus.train.token_store import EncodedCorpus


class _Pair(NamedTuple):
    """Both sides as ids, and which languages they are of, where a corpus tells them apart."""

    source: list[int]
    target: list[int]
    languages: GenerationTarget


def ask(model: Model, data: Data, *, registry: Registry | None = None) -> MeasureResults:
    """What the measures of a model's spec find: `metrics`, and in `unmeasured` why there is no number.

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
    """The first pairs of the validation split, with what a model writes for their sources; it is a `Writer`.

    A pair for whose two sides the model has no room is left out, as no model of its length could write it. Targets are
    what the tokenizer makes of them and back: where it knows all letters, their own text.
    """
    manner = GenerationConfig(tokens=tokens, beam=beam, length_penalty=length_penalty)
    if text.val.targets is None:
        what = "the corpus has no pairs, so there is nothing that could be translated"
        raise DataError(Problem(code="no-pairs", path="corpus", message=what, valid="a corpus of pairs"))
    pairs = _fitting(model, text.val, text.val.targets, examples)
    written: dict[int, Sequence[int]] = {}
    for languages, numbers in _by_languages(pairs).items():  # a model is told them once for all that it reads
        found = asked(model, [pairs[number].source for number in numbers], manner, languages)
        lines, _ = generate_hypotheses(model, found, manner)
        written |= {number: lines[place][0].ids for place, number in enumerate(numbers)}
    shown = text.tokenizer.decode
    return [GeneratedPair(shown(pair.source), shown(pair.target), shown(written[at])) for at, pair in enumerate(pairs)]


def _fitting(model: Model, sources: Tokens, targets: Tokens, most: int) -> list[_Pair]:
    """The first pairs of which the model can read one side and has room for the other."""
    length = int(model.spec["dims"]["length"])
    found: list[_Pair] = []
    for pair in _pairs(sources, targets):
        if len(found) == most:
            break
        _, (prompt,) = build_prompts(model, [pair.source], pair.languages)
        if len(prompt.source or ()) <= length and len(prompt.body) + len(pair.target) <= length:
            found.append(pair)
    return found


def _pairs(sources: Tokens, targets: Tokens) -> Iterator[_Pair]:
    for document in range(len(sources.documents) - 1):
        of, to = (None if it.languages is None else int(it.languages[document]) for it in (sources, targets))
        yield _Pair(_ids(sources, document), _ids(targets, document), GenerationTarget(to, of))


def _ids(tokens: Tokens, document: int) -> list[int]:
    first, last = (int(tokens.sentences[tokens.documents[at]]) for at in (document, document + 1))
    return [int(token) for token in tokens.ids[first:last]]


def _by_languages(pairs: Sequence[_Pair]) -> Mapping[GenerationTarget, list[int]]:
    """The numbers of the pairs from each language to each."""
    found: dict[GenerationTarget, list[int]] = {}
    for number, pair in enumerate(pairs):
        found.setdefault(pair.languages, []).append(number)
    return found
