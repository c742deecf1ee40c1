"""Which parameters no gradient reaches: they count among the parameters, and do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from paribus.train.pieces import whole

EACH: Final = 8  # first steps, all of which are looked at


def looked_at(step: int, steps: int) -> bool:
    """Whether gradients are looked at before this step: the first ones, then ever more rarely, and the last one.

    What begins behind a gate of 0 has its first gradient late, and a layer that is left out by lot at some steps has
    one at others: so one step says nothing. All steps would cost time for a model with experts that nobody asks.
    """
    return step < EACH or step & (step - 1) == 0 or step == steps - 1


def untouched(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Those of `names` whose parameters have no gradient now, or one that is 0 throughout; the device waits once."""
    parameters = dict(model.named_parameters())
    known = [(name, _any(parameters[name].grad)) for name in names]
    with_gradient = [(name, moved) for name, moved in known if moved is not None]
    if not with_gradient:
        return list(names)
    moved = torch.stack([moved for _, moved in with_gradient]).tolist()
    touched = {name for (name, _), any_of in zip(with_gradient, moved, strict=True) if any_of}
    return [name for name in names if name not in touched]


def _any(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    return (gradient.coalesce().values() if gradient.is_sparse else whole(gradient)).any()
