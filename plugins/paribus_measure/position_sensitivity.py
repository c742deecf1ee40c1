"""How much hangs on where rows are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, final

import torch
from torch import Tensor

from paribus import PADDING, Batch, EvaluatedModel, Measure, Range, Stream, TrialInfo

NAMES = ("shifted", "shuffled")


@final
class PositionSensitivity(Measure):
    """By how much predictions move when rows are told that they stand elsewhere, while their content, their order and
    whom they see stay.

    The first half of each example is read as it is, as if it stood where the second half does (`shifted`), and as if
    its rows had changed places (`shuffled`). What is measured is the total variation between two predictions, from 0 to
    1, in the mean over rows. A position that knows distances alone has 0 for the shift; without any, both are 0.
    """

    def __init__(self, *, examples: Annotated[int, "validation examples that are looked at", Range(1)] = 32) -> None:
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return NAMES

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        sums = torch.zeros(3, dtype=torch.float64, device=model.device)
        seen = 0
        for batch in model.batches(self.examples):
            body = batch.streams["body"]
            length = body.tokens.shape[1] // 2
            if length < 2 or model.logits(batch).shape[1] != body.tokens.shape[1]:
                return dict.fromkeys(NAMES, "the model places its rows itself, or has too few to move any")
            vectors = body._replace(query_positions=None)
            half = Stream(*(None if vector is None else vector[:, :length] for vector in vectors))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
            places = half.positions if half.positions is not None else _places(half.tokens)
            luck = model.draw(self.examples).uniform("positions", length)[seen : seen + len(places)]
            seen += len(places)
            plain, shifted, shuffled = (
                model.logits(_placed(batch, half, at)).double().softmax(-1)
                for at in (places, places + length, _shuffled(places, half.documents, luck.to(places.device)))
            )
            rows = torch.ones_like(places) if half.documents is None else (half.documents != PADDING).long()
            moves = [(((other - plain).abs().sum(-1) / 2) * rows).sum() for other in (shifted, shuffled)]
            sums += torch.stack([*moves, rows.sum()])
        if not sums[2]:
            return dict.fromkeys(NAMES, "there is no row to move")
        return {"shifted": float(sums[0] / sums[2]), "shuffled": float(sums[1] / sums[2])}


def _places(tokens: Tensor) -> Tensor:
    """(B, T): 0, 1 …"""
    return torch.arange(tokens.shape[1], device=tokens.device).repeat(tokens.shape[0], 1)


def _placed(batch: Batch, half: Stream, positions: Tensor) -> Batch:
    return batch._replace(streams={**batch.streams, "body": half._replace(positions=positions)}, targets={})


def _shuffled(places: Tensor, documents: Tensor | None, luck: Tensor) -> Tensor:
    """(B, T): the places in another order; those of padding stay at the end."""
    last = luck if documents is None else luck + 2 * (documents == PADDING)
    return places.gather(1, last.argsort(dim=1, stable=True))
