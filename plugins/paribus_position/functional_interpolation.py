"""The position `fire`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor, nn

from paribus import Cost, Load, Pair, Position, Range, Role, Shape, Traits

_EPSILON: Final = 1e-6  # the authors' own; a threshold that was learned to be 0 would divide by 0


@final
class FunctionalInterpolation(Position):
    """Adds a learned function of how far a key is, as a share of how far it could be: FIRE, of "Functional
    Interpolation for Relative Positions Improves Long Context Transformers" (Li et al. 2023).

    The function is outer(relu(inner(r))), of r = log(c |i - j| + 1) / log(c max(L, i, j) + 1), negative where the key
    is ahead; c and L are learned, as multiples of where they start. For keys behind the query this is the paper's,
    which has no others, and max(L, i). One function serves all layers (the paper's FIRE-S). The last map has no bias,
    since what is added to all scores alike changes no weight.
    """

    traits: ClassVar[Traits] = {"moments": ["bias"], "bias": "positions", "owner": "stack"}
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
            float, "where c starts: the larger, the finer near rows are told apart", Range(above=0)
        ] = 0.1,
        threshold: Annotated[float, "where L starts: rows up to here share one scale", Range(above=0)] = 512.0,
    ) -> None:
        super().__init__()
        self.first_curvature = curvature
        self.first_threshold = threshold
        self.curvature, self.threshold = (nn.Parameter(torch.empty(())) for _ in "cL")
        # Slope and start of each unit, drawn alike: starting at 0, as a bias does, all would bend at the same distance.
        self.inner = nn.Parameter(torch.empty(inner, 2))
        self.outer = nn.Linear(inner, shape.heads, bias=False)

    def bias(self, pair: Pair) -> Tensor:
        """(B|1, H, T, S)."""
        dtype = torch.promote_types(pair.dtype, torch.float32)
        slopes, starts = self.inner.to(dtype)[..., None, None].unbind(1)  # (F, 1, 1) each
        inner = torch.addcmul(starts, self.shares(pair).unsqueeze(1), slopes).relu_()  # (B|1, F, T, S)
        summed = self.outer.weight.to(dtype) @ inner.flatten(2)  # (B|1, H, T * S)
        return summed.view(*summed.shape[:2], *inner.shape[2:])

    def shares(self, pair: Pair) -> Tensor:
        """(B|1, T, S): how far each key is from its query, from -1 to 1."""
        dtype = torch.promote_types(pair.dtype, torch.float32)
        q, k = pair.q_positions.unsqueeze(-1).to(dtype), pair.k_positions.unsqueeze(-2).to(dtype)
        c = self.curvature.to(dtype).abs() * self.first_curvature
        threshold = self.threshold.to(dtype).abs() * self.first_threshold
        most = torch.maximum(torch.maximum(q, k), threshold)
        return (q - k).sign() * (c * (q - k).abs()).log1p() / ((c * most).log1p() + _EPSILON)

    def cost(self, load: Load) -> Cost:
        """Of an example that is alone in its batch: one bias serves all whose rows are in the same places."""
        return Cost(flops=2 * load.queries * load.keys * self.outer.in_features * self.outer.out_features)

    def reach(self) -> int | None:
        return None
