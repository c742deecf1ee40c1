"""Predict the last tokens of an order that is drawn, each from those before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from paribus import (
    IGNORED,
    ConvertedTensor,
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Range,
    Role,
    Shape,
    Stream,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import scoring, specials, vocabulary_head
from paribus_objective.span_masking import Spans
from paribus_objective.word_picking import picking

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class PermutationLanguageModelling(Objective, WeightConverter):
    """The last tokens of a factorisation order are predicted, each from those before it in that order, wherever they
    stand: "XLNet" (Yang et al. 2019).

    Orders are drawn afresh in each epoch, and of each the last one in K tokens is predicted by a row that asks for it,
    and does not see it; they may lie in `spans`, as the authors have it. As in their code, what comes before these sees
    all of its like; not as there, so does a special token, which is never predicted, and nor is padding.
    (B, T) -> N rows that ask -> (B, N, V).
    """

    traits: ClassVar[Traits] = {
        "corrupts": True,
        "sight": "both",
        "parts": [],
        "segments": False,
        "needs": ["second-stream"],
    }
    roles: ClassVar[Mapping[str, Role]] = {"bias": "bias"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of a text's tokens that are predicted, 1 / K", Range(above=0, high=1)] = 1 / 6,
        spans: Spans = Spans(),
        bias: Annotated[bool, "whether each entry of the vocabulary has a bias (XLNet: yes)"] = True,
    ) -> None:
        super().__init__()
        self.rate = rate
        self.pick = picking(spans, rate, vocabulary)
        self.classes = shape.vocabulary
        self.reserved = specials.table(vocabulary)
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(shape, norm, transform=False, bias=bias)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        tokens = body.tokens.numpy()
        outside, most = specials.outside(body, self.reserved), self.head_positions(tokens.shape[1])
        pick, left, _ = self.pick(outside, body, self.rate, most, draw)
        labels = np.where(left, IGNORED, np.take_along_axis(tokens, pick, axis=1))
        luck = np.where(left, 2.0, draw.uniform("rank", pick.shape[1]).numpy())
        rank = luck.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") + 1
        order = np.zeros_like(tokens)
        np.put_along_axis(order, pick, np.where(left, 0, 2 * rank), axis=1)
        asked = body._replace(order=torch.from_numpy(order), query_positions=torch.from_numpy(pick))
        return TrainingExamples({**streams, "body": asked}, {"labels": torch.from_numpy(labels)})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return vocabulary_head.logits(self, hidden, unembed)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"])}

    def cost(self, load: Load) -> Cost:
        return vocabulary_head.cost(self, load)

    def head_positions(self, length: int) -> int:
        return min(length, max(1, math.ceil(self.rate * length)))

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes)}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], self._logits(run), run.targets["labels"])

    def _logits(self, run: ForwardPass) -> Tensor:
        asking = run.targets["labels"].shape[1]
        return run.cached("logits", lambda: self.logits(run.hidden()[:, -asking:], run.unembed))

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        return vocabulary_head.adopted(self, other)
