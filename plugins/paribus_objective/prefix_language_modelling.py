"""Prefix language modelling: bidirectional attention within a prefix, and prediction of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from paribus import (
    IGNORED,
    Draw,
    GenerationTarget,
    Norms,
    Objective,
    ObjectiveTraits,
    Prompt,
    Range,
    Role,
    Shape,
    Stream,
    TrainingExamples,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import vocabulary_head, z_loss
from paribus_objective.causal_language_modelling import shift
from paribus_objective.encoder_decoder import Side, Sides
from paribus_objective.masking import Array
from paribus_objective.noise import stretches


@final
class PrefixLanguageModelling(Objective, WeightConverter):
    """Prefix language modelling: tokens of a prefix attend to each other in both directions, and each position from the
    last of the prefix on predicts the next token. "UniLM" (Dong et al. 2019), "Exploring the Limits of Transfer
    Learning" (Raffel et al. 2020).

    A decoder-only model does so by the `order` of its tokens. With an encoder, the encoder reads the prefix and the
    decoder writes the rest. In a decoder, each document of a packed sequence has its own prefix.
    (B, T + 1) -> tokens (B, T), labels (B, T); for an encoder also (B, T), padded after the prefix.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "past",
        "parts": [],
        "optional_parts": ["encoder"],
        "segments": False,
        "adds_padding": True,
        "sets_order": True,
        "needs": ["eos"],
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

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        prefix: Annotated[
            float | None, "share of a text that is its prefix; null: uniform over all lengths", Range(0, 1)
        ] = None,
        bias: Annotated[bool, "add a bias for each entry of the vocabulary"] = False,
        z: z_loss.ZWeight = 0.0,
    ) -> None:
        super().__init__()
        self.z, self.terms = z, z_loss.terms(z)  # type: ignore[misc]  # the class has the terms without a z-loss
        self.classes = shape.vocabulary
        self.prefix = prefix
        self.sides = Sides(vocabulary, "prefix-lm", split=True)
        self.has_encoder = any(other.stack == "encoder" for other in shape.other_shapes)
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=bias)

    def text_length(self, length: int) -> int:
        return length + 1

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        return self._split(streams, draw) if self.has_encoder else self._order(streams, draw)

    def _order(self, streams: Mapping[str, Stream], draw: Draw) -> TrainingExamples:
        """Form one stream, with an order in which all tokens of a prefix are as late as its last."""
        inputs, labels = shift(streams["body"])
        document = stretches(np.zeros(labels.shape, dtype=bool), inputs)
        label_count = (labels.numpy() != IGNORED).cumsum(axis=1)
        end = document.start + document.length - 1
        count_before = np.take_along_axis(np.pad(label_count, ((0, 0), (1, 0))), document.start, axis=1)
        document_labels = np.take_along_axis(label_count, end, axis=1) - count_before  # (B, T): labels in its document
        fraction = draw.uniform("prefix", labels.shape[1]).double().numpy()
        prefix_length = self._prefix_lengths(document_labels, np.take_along_axis(fraction, document.start, axis=1))
        prefix_end = document.start + prefix_length - 1
        position = np.arange(labels.shape[1])
        order = torch.from_numpy(np.maximum(position, prefix_end))
        labels = labels.masked_fill(torch.from_numpy(position < prefix_end), IGNORED)
        return TrainingExamples({**streams, "body": inputs._replace(order=order, sentences=None)}, {"labels": labels})

    def _split(self, streams: Mapping[str, Stream], draw: Draw) -> TrainingExamples:
        """Form two streams: the prefix for the encoder, and the rest for the decoder."""
        tokens: Array = streams["body"].tokens.numpy()
        text_length = tokens.shape[1]
        fraction = draw.uniform("prefix", 1).double().numpy()
        length = self._prefix_lengths(np.full_like(fraction, text_length - 1, dtype=np.int64), fraction)
        position = np.broadcast_to(np.arange(text_length - 1), (len(tokens), text_length - 1))
        rest_position = np.minimum(position + length, text_length - 1)
        prefix = Side(tokens[:, :-1], position, length[:, 0])
        rest = Side(np.take_along_axis(tokens, rest_position, axis=1), rest_position, text_length - length[:, 0])
        return self.sides.example(streams, prefix, rest)

    def _prefix_lengths(self, limit: Array, fraction: Array) -> Array:
        """Return the lengths of prefixes, between 1 and `limit`, which leaves a token to predict."""
        lengths = fraction * limit if self.prefix is None else np.rint((limit + 1) * self.prefix) - 1
        return np.clip(lengths.astype(np.int64), 0, np.maximum(limit - 1, 0)) + 1

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """Continue a text that is read in both directions; an empty one starts after the end of another."""
        if self.has_encoder:
            return self.sides.prompt(ids or [self.sides.eos])
        return Prompt(tuple(ids) or (self.sides.eos,), stop=self.sides.eos, bidirectional=True)
