"""The attention `conv`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import PADDING, AtMost, Attention, Context, Cost, Load, Range, Role, Shape, State, Traits
from paribus_attention.documents import awake


@final
class Convolution(Attention):
    """Each column is a weighted sum of nearby rows, with the same weights everywhere, and columns are mixed after that:
    the depthwise separable convolution of "Pay Less Attention" (Wu et al. 2019), without its softmax over weights.

    Where rows see the past, a row reads itself and the `kernel` - 1 rows before it; else as many on both sides, and one
    more before it if they are odd. Rows are near that have no other but padding between them. A decoding step keeps the
    last `kernel` - 1 rows.
    """

    traits: ClassVar[Traits] = {
        "consumes": [],
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
            int, "how many rows a row reads", Range(2), AtMost("length", "there are no more rows to read")
        ] = 7,
        bias: Annotated[bool, "whether both convolutions have a bias"] = True,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.before = kernel - 1 if shape.causal else kernel // 2
        self.width = shape.width
        self.depthwise = nn.Linear(kernel, shape.width, bias=bias)  # for each column as many weights as rows
        self.pointwise = nn.Linear(shape.width, shape.width, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        near = self._near(x, ctx) if ctx.rows.documents is None else self._near_in_documents(x, ctx.rows.documents, ctx)
        mixed: Tensor = self.pointwise(near)
        return mixed

    def _near(self, x: Tensor, ctx: Context) -> Tensor:
        after = self.kernel - 1 - self.before
        if ctx.state is None:
            given = functional.pad(x, (0, 0, self.before, after))
        else:
            given = torch.cat([ctx.state["rows"].to(x.dtype), x], dim=1)
            ctx.state["rows"] = given[:, -self.before :]
        weight, columns = self.depthwise.weight.unsqueeze(1), given.transpose(1, 2)
        return functional.conv1d(columns, weight, self.depthwise.bias, groups=self.width).transpose(1, 2)

    def _near_in_documents(self, x: Tensor, documents: Tensor, ctx: Context) -> Tensor:
        """The same with padding moved to the front, and rows of other documents left out of each sum."""
        kept = 0
        documents = documents.expand(x.shape[0], -1)
        if ctx.state is not None:
            kept = self.before
            x = torch.cat([ctx.state["rows"].to(x.dtype), x], dim=1)
            documents = torch.cat([self._documents_before(ctx).expand(x.shape[0], -1), documents], dim=1)
        behind = _behind(documents)
        line, runs = x.gather(1, behind.unsqueeze(-1).expand_as(x)), documents.gather(1, behind)
        if ctx.state is not None:
            ctx.state["rows"] = line[:, -self.before :]
        sums = self._summed(line, runs)
        back = behind.argsort(dim=1).unsqueeze(-1).expand_as(sums)
        return sums.gather(1, back)[:, kept:]

    def _summed(self, line: Tensor, runs: Tensor) -> Tensor:
        around = (self.before, self.kernel - 1 - self.before)
        rows, others = functional.pad(line, (0, 0, *around)), functional.pad(runs, around, value=PADDING)
        weights = self.depthwise.weight.to(line.dtype)
        length = line.shape[1]
        sums = torch.zeros_like(line) if self.depthwise.bias is None else self.depthwise.bias.expand_as(line)
        for tap in range(self.kernel):
            here = slice(tap, tap + length)
            near = (others[:, here] == runs) & awake(runs)
            sums = sums + weights[:, tap] * (rows[:, here] * near.unsqueeze(-1))
        return sums

    def _documents_before(self, ctx: Context) -> Tensor:
        """(B|1, kernel - 1): the documents of the rows that the state holds."""
        assert ctx.keys.documents is not None, "what rows say now, they said before"
        past = functional.pad(ctx.keys.documents[:, : ctx.past], (self.before, 0), value=PADDING)
        return past.gather(1, _behind(past))[:, -self.before :]

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {"rows": like.new_zeros(batch, self.before, self.width)}

    def cost(self, load: Load) -> Cost:
        return Cost(2 * load.queries * self.width * (self.kernel + self.width), state=self.before * self.width)


def _behind(documents: Tensor) -> Tensor:
    """(B|1, T) -> (B|1, T): the rows of padding, and then those that hold something, in order."""
    return awake(documents).to(torch.uint8).argsort(dim=-1, stable=True)
