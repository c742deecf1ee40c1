"""Identity in place of attention (`identity`), a control."""

from __future__ import annotations

from typing import ClassVar, final

from torch import Tensor

from paribus import Attention, AttentionTraits, Context, Cost, Load, Shape, State


@final
class Identity(Attention):
    """Identity in place of attention: a control that measures what token mixing contributes.

    It has no parameters; only the feed-forward remains. In a residual branch a layer adds its input, as the placement
    passes it, to the stream: pre-norm computes x + norm(x), post-norm computes norm(2x).
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": True,
        "cross": False,  # an unread memory would get no gradient
        "documents": True,
        "order": True,
        "extra_queries": True,
        "residual": True,
        "weights": False,
        "decodes": True,
        "reads_keys": "none",
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
