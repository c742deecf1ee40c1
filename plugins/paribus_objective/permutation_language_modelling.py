"""Permutation language modelling: predict the last tokens of a random order from those before them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from torch import Tensor

from paribus import (
    IGNORED,
    Draw,
    ForwardPass,
    Norms,
    Objective,
    ObjectiveTraits,
    Range,
    Role,
    Shape,
    Stream,
    TrainingExamples,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import special_tokens, vocabulary_head, whole_words
from paribus_objective.span_masking import Spans


@final
class PermutationLanguageModelling(Objective, WeightConverter):
    """Permutation language modelling: the last tokens of a random factorization order are predicted, each from those
    before it in that order. "XLNet" (Yang et al. 2019).

    Orders are new in each epoch. The last one in K tokens are predicted by queries of the second stream, which do not
    see the token itself; they may lie in `spans`, as the authors have it. As in their code, the tokens that are not
    predicted see each other; unlike there, so do special tokens, and neither these nor padding are predicted.
    (B, T) -> N queries -> (B, N, V).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "both",
        "parts": [],
        "segments": False,
        "needs": ["second-stream"],
        "token_terms": ["loss"],
    }
    roles: ClassVar[Mapping[str, Role]] = {"bias": "bias"}
    logits = vocabulary_head.logits
    forward = vocabulary_head.forward
    cost = vocabulary_head.cost
    metrics = vocabulary_head.metrics
    update_metrics = vocabulary_head.update_metrics
    convert_weights = vocabulary_head.convert_weights

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of the text's tokens that are predicted, 1 / K", Range(above=0, high=1)] = 1 / 6,
        spans: Spans = Spans(),
        bias: Annotated[bool, "add a bias for each entry of the vocabulary (XLNet: yes)"] = True,
    ) -> None:
        super().__init__()
        if spans.joint_replacement:
            raise ValueError("expected `spans.joint_replacement` false: no token is replaced")
        self.rate = rate
        self.select = whole_words.selection(spans, rate, vocabulary)
        self.classes = shape.vocabulary
        self.reserved = special_tokens.reserved_ids(vocabulary)
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=bias)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        tokens = body.tokens.numpy()
        non_text, slots = special_tokens.non_text(body, self.reserved), self.head_positions(tokens.shape[1])
        positions, unused, _ = self.select(non_text, body, self.rate, slots, draw)
        labels = np.where(unused, IGNORED, np.take_along_axis(tokens, positions, axis=1))
        keys = np.where(unused, 2.0, draw.uniform("rank", positions.shape[1]).numpy())
        rank = keys.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") + 1
        order = np.zeros_like(tokens)
        np.put_along_axis(order, positions, np.where(unused, 0, 2 * rank), axis=1)
        body = body._replace(order=torch.from_numpy(order), query_positions=torch.from_numpy(positions))
        return TrainingExamples({**streams, "body": body}, {"labels": torch.from_numpy(labels)})

    def head_positions(self, length: int) -> int:
        return min(length, max(1, math.ceil(self.rate * length)))

    def scored_hidden(self, run: ForwardPass) -> Tensor:
        return run.hidden()[:, -run.targets["labels"].shape[1] :]
