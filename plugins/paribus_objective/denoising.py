"""Denoising: reconstruct a corrupted text."""

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
    Role,
    Shape,
    SpecError,
    Stream,
    TrainingExamples,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import noise, special_tokens, vocabulary_head, z_loss
from paribus_objective.encoder_decoder import Side, Sides
from paribus_objective.masking import Array


@final
class Denoising(Objective, WeightConverter):
    """Denoising: the encoder reads a text with up to five kinds of noise, the decoder writes the original. "BART"
    (Lewis et al. 2020).

    The noise, in this order and each at its own rate: sentences are permuted, texts are rotated, spans are replaced by
    one mask each, tokens are masked, and tokens are deleted. Special tokens keep their positions, and nothing moves
    across one. Both sides end in eos, and the corrupted one is padded.
    (B, n) -> encoder (B, n + 1), body and labels (B, n + 1).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "past",
        "parts": ["encoder"],
        "segments": False,
        "adds_padding": True,
        "needs": ["mask", "eos", "sentences"],
        "token_terms": ["loss"],
    }
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES
    logits = vocabulary_head.logits
    scored_hidden = vocabulary_head.body_hidden
    forward = z_loss.forward
    cost = vocabulary_head.cost
    head_positions = vocabulary_head.head_positions
    metrics = vocabulary_head.metrics
    update_metrics = vocabulary_head.update_metrics
    convert_weights = vocabulary_head.convert_weights

    def __init__(  # six options and three injected values
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        infill: noise.Infilling = noise.Infilling(),
        mask: Annotated[float, "share of the text's tokens that are masked independently", Range(0, 1)] = 0.0,
        delete: Annotated[float, "share of the text's tokens that are deleted", Range(0, 1)] = 0.0,
        permute: Annotated[float, "share of the text's sentences that are permuted (BART: 1)", Range(0, 1)] = 1.0,
        rotate: Annotated[float, "share of texts that are rotated to start with a random token", Range(0, 1)] = 0.0,
        bias: Annotated[bool, "add a bias for each entry of the vocabulary"] = False,
        z: z_loss.ZWeight = 0.0,
    ) -> None:
        super().__init__()
        self.z, self.terms = z, z_loss.terms(z)  # type: ignore[misc]  # the class has the terms without a z-loss
        total = infill.rate + mask + delete
        if total > 1 + 1e-9:
            raise ValueError(f"expected `infill.rate` + `mask` + `delete` ≤ 1, got {total:g}")
        if shape.length < 2:
            message = f"denoise needs positions for a token and eos; got a length of {shape.length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=message, valid="≥ 2"))
        self.classes = shape.vocabulary
        self.mask_rate, self.delete_rate, self.permute_rate, self.rotate_rate = mask, delete, permute, rotate
        self.infilling = noise.SpanInfilling(infill)
        self.sides = Sides(vocabulary, "denoise")
        self.mask_token = special_tokens.require(vocabulary, "mask", "denoise")
        self.reserved = special_tokens.reserved_ids(vocabulary)
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=bias)

    def text_length(self, length: int) -> int:
        return length - 1

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        tokens: Array = body.tokens.numpy()
        positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        return self.sides.example(streams, self.add_noise(body, draw), Side(tokens, positions))

    def add_noise(self, body: Stream, draw: Draw) -> Side:
        """Return the corrupted text, which the encoder reads."""
        tokens: Array = body.tokens.numpy().copy()
        non_text = special_tokens.non_text(body, self.reserved)
        stretch = noise.stretches(non_text, body)
        order = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        if self.permute_rate:
            order = noise.permute_sentences(body, non_text, stretch, self.permute_rate, draw)
        if self.rotate_rate:
            order = np.take_along_axis(order, noise.rotate_stretches(stretch, self.rotate_rate, draw), axis=1)
        # A special token keeps its position, so `non_text` and `stretch` hold after the permutation as well.
        deleted, masks = self.infilling(non_text, stretch, draw)
        text_length = (~non_text).sum(axis=1)
        if self.mask_rate:
            masked = noise.random_tokens(~non_text & ~deleted, text_length, self.mask_rate, "masked", draw)
            ordered = np.where(masked, self.mask_token, np.take_along_axis(tokens, order, 1))
            np.put_along_axis(tokens, order, ordered, 1)
            non_text = non_text | masked
        if self.delete_rate:
            available = ~non_text & ~deleted
            deleted = deleted | noise.random_tokens(available, text_length, self.delete_rate, "deleted", draw)
        return noise.apply_holes(tokens, order, noise.Holes(deleted, masks), self.mask_token)

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """Reconstruct a text with masks or errors."""
        return self.sides.prompt(ids)
