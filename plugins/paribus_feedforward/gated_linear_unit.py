"""Gated linear unit (`glu`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Context, Cost, FeedForward, Load, Range, Role, Shape, ShortConvolutions, State
from paribus_feedforward.activation import ACTIVATIONS, Activation
from paribus_feedforward.inner_width import inner_width

EXPAND = 8 / 3  # three maps of this width have as many parameters as two maps of 4


@final
class GatedLinearUnit(FeedForward):
    """Gated linear unit, outer(activation(gate(x)) * inner(x)) (Shazeer 2020).

    "GLU Variants Improve Transformer". The activation names the variant: silu is SwiGLU, gelu GEGLU, relu ReGLU,
    sigmoid GLU. With `kernel`, gates and inner channels read neighbouring tokens before the activation: Canon D of
    "Physics of Language Models: Part 4.1" (Allen-Zhu 2025). (B, T, D) -> (B, T, F) -> (B, T, D).
    """

    roles: ClassVar[Mapping[str, Role]] = {
        "gate.weight": "inner",
        "inner.weight": "inner",
        "outer.weight": "residual",
        "gate_scale": "gain",
        "inner_scale": "gain",
    }

    def __init__(
        self,
        shape: Shape,
        *,
        activation: Annotated[Activation, "activation of the gate; silu: SwiGLU, gelu: GEGLU, sigmoid: GLU"] = "silu",
        expand: Annotated[float | None, "inner width as a multiple of the model width", Range(above=0)] = EXPAND,
        inner: Annotated[int | None, "inner width; overrides `expand`", Range(1)] = None,
        bias: Annotated[bool, "add a bias to the three projections"] = False,
        kernel: Annotated[
            int | None,
            "tokens in the window of a convolution that is added to gates and inner channels (Canon D: 4); null: none",
            Range(2, 1024),
        ] = None,
        scales: Annotated[
            bool, "multiply each channel of gate and inner projection by a learned scale, at first 1 (nGPT)"
        ] = False,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.width = shape.width
        self.inner_width = inner_width(shape.width, expand, EXPAND, inner)
        self.gate = nn.Linear(self.width, self.inner_width, bias=bias)
        self.inner = nn.Linear(self.width, self.inner_width, bias=bias)
        self.outer = nn.Linear(self.inner_width, self.width, bias=bias)
        self.convolutions: ShortConvolutions | None = None
        self.mixes_tokens = kernel is not None
        if kernel is not None:
            widths = dict.fromkeys(("gate", "inner"), self.inner_width)
            self.convolutions = ShortConvolutions(widths, kernel, causal=shape.causal)
        self.gate_scale = nn.Parameter(torch.ones(self.inner_width)) if scales else None
        self.inner_scale = nn.Parameter(torch.ones(self.inner_width)) if scales else None

    def forward(self, x: Tensor, ctx: Context | None = None) -> tuple[Tensor, Tensor | None]:
        gate, inner = self.gate(x), self.inner(x)
        if self.convolutions is not None:
            assert ctx is not None, "expected the context of the tokens"
            gate, inner = self.convolutions("gate", gate, ctx), self.convolutions("inner", inner, ctx)
        if self.gate_scale is not None and self.inner_scale is not None:
            gate, inner = self.gate_scale.to(gate.dtype) * gate, self.inner_scale.to(inner.dtype) * inner
        return self.outer(self.activation(gate) * inner), None

    def cost(self, load: Load) -> Cost:
        cost = Cost(flops=3 * 2 * load.queries * self.width * self.inner_width)
        return cost if self.convolutions is None else cost + self.convolutions.cost(load)

    def start(self, batch: int, like: Tensor) -> State:
        return {} if self.convolutions is None else self.convolutions.start(batch, like)
