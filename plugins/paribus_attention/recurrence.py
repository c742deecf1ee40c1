"""Rows one after the other, each document by itself: what recurrent attentions have in common.

Torch runs sequences of different lengths as one: their first rows, their second rows, and so on. So each document is a
sequence of its own, padding is none, and nothing is computed in vain. Their lengths are read on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from paribus import Context, Shape
from paribus_attention.documents import awake, filled, running


@final
class Direction(nn.Module):
    """The weights of one direction: what a row gives to the gates, and what the state before it does."""

    def __init__(self, width: int, inner: int, gates: int) -> None:
        super().__init__()
        self.reads = nn.Linear(width, gates * inner)
        self.repeats = nn.Linear(inner, gates * inner)

    @property
    def weights(self) -> list[Tensor]:
        """As torch lists them."""
        return [self.reads.weight, self.repeats.weight, self.reads.bias, self.repeats.bias]


Hidden = tuple[Tensor, ...]
"""h, or h and c: (directions, sequences, K) each."""
Pass = Callable[[Tensor, Tensor | None, Hidden, list[Tensor]], tuple[Tensor, Hidden]]
"""Rows (B, T, D), or packed (M, D) with how many sequences have a first row, a second row and so on."""


def inner_width(shape: Shape) -> int:
    """Of one direction: the whole width, or half of it for each of two."""
    if shape.causal:
        return shape.width
    if shape.width % 2:
        raise ValueError(
            f"two directions share `dims.width` ({shape.width}), so it must be even; valid: {shape.width + 1}"
        )
    return shape.width // 2


def directions(shape: Shape, gates: int) -> nn.ModuleList:
    inner = inner_width(shape)
    return nn.ModuleList(Direction(shape.width, inner, gates) for _ in range(1 if shape.causal else 2))


def recurred(run: Pass, x: Tensor, parts: nn.ModuleList, names: tuple[str, ...], ctx: Context) -> Tensor:
    """(B, T, D) -> (B, T, D): `run` over these rows, behind the rows of the state, which has `names`."""
    weights = [weight for part in parts for weight in part.weights]  # type: ignore[union-attr]  # all are directions
    size = (len(parts), x.shape[0], weights[1].shape[1])
    if ctx.state is None:
        before: Hidden = tuple(x.new_zeros(size) for _ in names)
    else:
        before = tuple(ctx.state[name].to(x.dtype).unsqueeze(0) for name in names)
    if ctx.rows.documents is None:
        y, after = run(x, None, before, weights)
    else:
        y, after = _by_document(run, x, before, weights, ctx)
    if ctx.state is not None:
        ctx.state.update({name: part[0] for name, part in zip(names, after, strict=True)})
    return y


class Sequences(NamedTuple):
    """The documents of a batch as sequences, the longest first."""

    rows: Tensor  # (M,) which of the B * T rows comes when, in packed order
    sizes: Tensor  # how many sequences have a first row, a second row … (on the CPU)
    owner: Tensor  # (N,) the row of the batch that each is in
    document: Tensor  # (N,)


def sequences(documents: Tensor) -> Sequences:
    """(B, T) -> its documents, one sequence each, without padding."""
    rows = awake(documents).flatten().nonzero().squeeze(1)
    if not len(rows):  # torch knows no empty pack; what padding comes to is nobody's business
        rows = torch.zeros(1, dtype=torch.long, device=documents.device)
    names = torch.stack([rows // documents.shape[1], documents.flatten()[rows]])
    found, which, lengths = names.unique(dim=1, return_inverse=True, return_counts=True)
    together = which.argsort(stable=True)
    first = (lengths.cumsum(0) - lengths)[which[together]]
    step = torch.empty_like(which)
    step[together] = torch.arange(len(rows), device=rows.device) - first
    longest = lengths.argsort(descending=True, stable=True)
    rank = torch.empty_like(longest)
    rank[longest] = torch.arange(len(longest), device=rows.device)
    packing = (step * len(longest) + rank[which]).argsort()
    return Sequences(rows[packing], step.bincount().cpu(), found[0, longest], found[1, longest])


def _by_document(run: Pass, x: Tensor, before: Hidden, weights: list[Tensor], ctx: Context) -> tuple[Tensor, Hidden]:
    """A pass over each document by itself; what the state holds goes on in the document that it ended in."""
    assert ctx.rows.documents is not None, "asked only where rows say which document they are of"
    documents = ctx.rows.documents.expand(x.shape[0], -1)
    found = sequences(documents)
    goes_on = torch.zeros_like(found.owner, dtype=torch.bool)
    if ctx.state is not None:
        goes_on = found.document == running(ctx).expand(x.shape[0], -1)[found.owner, 0]
    begins = tuple(part[:, found.owner] * goes_on.unsqueeze(-1) for part in before)
    packed, ended = run(x.flatten(0, 1)[found.rows], found.sizes, begins, weights)
    y = packed.new_zeros(x.shape[0] * x.shape[1], packed.shape[-1]).index_copy(0, found.rows, packed)
    return y.unflatten(0, x.shape[:2]), _behind_the_last(found, documents, before, ended)


def _behind_the_last(found: Sequences, documents: Tensor, before: Hidden, ended: Hidden) -> Hidden:
    """The state of each row of the batch behind its last document; as it was, where all was padding."""
    last = filled(documents)[:, -1]
    batch = torch.arange(len(last), device=last.device)
    mine = (found.owner == batch.unsqueeze(-1)) & (found.document == last.unsqueeze(-1)) & awake(last).unsqueeze(-1)
    any_of, which = mine.any(1).unsqueeze(-1), mine.to(torch.uint8).argmax(1)
    return tuple(torch.where(any_of, new[:, which], old) for new, old in zip(ended, before, strict=True))
