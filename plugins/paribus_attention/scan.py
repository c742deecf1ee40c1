"""Linear attention as running sums over chunks of tokens, O(T).

If query i weighs key j by f_i · g_j, then sum_j (f_i · g_j) v_j = f_i · (sum_j g_j v_j'), and the sum on the right is
carried from chunk to chunk. Within a chunk the C x C weights are computed by one matrix product.

F is the width of f and g, R the number of query heads that share a key/value head, N the number of chunks of C tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paribus import Context, State, fill_padding, is_content, previous_document

CHUNK: Final = 64


Project = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Project tokens (B, S, D) to features (B, G, 1, S, F) and values (B, G, 1, S, K)."""


class FeatureMaps(NamedTuple):
    """Features of queries and keys, and values."""

    f: Tensor  # (B, G, R, T, F)
    g: Tensor  # (B, G, 1, S, F)
    v: Tensor  # (B, G, 1, S, K)


class Sums(NamedTuple):
    """Sums of g v' and of g over tokens, in float32 or wider."""

    products: Tensor  # (B, G, 1, ..., F, K)
    features: Tensor  # (B, G, 1, ..., F)

    def read(self, f: Tensor) -> Sums:
        """Return the weighted sums (..., T, K) and the weights' sums (..., T) of queries (..., T, F)."""
        products, features = (side.to(f.dtype) for side in self)
        return Sums(f @ products, (f * features.unsqueeze(-2)).sum(-1))


def weighted_average(f: Tensor, x: Tensor, project: Project, ctx: Context, *, causal: bool) -> Tensor:
    """Average the values that each query sees, weighted by f · g: (B, G, R, T, F), (B, T, D) -> (B, G, R, T, K).

    Weights are divided by their sum. `project` computes keys and values from these tokens, or from the memory.
    """
    if ctx.memory is not None:
        result = _memory_sums(f, project, ctx)
    else:
        sides = _project(f, x, project, ctx.layout.documents)
        if causal:
            result = _causal_sums(sides, ctx)
        elif ctx.layout.documents is None:
            result = _key_sums(sides).read(f)
        else:
            result, _ = _chunked_sums(sides, fill_padding(ctx.layout.documents), causal=False)
    return result.products / result.features.clamp_min(_MIN_SUM).unsqueeze(-1)


_MIN_SUM: Final = 1e-6  # the output is 0 where a query sees no key or all its weights are 0


def _project(f: Tensor, source: Tensor, project: Project, documents: Tensor | None) -> FeatureMaps:
    """Project keys and values, with the features of padding set to 0."""
    g, v = project(source)
    return FeatureMaps(f, g if documents is None else g * is_content(documents)[:, None, None, :, None], v)


def _key_sums(sides: FeatureMaps) -> Sums:
    """Sum over all keys."""
    wide = _accumulation_dtype(sides.v.dtype)
    return Sums((sides.g.transpose(-1, -2) @ sides.v).to(wide), sides.g.sum(-2, dtype=wide))


def _accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def empty_sums(size: tuple[int, int, int, int], like: Tensor) -> State:
    """Return the decoding state for (B, G, F, K), whose size does not depend on the length."""
    wide = _accumulation_dtype(like.dtype)
    return {"products": like.new_zeros(size, dtype=wide), "features": like.new_zeros(size[:3], dtype=wide)}


def scan_flops(tokens: int, heads: int, groups: int, features: int, width: int) -> int:
    """Count the operations of a causal pass: weights and values within chunks, chunk sums, and one read a token."""
    size, chunks = _chunk_layout(tokens)
    within_chunk = 2 * size * size * (features + width)
    return chunks * (heads * (within_chunk + 2 * size * features * width) + groups * 2 * size * features * width)


def _chunk_layout(tokens: int) -> tuple[int, int]:
    size = min(CHUNK, tokens)
    return size, -(-tokens // size)


def _memory_sums(f: Tensor, project: Project, ctx: Context) -> Sums:
    """Read the tokens of the memory in each query's document; the sums of a whole memory are cached."""
    assert ctx.memory is not None, "called only for cross-attention"
    q_documents, k_documents = ctx.layout.documents, ctx.key_layout.documents
    if ctx.state:
        return Sums(ctx.state["products"].unsqueeze(2), ctx.state["features"].unsqueeze(2)).read(f)
    sides = _project(f, ctx.memory, project, k_documents)
    if q_documents is not None and k_documents is not None:
        return _sums_by_document(sides, q_documents, k_documents)
    sums = _key_sums(sides)
    if ctx.state is not None:
        ctx.state.update(products=sums.products.squeeze(2), features=sums.features.squeeze(2))
    return sums.read(f)


def _sums_by_document(sides: FeatureMaps, q_documents: Tensor, k_documents: Tensor) -> Sums:
    """Read the memory by document: sort queries and keys by document and run over them in chunks."""
    batch, queries, keys = sides.v.shape[0], sides.f.shape[-2], sides.v.shape[-2]
    documents = torch.cat([q_documents.expand(batch, -1), k_documents.expand(batch, -1)], dim=-1)
    ordered_documents, order = documents.sort(dim=-1, stable=True)
    both = FeatureMaps(
        _reorder(functional.pad(sides.f, (0, 0, 0, keys)), order),
        _reorder(functional.pad(sides.g, (0, 0, queries, 0)), order),
        _reorder(functional.pad(sides.v, (0, 0, queries, 0)), order),
    )
    result, _ = _chunked_sums(both, ordered_documents, causal=False)
    inverse = order.argsort(-1)[:, :queries]
    return Sums(_reorder(result.products, inverse), _reorder(result.features.unsqueeze(-1), inverse).squeeze(-1))


def _reorder(x: Tensor, order: Tensor) -> Tensor:
    """(B, G, R, S, K), (B, T) -> (B, G, R, T, K)."""
    index = order[:, None, None, :, None].expand(-1, *x.shape[1:3], -1, x.shape[-1])
    return x.gather(-2, index)


def _causal_sums(sides: FeatureMaps, ctx: Context) -> Sums:
    """Return the running sums that each query reads, starting from the decoding state, and update that state."""
    documents, state = ctx.layout.documents, ctx.state
    initial = None if state is None else Sums(state["products"].unsqueeze(2), state["features"].unsqueeze(2))
    if documents is not None:
        initial_document = previous_document(ctx)
        past_and_new = torch.cat([initial_document.expand(documents.shape[0], -1), documents], dim=-1)
        contiguous = fill_padding(past_and_new)[:, 1:]
        result, final = _chunked_sums(
            sides, contiguous, causal=True, initial=initial, initial_document=initial_document
        )
    else:
        result, final = _chunked_sums(sides, None, causal=True, initial=initial)
    if state is not None:
        state.update(products=final.products.squeeze(2), features=final.features.squeeze(2))
    return result


def _chunked_sums(
    sides: FeatureMaps,
    documents: Tensor | None,
    *,
    causal: bool,
    initial: Sums | None = None,
    initial_document: Tensor | None = None,
) -> tuple[Sums, Sums]:
    """Return what each query reads from its document, and the sums after the last token.

    `documents` (B|1, T) are contiguous runs; the tokens of `initial` ended in `initial_document`.
    """
    length = sides.f.shape[-2]
    size, count = _chunk_layout(length)
    padding = size * count - length
    f, g, v = (functional.pad(side, (0, 0, 0, padding)).unflatten(-2, (count, size)) for side in sides)  # (…, N, C, F)
    chunk_documents = None
    if documents is not None:
        padding_documents = documents[:, -1:].expand(-1, padding)
        chunk_documents = torch.cat([documents, padding_documents], dim=-1).unflatten(-1, (count, size))  # (B|1, N, C)
    weights = f @ g.transpose(-1, -2)  # (B, G, R, N, C, C)
    if causal:
        weights = weights.tril()
    if chunk_documents is not None:
        weights = weights * (chunk_documents.unsqueeze(-1) == chunk_documents.unsqueeze(-2))[:, None, None]
    result = Sums(weights @ v, weights.sum(-1))
    carried, final = _carry_sums(FeatureMaps(f, g, v), chunk_documents, initial, initial_document)
    result = _add(result, carried)
    if not causal:  # add the following tokens, by a pass from the other end
        flipped = FeatureMaps(*(side.flip(-2, -3) for side in (f, g, v)))
        following, _ = _carry_sums(
            flipped, None if chunk_documents is None else chunk_documents.flip(-1, -2), None, None
        )
        result = _add(result, Sums(following.products.flip(-2, -3), following.features.flip(-1, -2)))
    return Sums(result.products.flatten(-3, -2)[..., :length, :], result.features.flatten(-2)[..., :length]), final


def _add(left_sums: Sums, right_sums: Sums) -> Sums:
    return Sums(left_sums.products + right_sums.products, left_sums.features + right_sums.features)


def _carry_sums(
    sides: FeatureMaps, chunk_documents: Tensor | None, initial: Sums | None, initial_document: Tensor | None
) -> tuple[Sums, Sums]:
    """Return what each chunk (…, N, C, F) reads from the chunks before it, and the sums after the last chunk."""
    f, g, v = sides
    if chunk_documents is None:
        chunk_sums = _key_sums(sides)
        carried, final = _running_sums(chunk_sums, initial)
        return carried.read(f), final
    # (B|1, N): the document at the end of each chunk, whose sums are carried on
    end_documents = chunk_documents[..., -1]
    start_documents = torch.cat(
        [chunk_documents[:, :1, 0] if initial_document is None else initial_document, end_documents[:, :-1]], dim=-1
    )
    chunk_sums = _key_sums(FeatureMaps(f, g * _broadcast_mask(chunk_documents == end_documents.unsqueeze(-1), g), v))
    carried, final = _running_sums(chunk_sums, initial, start_documents == end_documents)
    return carried.read(f * _broadcast_mask(chunk_documents == start_documents.unsqueeze(-1), f)), final


def _broadcast_mask(mask: Tensor, like: Tensor) -> Tensor:
    """Convert a mask (B|1, N, C) to numbers (B|1, 1, 1, N, C, 1)."""
    return mask[:, None, None, :, :, None].to(like.dtype)


def _running_sums(chunk_sums: Sums, initial: Sums | None, continues: Tensor | None = None) -> tuple[Sums, Sums]:
    """Accumulate chunk sums (B, G, 1, N, F, K): the sums before each chunk, and those after the last.

    `continues` (B|1, N) is False where a chunk ends in another document than it began in; sums restart there. Chunks
    are added one by one, not computed as differences of a cumulative sum, which would cancel small terms.
    """
    running = initial or Sums(
        torch.zeros_like(chunk_sums.products[:, :, :, 0]), torch.zeros_like(chunk_sums.features[:, :, :, 0])
    )
    carried: list[Sums] = []
    for chunk in range(chunk_sums.products.shape[3]):
        carried.append(running)
        retained = running
        if continues is not None:
            keep = continues[:, chunk, None, None, None].to(running.features.dtype)
            retained = Sums(running.products * keep.unsqueeze(-1), running.features * keep)
        running = _add(retained, Sums(chunk_sums.products[:, :, :, chunk], chunk_sums.features[:, :, :, chunk]))
    return Sums(*(torch.stack(sides, dim=3) for sides in zip(*carried, strict=True))), running
