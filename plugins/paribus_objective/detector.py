"""Detector head for replaced tokens, with its loss and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import IGNORED, Cost, LossTerm, Norms, Role, Stream, at_least_float32

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class Detector(nn.Module):
    """A dense layer, GELU and one score per token: "ELECTRA" (Clark et al. 2020).

    With a norm, the first token is added to each token and the sum is normalized: the head of DeBERTa v3.
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

    def cost(self, tokens: int) -> Cost:
        return Cost(flops=2 * tokens * (self.dense.weight.numel() + self.scores.weight.numel()))


def not_padding(stream: Stream) -> Tensor:
    """(B, T): 0 for each token, IGNORED for padding."""
    zeros = torch.zeros_like(stream.tokens)
    return zeros if stream.documents is None else zeros.masked_fill(stream.documents < 0, IGNORED)


def replaced_labels(stream: Stream, tokens: Tensor) -> Tensor:
    """(B, T): 1 where `tokens` differ from the stream, 0 where they are equal, IGNORED for padding."""
    return (tokens != stream.tokens).long().masked_fill(not_padding(stream) == IGNORED, IGNORED)


def loss(scores: Tensor, labels: Tensor, weight: float = 1.0) -> LossTerm:
    """(B, T), (B, T) in {0, 1, IGNORED} -> the summed binary cross-entropy, and the number of tokens."""
    mask = labels != IGNORED
    values = at_least_float32(scores)
    losses = functional.binary_cross_entropy_with_logits(values, (labels == 1).to(values.dtype), reduction="none")
    return LossTerm(losses.masked_fill(~mask, 0).sum(), mask.sum(), weight)


_METRICS: Final = ("accuracy", "precision", "recall", "f1")


def metrics() -> dict[str, Metric]:
    """Accuracy, precision, recall and F1 of the replaced tokens, and their share."""
    from torchmetrics import MeanMetric
    from torchmetrics.classification import BinaryAccuracy, BinaryF1Score, BinaryPrecision, BinaryRecall

    kinds = (BinaryAccuracy, BinaryPrecision, BinaryRecall, BinaryF1Score)
    by_name: dict[str, Metric] = {
        name: kind(ignore_index=IGNORED, validate_args=False) for name, kind in zip(_METRICS, kinds, strict=True)
    }
    return {**by_name, "replaced": MeanMetric()}


def update(metrics: Mapping[str, Metric], scores: Tensor, labels: Tensor) -> None:
    """Add a batch to `metrics`: (B, T), (B, T)."""
    for name in _METRICS:
        metrics[name].update((scores.detach() > 0).long(), labels)
    metrics["replaced"].update((labels == 1).float(), (labels != IGNORED).float())
