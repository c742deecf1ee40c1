"""The public way to a text: `paribus.generate(model, prompt)`."""

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
from paribus.train.model import Model


class GeneratedText(NamedTuple):
    """What was written behind one prompt."""

    text: str | None  # None where the model has no tokenizer, and was asked by ids
    ids: tuple[int, ...]  # without the token that stopped it
    score: float  # its logarithmic probability in nats, the stop included; in a beam, over the length penalty
    ended: bool  # by the stop token, and not as there was no more room


class Generation(NamedTuple):
    """What a model wrote: for each prompt as many lines as were asked for, and in a beam the best one first."""

    results: tuple[tuple[GeneratedText, ...], ...]
    prompts: tuple[tuple[int, ...], ...]  # as ids
    cache_bytes: int  # the most that keys, values and states took at once; 0: every step read all rows anew

    @property
    def texts(self) -> tuple[str, ...]:
        """The first text of each prompt."""
        return tuple(lines[0].text or "" for lines in self.results)


def generate(  # noqa: PLR0913  # all that may be said of a text, and each by its name
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
    tell: OnProgress = lambda done, most: None,
    registry: Registry | None = None,
) -> Generation:
    """What a trained model writes behind a prompt, or behind each of several: texts, or lists of ids.

    `paribus.generate(model, "The import statement", temperature=0.8, top_p=0.9).texts`. Without a temperature the most
    probable token is taken each time, and with a `beam` the most probable of so many hypotheses goes on. Whatever is
    drawn depends on `seed`, on which prompt it is and on which token, and not on `batch`, how many are read at once.
    """
    cuts = (top_k, top_p, min_p)
    manner = GenerationConfig(tokens, temperature, *cuts, repetition_penalty, beam, length_penalty, n, seed)
    if batch < 1:
        raise SpecError(Problem(code="out-of-range", path="batch", message=f"it is {batch}", valid="≥ 1"))
    model = resolve_model(model, registry)
    ids = encode_prompts(model, as_prompts(prompt), registry)
    found = asked(model, ids, manner, generation_target(model, language, source_language, label))
    lines, kept = generate_hypotheses(model, found, manner, batch=batch, cache=cache, tell=tell)
    decode = None if model.text is None else model.text.decode
    whole = tuple(
        tuple(GeneratedText(None if decode is None else decode(line.ids), *line) for line in lines[number])
        for number in range(len(found.prompts))
    )
    return Generation(whole, tuple(tuple(row) for row in ids), kept)


def generate_hypotheses(
    model: Model,
    found: GenerationRequest,
    manner: GenerationConfig,
    *,
    batch: int = 32,
    cache: bool = True,
    tell: OnProgress = lambda done, most: None,
) -> tuple[dict[int, list[Hypothesis]], int]:
    """By the number of each prompt what is written behind it, and the most bytes that states took on the way."""
    lines: dict[int, list[Hypothesis]] = {}
    kept = 0
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for numbers, of in _batches(found, batch):
                prompts = [found.prompts[number] for number in numbers]
                most = [found.most[number] for number in numbers]
                reader = Reader(found.voice, prompts, most, cached=cache and found.voice.steps)
                told = _told(tell, of)
                made = (
                    beam_search(reader, manner, told)
                    if manner.beam > 1
                    else sample_texts(reader, manner, numbers, told)
                )
                lines.update(zip(numbers, made, strict=True))
                kept = max(kept, reader.most_bytes)
    finally:
        model.train(training)
    return lines, kept


def _batches(found: GenerationRequest, batch: int) -> Iterator[tuple[list[int], Progress]]:
    """The numbers of the prompts that are read at once, and what part of the whole they are: as they come, or, for a
    model that cannot take a row for none, those that are as long."""
    alike: dict[tuple[int, int], list[int]] = {}
    for number, prompt in enumerate(found.prompts):
        size = (0, 0) if found.voice.pads else (len(prompt.body), len(prompt.source or ()))
        alike.setdefault(size, []).append(number)
    parts = [same[at : at + batch] for same in alike.values() for at in range(0, len(same), batch)]
    sizes = [max(found.most[number] for number in part) for part in parts]
    for place, part in enumerate(parts):
        yield part, Progress(sum(sizes[:place]), sum(sizes))


class Progress(NamedTuple):
    """How many steps came before those of some prompts, and how many there may be in all."""

    before: int
    all: int


def _told(tell: OnProgress, of: Progress) -> OnProgress:
    return lambda done, most: tell(of.before + done, of.all)
