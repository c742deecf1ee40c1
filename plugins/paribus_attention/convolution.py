"""Depthwise separable convolution (`conv`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import PADDING, AtMost, Attention, AttentionTraits, Context, Cost, Load, Range, Role, Shape, State
from paribus_attention.documents import is_content


@final
class Convolution(Attention):
    """Depthwise separable convolution over nearby tokens (Wu et al. 2019).

    "Pay Less Attention with Lightweight and Dynamic Convolutions", without the softmax over weights. Each channel is a
    weighted sum of nearby tokens, with the same weights at every position; a linear map then mixes the channels.

    In causal stacks a token reads itself and the `kernel` - 1 tokens before it. Otherwise the window is centred; for an
    even `kernel` it has one more token on the left. Padding between two tokens does not count towards their distance.
    Decoding keeps the last `kernel` - 1 tokens.
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": True,
        "cross": False,
        "documents": True,
        "order": False,
        "residual": True,
        "weights": False,
        "decodes": True,
    }
    roles: ClassVar[Mapping[str, Role]] = {"pointwise.weight": "residual"}

    def __init__(
        self,
        shape: Shape,
        *,
        kernel: Annotated[
            int, "tokens in the window of the convolution", Range(2), AtMost("length", "a sequence has no more tokens")
        ] = 7,
        bias: Annotated[bool, "add a bias to both convolutions"] = True,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.left = kernel - 1 if shape.causal else kernel // 2
        self.width = shape.width
        self.depthwise = nn.Linear(kernel, shape.width, bias=bias)  # `kernel` weights for each channel
        self.pointwise = nn.Linear(shape.width, shape.width, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        convolved = (
            self._convolve(x, ctx)
            if ctx.layout.documents is None
            else self._convolve_documents(x, ctx.layout.documents, ctx)
        )
        mixed: Tensor = self.pointwise(convolved)
        return mixed

    def _convolve(self, x: Tensor, ctx: Context) -> Tensor:
        right = self.kernel - 1 - self.left
        if ctx.state is None:
            inputs = functional.pad(x, (0, 0, self.left, right))
        else:
            inputs = torch.cat([ctx.state["inputs"].to(x.dtype), x], dim=1)
            ctx.state["inputs"] = inputs[:, -self.left :]
        weight, columns = self.depthwise.weight.unsqueeze(1), inputs.transpose(1, 2)
        return functional.conv1d(columns, weight, self.depthwise.bias, groups=self.width).transpose(1, 2)

    def _convolve_documents(self, x: Tensor, documents: Tensor, ctx: Context) -> Tensor:
        """Convolve each document separately: move padding to the front and mask tokens of other documents."""
        past_tokens = 0
        documents = documents.expand(x.shape[0], -1)
        if ctx.state is not None:
            past_tokens = self.left
            x = torch.cat([ctx.state["inputs"].to(x.dtype), x], dim=1)
            documents = torch.cat([self._past_documents(ctx).expand(x.shape[0], -1), documents], dim=1)
        order = _padding_first(documents)
        packed, packed_documents = x.gather(1, order.unsqueeze(-1).expand_as(x)), documents.gather(1, order)
        if ctx.state is not None:
            ctx.state["inputs"] = packed[:, -self.left :]
        sums = self._weighted_sums(packed, packed_documents)
        inverse = order.argsort(dim=1).unsqueeze(-1).expand_as(sums)
        return sums.gather(1, inverse)[:, past_tokens:]

    def _weighted_sums(self, packed: Tensor, packed_documents: Tensor) -> Tensor:
        padding = (self.left, self.kernel - 1 - self.left)
        inputs = functional.pad(packed, (0, 0, *padding))
        neighbour_documents = functional.pad(packed_documents, padding, value=PADDING)
        weights = self.depthwise.weight.to(packed.dtype)
        length = packed.shape[1]
        sums = torch.zeros_like(packed) if self.depthwise.bias is None else self.depthwise.bias.expand_as(packed)
        for tap in range(self.kernel):
            window = slice(tap, tap + length)
            same_document = (neighbour_documents[:, window] == packed_documents) & is_content(packed_documents)
            sums = sums + weights[:, tap] * (inputs[:, window] * same_document.unsqueeze(-1))
        return sums

    def _past_documents(self, ctx: Context) -> Tensor:
        """Return the documents (B|1, kernel - 1) of the tokens in the decoding state."""
        assert ctx.key_layout.documents is not None, "either all decoding steps have documents, or none"
        past = functional.pad(ctx.key_layout.documents[:, : ctx.past], (self.left, 0), value=PADDING)
        return past.gather(1, _padding_first(past))[:, -self.left :]

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {"inputs": like.new_zeros(batch, self.left, self.width)}

    def cost(self, load: Load) -> Cost:
        return Cost(2 * load.queries * self.width * (self.kernel + self.width), state=self.left * self.width)


def _padding_first(documents: Tensor) -> Tensor:
    """Return the order (B|1, T) that puts padding first and keeps the order of the other tokens."""
    return is_content(documents).to(torch.uint8).argsort(dim=-1, stable=True)
