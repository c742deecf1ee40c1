"""Slot `feedforward`: the sublayer that transforms each position by itself, or with its neighbours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from paribus.parts.context import State
from paribus.parts.shape import Cost, Load
from paribus.slots.component import Component


class FeedForward(Component, nn.Module, ABC):
    """Feed-forward sublayer: (B, T, D) -> (B, T, D), each position by itself, with an optional auxiliary loss (MoE).

    One that also reads neighbouring tokens, such as with a short convolution, sets `mixes_tokens` when it is built. Its
    layer then calls it with the context of the tokens, `forward(x, ctx)`: with their documents, and while decoding the
    state that `start` made.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape",)
    mixes_tokens: bool = False  # set when built: it also reads neighbouring tokens

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the output, (B, T, D), and a scalar that is added to the loss, or None."""

    def start(self, batch: int, like: Tensor) -> State:
        """Return an empty decoding state, for a feed-forward that mixes tokens."""
        return {}

    @abstractmethod
    def cost(self, load: Load) -> Cost:
        """Return the cost of one sequence."""
