"""Full convolution over the tokens of each document, with a dilation, for `full-conv` and `dilated-conv`."""

from __future__ import annotations

from typing import Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import PADDING, AttentionTraits, Context, Cost, Load, Role, Shape, State, is_content

CONVOLUTION_TRAITS: Final[AttentionTraits] = {
    "position_hooks": [],
    "causal": True,
    "cross": False,
    "documents": True,
    "order": False,
    "residual": True,
    "weights": False,
    "decodes": True,
}
"""Traits of a convolution over tokens."""


@final
class TokenConvolution(nn.Module):
    """Full convolution over tokens: each output channel is a weighted sum of all channels of `kernel` tokens.

    The tokens are `dilation` apart. In causal stacks they are a token and earlier ones; otherwise the window is
    centred, with one more token on the left if `kernel` is even. Padding between two tokens does not count towards
    their distance. The decoding state keeps the last (`kernel` - 1) * `dilation` tokens.
    """

    def __init__(
        self, *, kernel: int, dilation: int, causal: bool, bias: bool, width: int, out: int, role: Role
    ) -> None:
        """Make a convolution from `width` to `out` channels, whose weight has this role."""
        super().__init__()
        self.roles = {"weight": role}
        self.kernel, self.dilation = kernel, dilation
        self.left = (kernel - 1 if causal else kernel // 2) * dilation
        self.right = (kernel - 1) * dilation - self.left
        self.width = width
        self.weight = nn.Parameter(torch.empty(out, kernel * width))  # the first token of a window first
        self.bias = nn.Parameter(torch.empty(out)) if bias else None

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, W) -> (B, T, O)."""
        if ctx.layout.documents is None:
            return self._convolve(x, ctx)
        return self._convolve_documents(x, ctx.layout.documents, ctx)

    def _convolve(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.state is not None:
            x, stored = self._with_past(x, ctx.state), ctx.state["inputs"].shape[1]
            ctx.state["inputs"] = x[:, x.shape[1] - stored :]
            inputs = functional.pad(x, (0, 0, self.left - stored, self.right))
        else:
            inputs = functional.pad(x, (0, 0, self.left, self.right))
        weight = self.weight.unflatten(1, (self.kernel, self.width)).transpose(1, 2)
        return functional.conv1d(inputs.transpose(1, 2), weight, self.bias, dilation=self.dilation).transpose(1, 2)

    def _convolve_documents(self, x: Tensor, documents: Tensor, ctx: Context) -> Tensor:
        """Convolve each document separately: move padding to the front and mask tokens of other documents."""
        stored = 0
        documents = documents.expand(x.shape[0], -1)
        if ctx.state is not None:
            stored = ctx.state["inputs"].shape[1]
            x = self._with_past(x, ctx.state)
            documents = torch.cat([_past_documents(ctx, stored).expand(x.shape[0], -1), documents], dim=1)
        order = _padding_first(documents)
        packed, packed_documents = x.gather(1, order.unsqueeze(-1).expand_as(x)), documents.gather(1, order)
        if ctx.state is not None:
            ctx.state["inputs"] = packed[:, packed.shape[1] - stored :]
        sums = self._weighted_sums(packed, packed_documents)
        inverse = order.argsort(dim=1).unsqueeze(-1).expand_as(sums)
        return sums.gather(1, inverse)[:, stored:]

    def _weighted_sums(self, packed: Tensor, packed_documents: Tensor) -> Tensor:
        padding, length = (self.left, self.right), packed.shape[1]
        inputs = functional.pad(packed, (0, 0, *padding))
        neighbour_documents = functional.pad(packed_documents, padding, value=PADDING)
        sums: Tensor | None = None
        for tap, weight in enumerate(self.weight.split(self.width, dim=1)):
            window = slice(tap * self.dilation, tap * self.dilation + length)
            same_document = (neighbour_documents[:, window] == packed_documents) & is_content(packed_documents)
            term = functional.linear(
                inputs[:, window] * same_document.unsqueeze(-1), weight, self.bias if tap == 0 else None
            )
            sums = term if sums is None else sums + term
        assert sums is not None, "a kernel has at least one token"
        return sums

    def _with_past(self, x: Tensor, state: State) -> Tensor:
        return torch.cat([state["inputs"].to(x.dtype), x], dim=1)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        """Return an empty decoding state: no more tokens than there will be."""
        return {"inputs": like.new_zeros(batch, min(self.left, length), self.width)}

    def cost(self, load: Load) -> Cost:
        """Return the cost of one sequence."""
        return Cost(2 * load.queries * self.weight.numel(), state=min(self.left, load.keys) * self.width)


def convolution_of(
    shape: Shape, kernel: int, dilation: int, *, gate: bool, bias: bool
) -> tuple[TokenConvolution, nn.Module]:
    """Return a convolution of the stream, and what follows it: with `gate`, a gated linear unit of 2 D channels."""
    convolution = TokenConvolution(
        kernel=kernel,
        dilation=dilation,
        causal=shape.causal,
        bias=bias,
        width=shape.width,
        out=2 * shape.width if gate else shape.width,
        role="inner" if gate else "residual",
    )
    return convolution, nn.GLU() if gate else nn.Identity()


def _past_documents(ctx: Context, stored: int) -> Tensor:
    """Return the documents (B|1, stored) of the tokens in the decoding state."""
    assert ctx.key_layout.documents is not None, "either all decoding steps have documents, or none"
    past = functional.pad(ctx.key_layout.documents[:, : ctx.past], (stored, 0), value=PADDING)
    return past.gather(1, _padding_first(past))[:, past.shape[1] - stored :]


def _padding_first(documents: Tensor) -> Tensor:
    """Return the order (B|1, T) that puts padding first and keeps the order of the other tokens."""
    return is_content(documents).to(torch.uint8).argsort(dim=-1, stable=True)
