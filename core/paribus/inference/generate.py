"""Text generation: `paribus.generate(model, prompt)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from paribus.errors import Problem, SpecError
from paribus.inference.decoder import Reader
from paribus.inference.generation_config import GenerationConfig
from paribus.inference.prompts import (
    GenerationRequest,
    Given,
    as_prompts,
    asked,
    encode_prompts,
    generation_target,
    resolve_model,
)
from paribus.inference.search import Hypothesis, OnProgress, beam_search, sample_texts
from paribus.registry import Registry
from paribus.train.lightning_module import Model


class GeneratedText(NamedTuple):
    """Generated continuation of a prompt."""

    text: str | None  # None if the model has no tokenizer
    ids: tuple[int, ...]  # without the stop token
    score: float  # log-probability in nats, with the stop token; in beam search, divided by the length penalty
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
    prompt: Given | Sequence[Given],
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
    position, not on the `batch` size.
    """
    cutoffs = (top_k, top_p, min_p)
    config = GenerationConfig(tokens, temperature, *cutoffs, repetition_penalty, beam, length_penalty, n, seed)
    if batch < 1:
        raise SpecError(
            Problem(code="out-of-range", path="batch", message=f"expected at least 1, got {batch}", valid="≥ 1")
        )
    model = resolve_model(model, registry)
    ids = encode_prompts(model, as_prompts(prompt), registry)
    request = asked(model, ids, config, generation_target(model, language, source_language, label))
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
    on_progress: OnProgress = lambda done, limits: None,
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
                limits = [request.most[number] for number in numbers]
                reader = Reader(request.voice, prompts, limits, cached=cache and request.voice.steps)
                report = _told(on_progress, progress)
                hypotheses = (
                    beam_search(reader, config, report)
                    if config.beam > 1
                    else sample_texts(reader, config, numbers, report)
                )
                lines.update(zip(numbers, hypotheses, strict=True))
                cache_bytes = max(cache_bytes, reader.most_bytes)
    finally:
        model.train(training)
    return lines, cache_bytes


def _batches(request: GenerationRequest, batch: int) -> Iterator[tuple[list[int], Progress]]:
    """Yield batches of prompts, in order, or of equal length if padding cannot be masked, with their progress."""
    groups: dict[tuple[int, int], list[int]] = {}
    for number, prompt in enumerate(request.prompts):
        size = (0, 0) if request.voice.pads else (len(prompt.body), len(prompt.source or ()))
        groups.setdefault(size, []).append(number)
    parts = [group[start : start + batch] for group in groups.values() for start in range(0, len(group), batch)]
    sizes = [max(request.most[number] for number in part) for part in parts]
    for index, part in enumerate(parts):
        yield part, Progress(sum(sizes[:index]), sum(sizes))


class Progress(NamedTuple):
    """Number of steps of previous batches, and of all."""

    before: int
    all: int


def _told(on_progress: OnProgress, progress: Progress) -> OnProgress:
    return lambda done, limit: on_progress(progress.before + done, progress.all)
