"""Layer: sublayers wired by a placement."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from torch import Tensor, nn
from torch.nn import functional

from paribus.parts.context import Context

if TYPE_CHECKING:
    from paribus.slots.attention import Attention
    from paribus.slots.feedforward import FeedForward
    from paribus.slots.placement import Placement, Sublayer


@final
class Layer(nn.Module):
    """Self-attention, cross-attention if there is a memory, and feed-forward, each followed by dropout.

    Without a placement, each sublayer reads the output of the one before, without norms and residual stream.
    """

    def __init__(
        self,
        *,
        attention: Attention,
        feedforward: FeedForward | None,
        placement: Placement | None,
        dropout: float,
        cross: Attention | None = None,
        position: nn.Module | None = None,
        cross_position: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.feedforward = feedforward
        self.placement = placement
        self.position = position  # position of this layer, or its part of the stack's position
        self.cross_position = cross_position
        self.dropout = dropout
        self.crosses = cross is not None
        self.feeds = feedforward is not None

    def forward(self, x: Tensor, ctx: Context, cross: Context | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the output, (B, T, D), and the auxiliary loss of the feed-forward, if it has one."""
        auxiliary: Tensor | None = None

        def attend(h: Tensor) -> Tensor:
            return self._dropped(self.attention(h, ctx))

        def attend_memory(h: Tensor) -> Tensor:
            assert self.cross is not None
            return self._dropped(self.cross(h, cross))

        def feed_forward(h: Tensor) -> Tensor:
            nonlocal auxiliary
            assert self.feedforward is not None, "expected a feed-forward"
            y, auxiliary = self.feedforward(h)
            return self._dropped(y)

        sublayers: dict[str, Sublayer] = {"attention": attend}
        if self.crosses:
            sublayers["cross"] = attend_memory
        if self.feeds:
            sublayers["feedforward"] = feed_forward
        if self.placement is not None:
            return self.placement(x, sublayers), auxiliary
        for sublayer in sublayers.values():
            x = sublayer(x)
        return x, auxiliary

    def _dropped(self, y: Tensor) -> Tensor:
        return functional.dropout(y, self.dropout) if self.dropout and self.training else y
