"""Linear recurrence of a matrix state, in chunks of tokens.

It is the core of retention, gated linear attention, Mamba-2 and delta rules. In each head, a token multiplies the state
by its decay a_t and adds an outer product:

    S_t = diag(a_t) S_{t-1} + b_t k_t (v_t - k_t^T diag(a_t) S_{t-1})^T,    y_t = q_t^T S_t

The term that is subtracted is the delta rule; without it, S_t = diag(a_t) S_{t-1} + b_t k_t v_t^T. All of a chunk of 64
tokens is computed by matrix products ("Gated Linear Attention", Yang et al. 2023; "Parallelizing Linear Transformers
with the Delta Rule", Yang et al. 2024), and the state is carried from chunk to chunk.

N is the number of chunks of C tokens, K the width of queries and keys, V that of values, and E that of the decay: K, or
1 if all channels of a head have the same.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paribus import AttentionTraits, Context, State
from paribus_attention.decayed_products import decayed_products, product_flops, running_sum, unit_lower_inverse
from paribus_attention.documents import fill_padding, is_content, previous_document

CHUNK: Final = 64

RECURRENCE_TRAITS: Final[AttentionTraits] = {
    "position_hooks": [],
    "causal": True,
    "bidirectional": False,
    "cross": False,
    "documents": True,
    "order": False,
    "residual": True,
    "weights": False,
    "decodes": True,
}
"""Traits of an attention that is a recurrence of a matrix state."""


class Tokens(NamedTuple):
    """Inputs of the recurrence. Heads that are equal in all of them may be given once: H may be 1."""

    q: Tensor  # (B, H, T, K)
    k: Tensor  # (B, H, T, K)
    v: Tensor  # (B, H, T, V)
    log_decay: Tensor | None = None  # (B, H, T, E): log a, at most 0; None: no decay
    b: Tensor | None = None  # (B, H, T, 1): step size of a write; None: 1


class Documents(NamedTuple):
    """Which tokens of each chunk share a document; all are broadcast over heads."""

    same: Tensor  # (B, 1, N, C, C) bool: two tokens are of the same document
    reads: Tensor  # (B, 1, N, C, 1) bool: the token continues the document of the state before the chunk
    is_kept: Tensor  # (B, 1, N, C, 1) bool: the token is of the last document of the chunk
    continues: Tensor  # (B, 1, N, 1, 1) bool: the chunk ends in the document of the state before it


def recur(tokens: Tokens, ctx: Context, *, delta: bool, writes: int = 1) -> Tensor:
    """Run the recurrence from the decoding state `ctx.state["state"]`, and update that state: (B, H, T, V).

    Each document starts from a state of 0, and padding leaves the state unchanged. States, decays and products are
    computed in float32 or wider. `writes`: number of consecutive tokens that each token of the layout stands for.
    """
    dtype = tokens.v.dtype
    wide = torch.promote_types(dtype, torch.float32)
    documents, initial_document, layout = None, None, ctx.layout.documents
    with _without_autocast(tokens.v.device):
        tokens = Tokens(*(None if part is None else part.to(wide) for part in tokens))  # type: ignore[arg-type]  # q, k and v are tensors
        if layout is not None:
            layout = layout if writes == 1 else layout.repeat_interleave(writes, dim=-1)
            content = is_content(layout)[:, None, :, None]
            decay = None if tokens.log_decay is None else tokens.log_decay * content
            tokens = tokens._replace(k=tokens.k * content, log_decay=decay)
            initial_document = previous_document(ctx)
            past_and_new = torch.cat([initial_document.expand(layout.shape[0], -1), layout], dim=-1)
            documents = fill_padding(past_and_new)[:, 1:]
        initial = None if ctx.state is None else ctx.state["state"]
        y, final = run_chunks(tokens, initial, documents, initial_document, delta=delta)
    if ctx.state is not None:
        ctx.state["state"] = final
    return y.to(dtype)


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    # The meta device, on which FLOPs are counted, has no autocast.
    available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()


def empty_state(batch: int, heads: int, key_width: int, value_width: int, like: Tensor) -> State:
    """Return the decoding state, whose size does not depend on the length."""
    wide = torch.promote_types(like.dtype, torch.float32)
    return {"state": like.new_zeros(batch, heads, key_width, value_width, dtype=wide)}


def recurrence_flops(
    tokens: int, heads: int, key_width: int, value_width: int, *, delta: bool, vector_decay: bool, groups: int = 0
) -> int:
    """Count the operations of a pass. `groups`: number of different queries and keys, if not one for each head."""
    size, count = _chunk_layout(tokens)
    scores = (groups or heads) * product_flops(size, key_width, vector_decay=vector_decay, sides=2 if delta else 1)
    mixed = 2 * size * (size + 2 * key_width) * value_width  # values within chunks, chunk sums, reads of the state
    if delta:
        mixed += 2 * size * (size * (key_width + value_width) + key_width * value_width)  # what a chunk erases
        mixed += 2 * size * (size * size - 1) // 3  # the inverse
    return count * (scores + heads * mixed)


def _chunk_layout(tokens: int) -> tuple[int, int]:
    """Return the number of tokens of a chunk, a power of two, and the number of chunks."""
    size = min(CHUNK, 1 << (tokens - 1).bit_length())
    return size, -(-tokens // size)


def run_chunks(
    tokens: Tokens,
    initial: Tensor | None = None,
    documents: Tensor | None = None,
    initial_document: Tensor | None = None,
    *,
    delta: bool,
) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, H, T, V), and the state (B, H, K, V) after the last token.

    `documents` (B|1, T) are contiguous runs; `initial` is a state of the document `initial_document`, (B|1, 1).
    """
    length = tokens.v.shape[-2]
    size, count = _chunk_layout(length)
    q, k, v, log_decay, b = (None if part is None else _chunked(part, size, count) for part in tokens)
    assert q is not None, "only decays and step sizes may be missing"
    assert k is not None, "only decays and step sizes may be missing"
    assert v is not None, "only decays and step sizes may be missing"
    marks = None if documents is None else _documents(documents, initial_document, size, count)
    decay = v.new_zeros(1, 1, count, size, 1) if log_decay is None else running_sum(log_decay)  # since the chunk began
    scores = decayed_products([q, k] if delta else [q], k, decay, None if marks is None else marks.same)
    last = decay[..., -1:, :]
    read_factors, write_factors, kept = decay.exp(), (last - decay).exp(), last.exp().transpose(-1, -2)
    if marks is not None:
        read_factors, write_factors = read_factors * marks.reads, write_factors * marks.is_kept
        kept = kept * marks.continues
    reads, writes = q * read_factors, (k * write_factors).transpose(-1, -2)  # (…, C, K), (…, K, C)
    if initial is None:
        heads = max(part.shape[1] for part in (k, v, decay))
        initial = v.new_zeros(v.shape[0], heads, k.shape[-1], v.shape[-1])
    if delta:
        inverse = unit_lower_inverse((scores[1] if b is None else scores[1] * b).tril(-1))
        inverse = inverse if b is None else inverse * b.transpose(-1, -2)
        values, states, final = _carry_delta(kept, writes, inverse @ v, inverse @ (k * read_factors), initial)
    else:
        values = v if b is None else v * b
        states, final = _carry(kept, writes @ values, initial)
    y = scores[0] @ values + reads @ states
    return y.flatten(-3, -2)[..., :length, :], final


def _chunked(x: Tensor, size: int, count: int) -> Tensor:
    """Split tokens into chunks, with zeros at the end: (B, H, T, K) -> (B, H, N, C, K)."""
    padded = functional.pad(x, (0, 0, 0, size * count - x.shape[-2])) if x.shape[-2] % size else x
    chunks: Tensor = padded.contiguous().unflatten(-2, (count, size))  # contiguous: several products read it
    return chunks


def _documents(documents: Tensor, initial_document: Tensor | None, size: int, count: int) -> Documents:
    rest = documents[:, -1:].expand(-1, size * count - documents.shape[-1])
    chunks = torch.cat([documents, rest], dim=-1).unflatten(-1, (count, size))[:, None]  # (B|1, 1, N, C)
    first = documents[:, :1] if initial_document is None else initial_document.expand(documents.shape[0], -1)
    ends = chunks[..., -1:]
    starts = torch.cat([first[:, None, :, None], ends[..., :-1, :]], dim=-2)
    return Documents(
        chunks.unsqueeze(-1) == chunks.unsqueeze(-2),
        (chunks == starts).unsqueeze(-1),
        (chunks == ends).unsqueeze(-1),
        (starts == ends).unsqueeze(-1),
    )


def _carry(kept: Tensor, terms: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states before each chunk (B, H, N, K, V), and after the last: a chunk maps S to kept * S + term."""
    states: list[Tensor] = []
    # Not by an index: the gradient of one chunk would be a tensor of all.
    for factor, term in zip(kept.unbind(2), terms.unbind(2), strict=True):
        states.append(state)
        state = torch.addcmul(term, factor, state)
    return torch.stack(states, dim=2), state


def _carry_delta(
    kept: Tensor, writes: Tensor, values: Tensor, erased: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values that each token writes (B, H, N, C, V), the states before each chunk, and after the last.

    A chunk writes its values minus those that the state has for its keys: S to kept * S + writes (values - erased S).
    """
    written: list[Tensor] = []
    states: list[Tensor] = []
    chunks = (part.unbind(2) for part in (kept, writes, values, erased))
    for factor, to_state, value, from_state in zip(*chunks, strict=True):
        states.append(state)
        written.append(value - from_state @ state)
        state = torch.addcmul(to_state @ written[-1], factor, state)
    return torch.stack(written, dim=2), torch.stack(states, dim=2), state
