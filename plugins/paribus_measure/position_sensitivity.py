"""Position sensitivity: change of predictions if positions change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, final

import torch
from torch import Tensor

from paribus import PADDING, Batch, EvaluatedModel, Measure, Range, Stream, TrialInfo

NAMES = ("shifted", "shuffled")


@final
class PositionSensitivity(Measure):
    """Change of predictions if positions change, while the tokens, their order and their visibility stay.

    The first half of each example is read with its own positions, with those of the second half (`shifted`), and with
    permuted positions (`shuffled`). The value is the total variation distance of two predictions, from 0 to 1, averaged
    over tokens. Relative positions have 0 for the shift; without positions, both are 0.
    """

    def __init__(self, *, examples: Annotated[int, "number of validation examples", Range(1)] = 32) -> None:
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return NAMES

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        sums = torch.zeros(3, dtype=torch.float64, device=model.device)
        example_count = 0
        for batch in model.batches(self.examples):
            body = batch.streams["body"]
            length = body.tokens.shape[1] // 2
            if length < 2 or model.logits(batch).shape[1] != body.tokens.shape[1]:
                return dict.fromkeys(NAMES, "the model computes its positions itself, or its sequences are too short")
            fields = body._replace(query_positions=None)
            half = Stream(*(None if values is None else values[:, :length] for values in fields))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
            positions = half.positions if half.positions is not None else _positions(half.tokens)
            keys = model.draw(self.examples).uniform("positions", length)
            keys = keys[example_count : example_count + len(positions)].to(positions.device)
            example_count += len(positions)
            original, shifted, shuffled = (
                model.logits(_with_positions(batch, half, changed)).double().softmax(-1)
                for changed in (positions, positions + length, _shuffled(positions, half.documents, keys))
            )
            mask = torch.ones_like(positions) if half.documents is None else (half.documents != PADDING).long()
            changes = [(((other - original).abs().sum(-1) / 2) * mask).sum() for other in (shifted, shuffled)]
            sums += torch.stack([*changes, mask.sum()])
        if not sums[2]:
            return dict.fromkeys(NAMES, "the validation examples have no tokens")
        return {"shifted": float(sums[0] / sums[2]), "shuffled": float(sums[1] / sums[2])}


def _positions(tokens: Tensor) -> Tensor:
    """(B, T): 0, 1 …"""
    return torch.arange(tokens.shape[1], device=tokens.device).repeat(tokens.shape[0], 1)


def _with_positions(batch: Batch, half: Stream, positions: Tensor) -> Batch:
    return batch._replace(streams={**batch.streams, "body": half._replace(positions=positions)}, targets={})


def _shuffled(positions: Tensor, documents: Tensor | None, keys: Tensor) -> Tensor:
    """(B, T): permuted positions; those of padding stay at the end."""
    sort_keys = keys if documents is None else keys + 2 * (documents == PADDING)
    return positions.gather(1, sort_keys.argsort(dim=1, stable=True))
