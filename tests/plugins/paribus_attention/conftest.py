"""Fixture: a stack of one attention."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

import pytest
import torch
from torch import Tensor

from paribus import Attention, Cost, FeedForward, Load, Placement, Position, Shape, Stack, Sublayer
from paribus.kernels import KERNELS
from paribus.parts.stack import Layer
from paribus_attention import attention
from paribus_position import position


@final
class NoFeedForward(FeedForward):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return x, None

    def cost(self, load: Load) -> Cost:
        return Cost()


@final
class AttentionOnly(Placement):
    """Placement with the attention (or cross-attention) alone, or added to the residual stream."""

    def __init__(self, residual: bool) -> None:
        super().__init__()
        self.residual = residual

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        mixed = sublayers.get("cross", sublayers["attention"])(x)
        return x + mixed if self.residual else mixed


@pytest.fixture(scope="session")
def build_stack() -> Callable[..., Stack]:
    def stack(
        name: str,
        position_name: str = "none",
        *,
        causal: bool = True,
        layers: int = 1,
        residual: bool = False,
        kernels: Any = KERNELS,
        memory_width: int | None = None,
        width: int = 12,
        **options: Any,
    ) -> Stack:
        """A stack of one attention, in float64, the same weights whenever it is asked for the same."""
        torch.manual_seed(0)
        shape = Shape(width, 4, 4, 256, 11, layers, causal=causal)
        location: Position = position()[position_name](shape)
        across = position()["none"](shape) if memory_width else None

        def layer(index: int) -> Layer:
            part = replace(shape, layer=index)
            module: Attention = attention()[name](part, **options)
            cross = attention()[name](replace(part, memory_width=memory_width), **options) if memory_width else None
            placement = AttentionOnly(residual)
            return Layer(attention=module, feedforward=NoFeedForward(), placement=placement, dropout=0.0, cross=cross)

        wiring = [(location, across)] * layers
        places = [location] if across is None else [location, across]
        stack = Stack(shape, [layer(index) for index in range(layers)], places, wiring, None, kernels).double()
        for parameter in stack.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        return stack

    return stack
