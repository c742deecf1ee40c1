"""Sums over all rows that a row may see, in O(T): what attention comes to where its weights are products.

If query i weighs key j by f_i · g_j, then sum_j (f_i · g_j) v_j = f_i · (sum_j g_j v_j'), and the sum on the right is
kept from chunk to chunk. Within a chunk the weights are made as they stand: C x C of them, as one matrix product.

F is how wide f and g are, R how many query heads share a key/value head, N how many chunks of C rows there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paribus import Context, State
from paribus_attention.documents import awake, filled, running

CHUNK: Final = 64


Project = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Rows (B, S, D) as features and values: (B, G, 1, S, F), (B, G, 1, S, K)."""


class Sides(NamedTuple):
    """Queries and keys as features, and values."""

    f: Tensor  # (B, G, R, T, F)
    g: Tensor  # (B, G, 1, S, F)
    v: Tensor  # (B, G, 1, S, K)


class Sums(NamedTuple):
    """Over rows: of g v', and of g, in a type that sums well."""

    products: Tensor  # (B, G, 1, ..., F, K)
    features: Tensor  # (B, G, 1, ..., F)

    def read(self, f: Tensor) -> Sums:
        """What queries (..., T, F) make of it: (..., T, K) and (..., T)."""
        products, features = (side.to(f.dtype) for side in self)
        return Sums(f @ products, (f * features.unsqueeze(-2)).sum(-1))


def averaged(f: Tensor, x: Tensor, project: Project, ctx: Context, *, causal: bool) -> Tensor:
    """(B, G, R, T, F), (B, T, D) -> (B, G, R, T, K): the values that each row sees, weighed by f · g.

    Weights are divided by their sum. Keys and values are what `project` makes of these rows, or of the memory.
    """
    if ctx.memory is not None:
        read = _of_memory(f, project, ctx)
    else:
        sides = _sides(f, x, project, ctx.rows.documents)
        if causal:
            read = _so_far(sides, ctx)
        elif ctx.rows.documents is None:
            read = _summed(sides).read(f)
        else:
            read, _ = _in_chunks(sides, filled(ctx.rows.documents), causal=False)
    return read.products / read.features.clamp_min(_LEAST).unsqueeze(-1)


_LEAST: Final = 1e-6  # a row that sees nothing, or weighs all that it sees by 0, is 0


def _sides(f: Tensor, source: Tensor, project: Project, documents: Tensor | None) -> Sides:
    """Keys that are padding are 0, so that nobody reads them."""
    g, v = project(source)
    return Sides(f, g if documents is None else g * awake(documents)[:, None, None, :, None], v)


def _summed(sides: Sides) -> Sums:
    """Of all keys."""
    wide = _wider(sides.v.dtype)
    return Sums((sides.g.transpose(-1, -2) @ sides.v).to(wide), sides.g.sum(-2, dtype=wide))


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def empty_sums(size: tuple[int, int, int, int], like: Tensor) -> State:
    """Decoding state for (B, G, F, K): it does not grow."""
    wide = _wider(like.dtype)
    return {"products": like.new_zeros(size, dtype=wide), "features": like.new_zeros(size[:3], dtype=wide)}


def scan_flops(rows: int, heads: int, groups: int, features: int, width: int) -> int:
    """What a causal pass does: weights and values within chunks, sums of each, and one reading of sums a row."""
    size, chunks = _chunks(rows)
    near = 2 * size * size * (features + width)
    return chunks * (heads * (near + 2 * size * features * width) + groups * 2 * size * features * width)


def _chunks(rows: int) -> tuple[int, int]:
    size = min(CHUNK, rows)
    return size, -(-rows // size)


def _of_memory(f: Tensor, project: Project, ctx: Context) -> Sums:
    """Each query reads the rows of the memory in its own document; the sums of a whole memory are made once."""
    assert ctx.memory is not None, "asked only where there is one"
    asks, given = ctx.rows.documents, ctx.keys.documents
    if ctx.state:
        return Sums(ctx.state["products"].unsqueeze(2), ctx.state["features"].unsqueeze(2)).read(f)
    sides = _sides(f, ctx.memory, project, given)
    if asks is not None and given is not None:
        return _by_document(sides, asks, given)
    made = _summed(sides)
    if ctx.state is not None:
        ctx.state.update(products=made.products.squeeze(2), features=made.features.squeeze(2))
    return made.read(f)


def _by_document(sides: Sides, asks: Tensor, given: Tensor) -> Sums:
    """Rows of both sides in one line, sorted by document: then what a query sees lies around it."""
    batch, queries, keys = sides.v.shape[0], sides.f.shape[-2], sides.v.shape[-2]
    documents = torch.cat([asks.expand(batch, -1), given.expand(batch, -1)], dim=-1)
    line, order = documents.sort(dim=-1, stable=True)
    both = Sides(
        _sorted(functional.pad(sides.f, (0, 0, 0, keys)), order),
        _sorted(functional.pad(sides.g, (0, 0, queries, 0)), order),
        _sorted(functional.pad(sides.v, (0, 0, queries, 0)), order),
    )
    read, _ = _in_chunks(both, line, causal=False)
    back = order.argsort(-1)[:, :queries]
    return Sums(_sorted(read.products, back), _sorted(read.features.unsqueeze(-1), back).squeeze(-1))


def _sorted(x: Tensor, order: Tensor) -> Tensor:
    """(B, G, R, S, K), (B, T) -> (B, G, R, T, K)."""
    index = order[:, None, None, :, None].expand(-1, *x.shape[1:3], -1, x.shape[-1])
    return x.gather(-2, index)


def _so_far(sides: Sides, ctx: Context) -> Sums:
    """What each row and those before it come to, behind the rows that the state holds."""
    documents, state = ctx.rows.documents, ctx.state
    before = None if state is None else Sums(state["products"].unsqueeze(2), state["features"].unsqueeze(2))
    if documents is not None:
        last = running(ctx)
        line = filled(torch.cat([last.expand(documents.shape[0], -1), documents], dim=-1))[:, 1:]
        read, after = _in_chunks(sides, line, causal=True, before=before, last=last)
    else:
        read, after = _in_chunks(sides, None, causal=True, before=before)
    if state is not None:
        state.update(products=after.products.squeeze(2), features=after.features.squeeze(2))
    return read


def _in_chunks(
    sides: Sides, documents: Tensor | None, *, causal: bool, before: Sums | None = None, last: Tensor | None = None
) -> tuple[Sums, Sums]:
    """What each query reads of the rows in its document, and the sums behind the last row.

    `documents` (B|1, T) are unbroken runs; the rows behind `before` ended in the document `last`.
    """
    rows = sides.f.shape[-2]
    size, count = _chunks(rows)
    spare = size * count - rows
    f, g, v = (functional.pad(side, (0, 0, 0, spare)).unflatten(-2, (count, size)) for side in sides)  # (…, N, C, F)
    runs = None
    if documents is not None:
        filling = documents[:, -1:].expand(-1, spare)
        runs = torch.cat([documents, filling], dim=-1).unflatten(-1, (count, size))  # (B|1, N, C)
    near = f @ g.transpose(-1, -2)  # (B, G, R, N, C, C)
    if causal:
        near = near.tril()
    if runs is not None:
        near = near * (runs.unsqueeze(-1) == runs.unsqueeze(-2))[:, None, None]
    read = Sums(near @ v, near.sum(-1))
    entering, after = _carried(Sides(f, g, v), runs, before, last)
    read = _added(read, entering)
    if not causal:  # and what comes behind, from the other end
        turned = Sides(*(side.flip(-2, -3) for side in (f, g, v)))
        behind, _ = _carried(turned, None if runs is None else runs.flip(-1, -2), None, None)
        read = _added(read, Sums(behind.products.flip(-2, -3), behind.features.flip(-1, -2)))
    return Sums(read.products.flatten(-3, -2)[..., :rows, :], read.features.flatten(-2)[..., :rows]), after


def _added(one: Sums, other: Sums) -> Sums:
    return Sums(one.products + other.products, one.features + other.features)


def _carried(sides: Sides, runs: Tensor | None, before: Sums | None, last: Tensor | None) -> tuple[Sums, Sums]:
    """What the rows of each chunk (…, N, C, F) read of the chunks before it, and the sums behind the last chunk."""
    f, g, v = sides
    if runs is None:
        made = _summed(sides)
        entering, after = _running_sums(made, before)
        return entering.read(f), after
    ends = runs[..., -1]  # (B|1, N): the document that each chunk ends in, whose sums it hands on
    begins = torch.cat([runs[:, :1, 0] if last is None else last, ends[:, :-1]], dim=-1)
    made = _summed(Sides(f, g * _spread(runs == ends.unsqueeze(-1), g), v))
    entering, after = _running_sums(made, before, begins == ends)
    return entering.read(f * _spread(runs == begins.unsqueeze(-1), f)), after


def _spread(where: Tensor, like: Tensor) -> Tensor:
    """(B|1, N, C) bool -> (B|1, 1, 1, N, C, 1), as numbers."""
    return where[:, None, None, :, :, None].to(like.dtype)


def _running_sums(made: Sums, before: Sums | None, goes_on: Tensor | None = None) -> tuple[Sums, Sums]:
    """Of the sums of chunks (B, G, 1, N, F, K), those before each chunk, and those behind the last.

    Where a chunk ends in another document than it began in, (B|1, N) `goes_on` is False and sums begin anew: so they
    are added one chunk after the other, and never taken as differences, which would lose the small among the large.
    """
    now = before or Sums(torch.zeros_like(made.products[:, :, :, 0]), torch.zeros_like(made.features[:, :, :, 0]))
    entering: list[Sums] = []
    for chunk in range(made.products.shape[3]):
        entering.append(now)
        kept = now
        if goes_on is not None:
            stays = goes_on[:, chunk, None, None, None].to(now.features.dtype)
            kept = Sums(now.products * stays.unsqueeze(-1), now.features * stays)
        now = _added(kept, Sums(made.products[:, :, :, chunk], made.features[:, :, :, chunk]))
    return Sums(*(torch.stack(sides, dim=3) for sides in zip(*entering, strict=True))), now
