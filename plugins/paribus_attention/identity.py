"""The attention `identity`."""

from __future__ import annotations

from typing import ClassVar, final

from torch import Tensor

from paribus import Attention, Context, Cost, Load, Shape, State, Traits


@final
class Identity(Attention):
    """Rows as they are, so that none reads another: a control that asks what mixing is worth.

    In a residual branch, a layer adds the row that its placement hands in, normed or not, to the row itself: with
    pre-norm x + norm(x), with post-norm norm(2x). Nothing is learned, and only the feed-forward is left.
    """

    traits: ClassVar[Traits] = {
        "consumes": [],
        "causal": True,
        "cross": False,  # a memory that nobody reads would never learn
        "documents": True,
        "order": True,
        "appended": True,
        "residual": True,
        "weights": False,
        "decodes": True,
        "sees": "none",
    }

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return x

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        return Cost()
