"""Span corruption: write the spans that were removed from a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import numpy as np
from torch import Tensor

from paribus import (
    Draw,
    GenerationTarget,
    Norms,
    Objective,
    ObjectiveTraits,
    Problem,
    Prompt,
    Range,
    Shape,
    SpecError,
    Stream,
    TrainingExamples,
    Vocabulary,
)
from paribus_objective import vocabulary_head, z_loss
from paribus_objective.encoder_decoder import Sides
from paribus_objective.spans import Array, corrupt_spans, noise_size, side_lengths

MINIMUM_LENGTH = 3  # a token, a sentinel and eos


@final
class SpanCorruption(Objective):
    """Span corruption: the encoder reads a text with a sentinel for each removed span, the decoder writes each sentinel
    and its span. "Exploring the Limits of Transfer Learning" (Raffel et al. 2020).

    As in T5's own code, both sides end in eos, without a closing sentinel. The decoder reads its labels shifted by one,
    after pad (bos if the tokenizer has no pad). A text is longer than its two sides: 568 tokens for a length of 512.
    (B, n) -> encoder (B, S), body and labels (B, T); S and T depend on n only.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "past",
        "parts": ["encoder"],
        "segments": False,
        "needs": ["sentinels", "eos"],
        "token_terms": ["loss"],
    }
    logits = vocabulary_head.logits
    scored_hidden = vocabulary_head.body_hidden
    forward = z_loss.forward
    cost = vocabulary_head.cost
    metrics = vocabulary_head.metrics
    update_metrics = vocabulary_head.update_metrics

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of the text's tokens that are removed", Range(above=0, below=1)] = 0.15,
        mean_span: Annotated[float, "mean length of a span", Range(1)] = 3.0,
        z: z_loss.ZWeight = 0.0,
    ) -> None:
        super().__init__()
        self.z, self.terms = z, z_loss.terms(z)  # type: ignore[misc]  # the class has the terms without a z-loss
        self.classes = shape.vocabulary
        self.rate, self.mean_span = rate, mean_span
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=False)
        self.sides = Sides(vocabulary, "span-corruption")
        self.sentinels = np.array(vocabulary.sentinels, dtype=np.int64)
        self._check(shape.length)

    def text_length(self, length: int) -> int:
        """Return the length of the longest text both sides of which fit `length`."""
        text_length = 2
        while max(self._side_lengths(text_length + 1)) <= length:
            text_length += 1
        return text_length

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        tokens: Array = streams["body"].tokens.numpy()
        size = noise_size(tokens.shape[1], self.rate, self.mean_span)
        return self.sides.example(streams, *corrupt_spans(tokens, size, self.sentinels, draw))

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """Write the spans of a text with sentinels."""
        return self.sides.prompt(ids)

    def head_positions(self, length: int) -> int:
        return self._side_lengths(self.text_length(length))[1]

    def _side_lengths(self, text_length: int) -> tuple[int, int]:
        return side_lengths(text_length, noise_size(text_length, self.rate, self.mean_span))

    def _check(self, length: int) -> None:
        if length < MINIMUM_LENGTH:
            message = f"span-corruption needs positions for a token, a sentinel and eos; got a length of {length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=message, valid=f"≥ {MINIMUM_LENGTH}"))
        text_length = self.text_length(length)
        needed = noise_size(text_length, self.rate, self.mean_span).spans
        if needed > len(self.sentinels):
            message = (
                f"span-corruption needs {needed} sentinels, one per span (rate {self.rate:g}, mean_span "
                f"{self.mean_span:g}, {text_length} tokens); the tokenizer has {len(self.sentinels)}"
            )
            raise SpecError(Problem(code="too-few-sentinels", path="tokenizer", message=message, valid=f"≥ {needed}"))
