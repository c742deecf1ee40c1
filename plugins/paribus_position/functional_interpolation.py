"""Functional interpolation for relative positions (`fire`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor, nn

from paribus import Cost, Load, Pair, Position, PositionTraits, Range, Role, Shape

_EPSILON: Final = 1e-6  # as in the authors' code; a learned threshold of 0 would divide by 0


@final
class FunctionalInterpolation(Position):
    """Functional interpolation for relative position encoding, FIRE (Li et al. 2023).

    "Functional Interpolation for Relative Positions Improves Long Context Transformers". It adds outer(relu(inner(r))),
    with r = log(c |i - j| + 1) / log(c max(L, i, j) + 1), negative for keys ahead of the query. c and L are learned, as
    multiples of their initial values. For keys behind the query, max(L, i, j) is the paper's max(L, i). One function
    serves all layers (the paper's FIRE-S). The outer map has no bias, because a constant added to all scores changes no
    weight.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "positions", "owner": "stack"}
    roles: ClassVar[Mapping[str, Role]] = {
        "inner": "weight",
        "outer.weight": "weight",
        "curvature": "gain",
        "threshold": "gain",
    }

    def __init__(
        self,
        shape: Shape,
        *,
        inner: Annotated[int, "inner width of the function", Range(1)] = 32,
        curvature: Annotated[
            float, "initial value of c: larger values resolve small distances more finely", Range(above=0)
        ] = 0.1,
        threshold: Annotated[float, "initial value of L: shorter queries share one scale", Range(above=0)] = 512.0,
    ) -> None:
        super().__init__()
        self.initial_curvature = curvature
        self.initial_threshold = threshold
        self.curvature, self.threshold = (nn.Parameter(torch.empty(())) for _ in "cL")
        # Slope and offset of each unit, both drawn: with offsets of 0, all units would bend at the same distance.
        self.inner = nn.Parameter(torch.empty(inner, 2))
        self.outer = nn.Linear(inner, shape.heads, bias=False)

    def bias(self, pair: Pair) -> Tensor:
        """(B|1, H, T, S)."""
        dtype = torch.promote_types(pair.dtype, torch.float32)
        slopes, starts = self.inner.to(dtype)[..., None, None].unbind(1)  # (F, 1, 1) each
        inner = torch.addcmul(starts, self.relative_distances(pair).unsqueeze(1), slopes).relu_()  # (B|1, F, T, S)
        summed = self.outer.weight.to(dtype) @ inner.flatten(2)  # (B|1, H, T * S)
        return summed.view(*summed.shape[:2], *inner.shape[2:])

    def relative_distances(self, pair: Pair) -> Tensor:
        """Return the relative distance of each key, from -1 to 1: (B|1, T, S)."""
        dtype = torch.promote_types(pair.dtype, torch.float32)
        q, k = pair.q_positions.unsqueeze(-1).to(dtype), pair.k_positions.unsqueeze(-2).to(dtype)
        c = self.curvature.to(dtype).abs() * self.initial_curvature
        threshold = self.threshold.to(dtype).abs() * self.initial_threshold
        largest = torch.maximum(torch.maximum(q, k), threshold)
        return (q - k).sign() * (c * (q - k).abs()).log1p() / ((c * largest).log1p() + _EPSILON)

    def cost(self, load: Load) -> Cost:
        """Return the cost for a single example; one bias serves all examples at the same positions."""
        return Cost(flops=2 * load.queries * load.keys * self.outer.in_features * self.outer.out_features)

    def position_limit(self) -> int | None:
        return None
