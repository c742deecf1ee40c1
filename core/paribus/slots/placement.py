"""Slot `placement`: wiring of norms, sublayers and the residual stream (norm placement)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Required

import torch
from torch import Tensor, nn

from paribus.parts.batch import TokenLayout
from paribus.parts.context import Context, State
from paribus.parts.shape import Cost, Load, Role
from paribus.parts.stack import Streams
from paribus.slots.component import Component, Traits
from paribus.slots.norm import Norm

Sublayer = Callable[[Any], Tensor]
"""Attention, cross-attention or feed-forward: (B, T, D) -> (B, T, D).

The input of self-attention may be a tuple, the inputs of queries, keys and values, (B, T, D) each, if the placement has
the trait `separate_inputs`.
"""


class PlacementTraits(Traits, total=False):
    """Traits of a placement."""

    final_norm: Required[bool]  # a norm follows the last layer
    identity_path: bool  # before a final norm, a layer without sublayer outputs scales its input; default: True
    output_normalized: bool  # norms of layers or the final norm normalize the output of the stack; default: True
    mixes_tokens: bool  # a sublayer reads tokens before its own; default: False
    separate_inputs: bool  # queries, keys and values may have an input each, which the attention reads; default: False
    unit_weights: bool  # after each step, vectors of weights along the stream are scaled to length 1; default: False
    needs: list[str]  # `layer`: an instance for each layer


class Placement(Component, nn.Module, ABC):
    """Norm placement: wires the sublayers of one layer into the residual stream.

    `sublayers` maps the name of a sublayer (attention, cross, feedforward) to a function of (B, T, D), in order. Store
    norms as `self.norms[name]`, so that their paths are the same in every placement. The trait `final_norm` says
    whether a norm follows the last layer.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape", "norm")
    traits: ClassVar[PlacementTraits]

    @abstractmethod
    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        """Return the output of the layer: (B, T, D) -> (B, T, D)."""

    def begin(self, x: Tensor) -> Streams:
        """Return the streams that this layer reads if all layers before it return `x`.

        Those of the first layer begin the stack.
        """
        return (x,)

    def advance(self, streams: Streams, sublayers: Mapping[str, Sublayer], ctx: Context) -> Streams:
        """Return the streams that the next layer reads.

        `ctx` has the documents of the tokens, and the decoding state that `empty_state` made.
        """
        (x,) = streams
        return (self(x, sublayers),)

    def end(self, streams: Streams) -> Tensor:
        """Return the hidden states of the streams that `advance` returns: of the last layer, the output of the stack
        before its final norm.
        """
        return streams[-1]

    def gain(self, role: Role) -> float:
        """Return the factor of the initial weights of parameters with this role (DeepNorm's beta)."""
        return 1.0

    def empty_state(self, batch: int, like: Tensor) -> State:
        """Return an empty decoding state, for a placement that reads earlier tokens."""
        return {}

    def cost(self, load: Load) -> Cost:
        """Return the operations and the decoding state of one layer, without its sublayers and norms."""
        return Cost()

    def norm_cost(self, load: Load) -> Cost:
        """Return the operations of the norms of one layer, each of which runs once on each token."""
        return sum((module.cost(load) for module in self.modules() if isinstance(module, Norm)), Cost())


class StreamPlacement(Placement):
    """Placement whose layers pass more on than one residual stream, or read tokens before their own.

    Streams are outputs of earlier layers, or parallel streams: each a tensor (B, T, …). A subclass defines `begin`,
    `advance` and `end`; `forward` is the layer in a stack whose earlier layers all returned `x`, for one document.
    """

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        layout = TokenLayout(torch.arange(x.shape[1], device=x.device).unsqueeze(0))
        return self.end(self.advance(self.begin(x), sublayers, Context((), layout, layout)))

    @abstractmethod
    def begin(self, x: Tensor) -> Streams: ...

    @abstractmethod
    def advance(self, streams: Streams, sublayers: Mapping[str, Sublayer], ctx: Context) -> Streams: ...

    @abstractmethod
    def end(self, streams: Streams) -> Tensor: ...
