"""Depthwise convolution over the tokens of each document: short convolutions of attentions and placements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus.parts.batch import PADDING
from paribus.parts.context import Context, State
from paribus.parts.shape import Cost, Load, Role


@final
class DepthwiseConvolution(nn.Module):
    """Weighted sum of nearby tokens in each channel: (B, T, W) -> (B, T, W).

    In causal stacks a token reads itself and the `kernel` - 1 tokens before it. Otherwise the window is centred; for an
    even `kernel` it has one more token on the left. Padding between two tokens does not count towards their distance.
    The decoding state keeps the last `kernel` - 1 tokens, as `state`.
    """

    def __init__(self, width: int, kernel: int, *, causal: bool, bias: bool, state: str = "inputs") -> None:
        super().__init__()
        self.state = state
        self.kernel, self.width = kernel, width
        self.left = kernel - 1 if causal else kernel // 2
        self.weight = nn.Parameter(torch.empty(width, kernel))  # the first token of a window first
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, W) -> (B, T, W)."""
        if ctx.layout.documents is None:
            return self._convolve(x, ctx)
        return self._convolve_documents(x, ctx.layout.documents, ctx)

    def _convolve(self, x: Tensor, ctx: Context) -> Tensor:
        right = self.kernel - 1 - self.left
        if ctx.state is None:
            inputs = functional.pad(x, (0, 0, self.left, right))
        else:
            inputs = torch.cat([ctx.state[self.state].to(x.dtype), x], dim=1)
            ctx.state[self.state] = inputs[:, -self.left :]
        weight, columns = self.weight.unsqueeze(1), inputs.transpose(1, 2)
        return functional.conv1d(columns, weight, self.bias, groups=self.width).transpose(1, 2)

    def _convolve_documents(self, x: Tensor, documents: Tensor, ctx: Context) -> Tensor:
        """Convolve each document separately: move padding to the front and mask tokens of other documents."""
        past_tokens = 0
        documents = documents.expand(x.shape[0], -1)
        if ctx.state is not None:
            past_tokens = self.left
            x = torch.cat([ctx.state[self.state].to(x.dtype), x], dim=1)
            documents = torch.cat([self._past_documents(ctx).expand(x.shape[0], -1), documents], dim=1)
        order = _padding_first(documents)
        packed, packed_documents = x.gather(1, order.unsqueeze(-1).expand_as(x)), documents.gather(1, order)
        if ctx.state is not None:
            ctx.state[self.state] = packed[:, -self.left :]
        sums = self._weighted_sums(packed, packed_documents)
        inverse = order.argsort(dim=1).unsqueeze(-1).expand_as(sums)
        return sums.gather(1, inverse)[:, past_tokens:]

    def _weighted_sums(self, packed: Tensor, packed_documents: Tensor) -> Tensor:
        padding = (self.left, self.kernel - 1 - self.left)
        inputs = functional.pad(packed, (0, 0, *padding))
        neighbour_documents = functional.pad(packed_documents, padding, value=PADDING)
        weights = self.weight.to(packed.dtype)
        length = packed.shape[1]
        sums = torch.zeros_like(packed) if self.bias is None else self.bias.expand_as(packed)
        for tap in range(self.kernel):
            window = slice(tap, tap + length)
            same_document = (neighbour_documents[:, window] == packed_documents) & (packed_documents != PADDING)
            sums = sums + weights[:, tap] * (inputs[:, window] * same_document.unsqueeze(-1))
        return sums

    def _past_documents(self, ctx: Context) -> Tensor:
        """Return the documents (B|1, kernel - 1) of the tokens in the decoding state."""
        assert ctx.key_layout.documents is not None, "either all decoding steps have documents, or none"
        past = functional.pad(ctx.key_layout.documents[:, : ctx.past], (self.left, 0), value=PADDING)
        return past.gather(1, _padding_first(past))[:, -self.left :]

    def start(self, batch: int, like: Tensor) -> State:
        """Return an empty decoding state."""
        return {self.state: like.new_zeros(batch, self.left, self.width)}

    def cost(self, load: Load) -> Cost:
        """Return the cost of one sequence."""
        return Cost(2 * load.queries * self.width * self.kernel, state=self.left * self.width)


@final
class ShortConvolutions(nn.ModuleDict):
    """Convolutions that are added to their inputs: x + conv(x), each with a name, a width and a decoding state."""

    def __init__(self, widths: Mapping[str, int], kernel: int, *, causal: bool) -> None:
        super().__init__(
            {
                name: DepthwiseConvolution(width, kernel, causal=causal, bias=False, state=f"inputs of {name}")
                for name, width in widths.items()
            }
        )
        self.widths = dict(widths)
        self.roles: Mapping[str, Role] = {f"{name}.weight": "vector" for name in widths}

    def forward(self, name: str, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, W) -> (B, T, W)."""
        summed: Tensor = x + self[name](x, ctx)
        return summed

    def start(self, batch: int, like: Tensor) -> State:
        """Return an empty decoding state of all convolutions."""
        return {name: tensor for each in self._all() for name, tensor in each.start(batch, like).items()}

    def cost(self, load: Load) -> Cost:
        """Return the cost of all convolutions for one sequence."""
        return sum((each.cost(load) for each in self._all()), Cost())

    def _all(self) -> list[DepthwiseConvolution]:
        return cast("list[DepthwiseConvolution]", list(self.values()))


def _padding_first(documents: Tensor) -> Tensor:
    """Return the order (B|1, T) that puts padding first and keeps the order of the other tokens."""
    return (documents != PADDING).to(torch.uint8).argsort(dim=-1, stable=True)
