"""The head of objectives that tell which tokens of a text are none of its own, and what is measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import IGNORED, Cost, LossTerm, Norms, Role, Stream

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class Detector(nn.Module):
    """A dense layer, GELU and one score a row: "ELECTRA" (Clark et al. 2020).

    With a norm, what is scored is the norm of each row's sum with the first: the head of DeBERTa's third version.
    """

    roles: ClassVar[Mapping[str, Role]] = {
        "dense.weight": "head",
        "dense.bias": "bias",
        "scores.weight": "head",
        "scores.bias": "bias",
    }

    def __init__(self, width: int, norm: Norms | None) -> None:
        super().__init__()
        self.norm = norm() if norm is not None else None
        self.dense = nn.Linear(width, width)
        self.scores = nn.Linear(width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, T, D) -> (…, T, 1)."""
        if self.norm is not None:
            hidden = self.norm(hidden + hidden[..., :1, :])
        scores: Tensor = self.scores(functional.gelu(self.dense(hidden)))
        return scores

    def cost(self, rows: int) -> Cost:
        return Cost(flops=2 * rows * (self.dense.weight.numel() + self.scores.weight.numel()))


def told(stream: Stream) -> Tensor:
    """(B, T): 0 for each row that is told of, IGNORED for padding."""
    rows = torch.zeros_like(stream.tokens)
    return rows if stream.documents is None else rows.masked_fill(stream.documents < 0, IGNORED)


def replaced(stream: Stream, tokens: Tensor) -> Tensor:
    """(B, T): 1 where `tokens` are none of the stream's, 0 where they are; IGNORED for padding."""
    return (tokens != stream.tokens).long().masked_fill(told(stream) == IGNORED, IGNORED)


def loss(scores: Tensor, replaced: Tensor, weight: float = 1.0) -> LossTerm:
    """(B, T), (B, T) in {0, 1, IGNORED} -> the summed loss of telling the two apart, and over how many rows."""
    counted = replaced != IGNORED
    wanted = (replaced == 1).to(scores.dtype)
    losses = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    return LossTerm(losses.masked_fill(~counted, 0).sum(), counted.sum(), weight)


_MEASURED: Final = ("accuracy", "precision", "recall", "f1")


def metrics() -> dict[str, Metric]:
    """How often rows are told of rightly; how many replaced ones are found and found rightly; how many there are."""
    from torchmetrics import MeanMetric
    from torchmetrics.classification import BinaryAccuracy, BinaryF1Score, BinaryPrecision, BinaryRecall

    kinds = (BinaryAccuracy, BinaryPrecision, BinaryRecall, BinaryF1Score)
    found: dict[str, Metric] = {
        name: kind(ignore_index=IGNORED, validate_args=False) for name, kind in zip(_MEASURED, kinds, strict=True)
    }
    return {**found, "replaced": MeanMetric()}


def update(metrics: Mapping[str, Metric], scores: Tensor, replaced: Tensor) -> None:
    """Shows a batch to `metrics`: (B, T), (B, T)."""
    for name in _MEASURED:
        metrics[name].update((scores.detach() > 0).long(), replaced)
    metrics["replaced"].update((replaced == 1).float(), (replaced != IGNORED).float())
