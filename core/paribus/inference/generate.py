"""Text generation: `paribus.generate(model, prompt)`, and translation of validation pairs for measures such as BLEU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from paribus.datamodule.data import Data
from paribus.datamodule.token_store import EncodedCorpus
from paribus.errors import DataError, Problem, SpecError
from paribus.inference.decoder import Reader
from paribus.inference.generation_config import GenerationConfig, check_order_options
from paribus.inference.generation_strategies import Hypothesis, OnProgress, beam_search, sample_texts
from paribus.inference.prompts import (
    GenerationRequest,
    TextOrIds,
    as_prompts,
    build_prompts,
    encode_prompts,
    generation_request,
    generation_target,
    resolve_model,
)
from paribus.inference.unmasking import fill_masks
from paribus.models.lightning_module import Model
from paribus.registry import Registry, installed
from paribus.slots.corpus import Tokens
from paribus.slots.measure import GeneratedPair
from paribus.slots.objective import GenerationTarget
from paribus.train.measures import MeasureResults, measure_runner


class GeneratedText(NamedTuple):
    """Generated continuation of a prompt."""

    text: str | None  # None if the model has no tokenizer
    ids: tuple[int, ...]  # without the stop token
    # Log-probability in nats, with the stop token; in beam search, divided by the length penalty. Where masks are
    # filled in any order, that of each token when it was written: no likelihood of the text.
    score: float
    ended: bool  # whether the stop token ended it, not the length limit


class Generation(NamedTuple):
    """Generated texts of each prompt; in beam search, the best first."""

    results: tuple[tuple[GeneratedText, ...], ...]
    prompts: tuple[tuple[int, ...], ...]  # as ids
    cache_bytes: int  # peak size of the cache; 0: without a cache

    @property
    def texts(self) -> tuple[str, ...]:
        """First text of each prompt."""
        return tuple(lines[0].text or "" for lines in self.results)


def generate(  # noqa: PLR0913  # one keyword for each option
    model: Model | str | Path,
    prompt: TextOrIds | Sequence[TextOrIds],
    *,
    tokens: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    beam: int = 1,
    length_penalty: float = 0.0,
    n: int = 1,
    seed: int = 0,
    steps: int | None = None,
    remasking: str | None = None,
    language: str | None = None,
    source_language: str | None = None,
    label: str | None = None,
    batch: int = 32,
    cache: bool = True,
    on_progress: OnProgress = lambda done, limit: None,
    registry: Registry | None = None,
) -> Generation:
    """Generate text after one prompt or several, which are texts or lists of ids.

    `paribus.generate(model, "The import statement", temperature=0.8, top_p=0.9).texts`. Without a temperature
    decoding is greedy, or beam search with `beam` > 1. Samples depend on `seed`, on the index of the prompt and on the
    position, not on the `batch` size. A model of masked diffusion fills `tokens` masks in `steps`.
    """
    cutoffs = (top_k, top_p, min_p)
    config = GenerationConfig(
        tokens, temperature, *cutoffs, repetition_penalty, beam, length_penalty, n, seed, steps, remasking
    )
    if batch < 1:
        raise SpecError(
            Problem(code="out-of-range", path="batch", message=f"expected at least 1, got {batch}", valid="≥ 1")
        )
    model = resolve_model(model, registry)
    ids = encode_prompts(model, as_prompts(prompt), registry)
    request = generation_request(model, ids, config, generation_target(model, language, source_language, label))
    check_order_options(config, fills_masks=request.fills_masks)
    lines, cache_bytes = generate_hypotheses(model, request, config, batch=batch, cache=cache, on_progress=on_progress)
    decode = None if model.text is None else model.text.decode
    results = tuple(
        tuple(GeneratedText(None if decode is None else decode(line.ids), *line) for line in lines[number])
        for number in range(len(request.prompts))
    )
    return Generation(results, tuple(tuple(row) for row in ids), cache_bytes)


def generate_hypotheses(
    model: Model,
    request: GenerationRequest,
    config: GenerationConfig,
    *,
    batch: int = 32,
    cache: bool = True,
    on_progress: OnProgress = lambda done, total: None,
) -> tuple[dict[int, list[Hypothesis]], int]:
    """Return the hypotheses of each prompt, by its index, and the peak size of the cache in bytes."""
    lines: dict[int, list[Hypothesis]] = {}
    cache_bytes = 0
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for numbers, progress in _batches(request, batch):
                prompts = [request.prompts[number] for number in numbers]
                limits = [request.limits[number] for number in numbers]
                report = _batch_progress(on_progress, progress)
                if request.fills_masks:
                    hypotheses = fill_masks(request.decoder, prompts, limits[0], config, numbers, report)
                    lines.update(zip(numbers, hypotheses, strict=True))
                    continue
                reader = Reader(request.decoder, prompts, limits, cached=cache and request.decoder.has_cache)
                hypotheses = (
                    beam_search(reader, config, report)
                    if config.beam > 1
                    else sample_texts(reader, config, numbers, report)
                )
                lines.update(zip(numbers, hypotheses, strict=True))
                cache_bytes = max(cache_bytes, reader.peak_bytes)
    finally:
        model.train(training)
    return lines, cache_bytes


def _batches(request: GenerationRequest, batch: int) -> Iterator[tuple[list[int], Progress]]:
    """Yield batches of prompts, in order, or of equal length if padding cannot be masked, with their progress.

    Where masks are filled, the texts of a batch have the same length and the same steps.
    """
    groups: dict[tuple[int, int, int], list[int]] = {}
    for number, prompt in enumerate(request.prompts):
        size = (0, 0, 0) if request.decoder.can_mask_padding else (len(prompt.body), len(prompt.source or ()), 0)
        if request.fills_masks:
            size = (len(prompt.body), 0, request.limits[number])
        groups.setdefault(size, []).append(number)
    parts = [group[start : start + batch] for group in groups.values() for start in range(0, len(group), batch)]
    sizes = [max(request.limits[number] for number in part) for part in parts]
    for index, part in enumerate(parts):
        yield part, Progress(sum(sizes[:index]), sum(sizes))


class Progress(NamedTuple):
    """Number of steps of previous batches, and of all."""

    done: int
    total: int


def _batch_progress(on_progress: OnProgress, progress: Progress) -> OnProgress:
    return lambda done, _: on_progress(progress.done + done, progress.total)


class _Pair(NamedTuple):
    """Both sides of a pair as ids, with their languages."""

    source: list[int]
    target: list[int]
    languages: GenerationTarget


def measure(model: Model, data: Data, *, registry: Registry | None = None) -> MeasureResults:
    """Evaluate the measures of a model's spec: `metrics`, and in `unmeasured` the reason for each missing number.

    `paribus.measure(paribus.load(trial), paribus.data(spec))`
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
        raise DataError(Problem(code="missing-pairs", path="corpus", message=message, valid="a corpus of pairs"))
    pairs = _fitting(model, text.val, text.val.targets, examples)
    outputs: dict[int, Sequence[int]] = {}
    for languages, numbers in _by_languages(pairs).items():  # one batch for each pair of languages
        request = generation_request(model, [pairs[number].source for number in numbers], config, languages)
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
