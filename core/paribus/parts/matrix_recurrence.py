"""Linear recurrence of a matrix state, in chunks of tokens.

It is the core of retention, gated linear attention, Mamba-2 and delta rules. In each head, a token multiplies the state
by its decay a_t and adds an outer product:

    S_t = diag(a_t) S_{t-1} + b_t k_t (v_t - k_t^T diag(a_t) S_{t-1})^T,    y_t = q_t^T S_t

The term that is subtracted is the delta rule; without it, S_t = diag(a_t) S_{t-1} + b_t k_t v_t^T. All of a chunk of 32
tokens is computed by matrix products ("Gated Linear Attention", Yang et al. 2023; "Parallelizing Linear Transformers
with the Delta Rule", Yang et al. 2024), and the state is carried from chunk to chunk.

N is the number of chunks of C tokens, K the width of queries and keys, V that of values, and E that of the decay: K, or
1 if all channels of a head have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus.parts.chunked_loss import at_least_float32
from paribus.parts.context import Context, State
from paribus.parts.decayed_products import (
    decayed_products,
    inverse_flops,
    product_flops,
    running_sum,
    unit_lower_inverse,
)
from paribus.parts.documents import fill_padding, is_content, previous_document
from paribus.parts.fla_kernels import IS_INSTALLED, run_kernel, serves
from paribus.parts.shape import Cost, Load

CHUNK: Final = 32


@final
class MatrixRecurrence(nn.Module):
    """Linear recurrence of a matrix state in each head, without parameters: O(T), with decoding and packed documents.

    S_t = diag(a_t) S_{t-1} + b_t k_t v_tᵀ and y_t = S_tᵀ q_t. With `delta`, what the decayed state has for k_t is
    subtracted from v_t first. Each document starts from a state of 0, and padding leaves the state unchanged. States,
    decays and products are computed in float32 or wider; on CUDA with `fla-core`, its kernels compute products in half
    precision, if the inputs are and each sequence is one document.

    Args:
        heads: number of states.
        key_width: K, the width of queries and keys.
        value_width: V, the width of values.
        delta: use the delta rule.
        channel_decay: each channel of a key has a decay of its own.
        writes: W, the number of keys, values and step sizes of a token, which are written one after another. The state
            decays before the first, and is read after the last.
        groups: number of different queries and keys, if not one for each head. Only the cost depends on it.
    """

    def __init__(
        self,
        heads: int,
        key_width: int,
        value_width: int,
        *,
        delta: bool = False,
        channel_decay: bool = False,
        writes: int = 1,
        groups: int | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.key_width, self.value_width = heads, key_width, value_width
        self.delta, self.channel_decay, self.writes, self.groups = delta, channel_decay, writes, groups or heads

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        ctx: Context,
        *,
        log_decay: Tensor | None = None,
        step_size: Tensor | None = None,
    ) -> Tensor:
        """Return y (B, H, T, V), from the decoding state `ctx.state["state"]`, which is updated.

        Args:
            q: queries (B, H, T, K). Heads that are equal in an input may be given once: H may be 1.
            k: keys (B, H, T * W, K).
            v: values (B, H, T * W, V).
            ctx: the layout of the tokens, and the decoding state.
            log_decay: log a (B, H, T, K) or (B, H, T, 1), at most 0. None: no decay.
            step_size: b (B, H, T * W, 1). None: 1.
        """
        return recur(Inputs(q, k, v, log_decay, step_size), ctx, delta=self.delta, writes=self.writes)

    def start(self, batch: int, like: Tensor) -> State:
        """Return the decoding state, whose size does not depend on the length."""
        return {"state": at_least_float32(like.new_zeros(batch, self.heads, self.key_width, self.value_width))}

    def cost(self, load: Load) -> Cost:
        """Return the cost of one sequence."""
        tokens, count = _chunk_layout(load.queries, self.writes)
        size, key_width, value_width = tokens * self.writes, self.key_width, self.value_width
        pairs = product_flops(tokens, size, key_width, vector_decay=self.channel_decay)
        mixed = 2 * (tokens * (size + key_width) + size * key_width) * value_width  # outputs, and sums of chunks
        if self.delta:  # what a chunk erases, and the inverse
            pairs += product_flops(size, size, key_width, vector_decay=self.channel_decay)
            mixed += 2 * size * (size + key_width) * value_width + inverse_flops(size)
        state = self.heads * self.key_width * self.value_width
        return Cost(count * (self.groups * pairs + self.heads * mixed), state=state)


def uses_kernel(module: nn.Module, device: torch.device) -> bool:
    """Return True if the module is a recurrence that may run a kernel of `flash-linear-attention` on the device."""
    return device.type == "cuda" and isinstance(module, MatrixRecurrence) and module.writes == 1 and IS_INSTALLED


class Inputs(NamedTuple):
    """Inputs of the recurrence. Heads that are equal in an input may be given once: H may be 1."""

    q: Tensor  # (B, H, T, K)
    k: Tensor  # (B, H, T * W, K)
    v: Tensor  # (B, H, T * W, V)
    log_decay: Tensor | None = None  # (B, H, T, E): log a, at most 0; None: no decay
    b: Tensor | None = None  # (B, H, T * W, 1): step size of a write; None: 1


class Documents(NamedTuple):
    """Which writes of each chunk share a document; all are broadcast over heads."""

    same: Tensor  # (B, 1, N, C, C) bool: two writes are of the same document
    reads: Tensor  # (B, 1, N, C, 1) bool: the write continues the document of the state before the chunk
    is_kept: Tensor  # (B, 1, N, C, 1) bool: the write is of the last document of the chunk
    continues: Tensor  # (B, 1, N, 1, 1) bool: the chunk ends in the document of the state before it


def recur(tokens: Inputs, ctx: Context, *, delta: bool, writes: int) -> Tensor:
    """Run the recurrence from the decoding state `ctx.state["state"]`, and update that state: (B, H, T, V)."""
    layout, dtype = ctx.layout.documents, tokens.v.dtype
    if serves(tokens, writes=writes, has_state=ctx.state is not None, has_documents=layout is not None):
        y: Tensor = run_kernel(tokens, delta=delta)
        return y
    wide = torch.promote_types(dtype, torch.float32)
    documents, initial_document = None, None
    with _without_autocast(tokens.v.device):
        tokens = Inputs(*(None if part is None else part.to(wide) for part in tokens))  # type: ignore[arg-type]  # q, k and v are tensors
        if layout is not None:
            content = is_content(layout)[:, None, :, None]
            decay = None if tokens.log_decay is None else tokens.log_decay * content
            tokens = tokens._replace(k=tokens.k * content.repeat_interleave(writes, dim=-2), log_decay=decay)
            initial_document = previous_document(ctx)
            past_and_new = torch.cat([initial_document.expand(layout.shape[0], -1), layout], dim=-1)
            documents = fill_padding(past_and_new)[:, 1:].repeat_interleave(writes, dim=-1)
        initial = None if ctx.state is None else ctx.state["state"]
        y, final = run_chunks(tokens, initial, documents, initial_document, delta=delta, writes=writes)
    if ctx.state is not None:
        ctx.state["state"] = final
    return y.to(dtype)


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    # The meta device, on which FLOPs are counted, has no autocast.
    available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()


def _chunk_layout(tokens: int, writes: int) -> tuple[int, int]:
    """Return the number of tokens of a chunk, and the number of chunks."""
    size = min(max(1, CHUNK // writes), 1 << (tokens - 1).bit_length())
    return size, -(-tokens // size)


def run_chunks(
    tokens: Inputs,
    initial: Tensor | None = None,
    documents: Tensor | None = None,
    initial_document: Tensor | None = None,
    *,
    delta: bool,
    writes: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, H, T, V), and the state (B, H, K, V) after the last token.

    `documents` (B|1, T * W) are contiguous runs; `initial` is a state of the document `initial_document`, (B|1, 1).
    """
    length = tokens.q.shape[-2]
    size, count = _chunk_layout(length, writes)
    q = _chunked(tokens.q, size, count)
    k, v, b = (None if x is None else _chunked(x, size * writes, count) for x in (tokens.k, tokens.v, tokens.b))
    assert k is not None, "only decays and step sizes may be missing"
    assert v is not None, "only decays and step sizes may be missing"
    marks = None if documents is None else _documents(documents, initial_document, size * writes, count)
    decay, same = _running_decay(tokens.log_decay, size, count, writes), None if marks is None else marks.same
    factors = _factors(decay, marks)
    to_state = _scaled(k, factors.writes).transpose(-1, -2)  # (…, K, C)
    values, states = v if b is None else v * b, _initial_state(initial, k, v, decay)
    if delta:
        erased = k if b is None else k * b
        scores, lower = decayed_products([q, erased], k, decay, same)
        inverse = unit_lower_inverse(lower)
        values, states, final = _carry_delta(
            factors.kept, to_state, inverse, values, _scaled(erased, factors.reads), states
        )
    else:
        (scores,) = decayed_products([q], k, decay, same)
        states, final = _carry(factors.kept, to_state @ values, states)
    reads = None if factors.reads is None else factors.reads[..., writes - 1 :: writes, :]
    y = scores @ values + _scaled(q, reads) @ states
    return y.flatten(-3, -2)[..., :length, :], final


class Factors(NamedTuple):
    """Decays of a chunk times marks of its documents; None: 1."""

    reads: Tensor | None  # (…, C, E): of the state before the chunk, when a write reads it
    writes: Tensor | None  # (…, C, E): of a write, at the end of the chunk
    kept: Tensor | None  # (…, E, 1): of the state before the chunk, at the end of the chunk


def _factors(decay: Tensor | None, marks: Documents | None) -> Factors:
    if decay is None:
        return Factors(None, None, None) if marks is None else Factors(marks.reads, marks.is_kept, marks.continues)
    last = decay[..., -1:, :]
    reads, writes, kept = decay.exp(), (last - decay).exp(), last.exp().transpose(-1, -2)
    if marks is None:
        return Factors(reads, writes, kept)
    return Factors(reads * marks.reads, writes * marks.is_kept, kept * marks.continues)


def _scaled(x: Tensor, factor: Tensor | None) -> Tensor:
    return x if factor is None else x * factor


def _running_decay(log_decay: Tensor | None, size: int, count: int, writes: int) -> Tensor | None:
    """Sum logarithms of decays from the start of each chunk up to each write: (B, H, T, E) -> (B, H, N, C, E)."""
    if log_decay is None:
        return None
    sums = running_sum(_chunked(log_decay, size, count))
    return sums if writes == 1 else sums.repeat_interleave(writes, dim=-2)


def _initial_state(initial: Tensor | None, k: Tensor, v: Tensor, decay: Tensor | None) -> Tensor:
    if initial is not None:
        return initial
    heads = max(part.shape[1] for part in (k, v, decay) if part is not None)
    return v.new_zeros(v.shape[0], heads, k.shape[-1], v.shape[-1])


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


def _carry(kept: Tensor | None, terms: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states before each chunk (B, H, N, K, V), and after the last: a chunk maps S to kept * S + term."""
    states: list[Tensor] = []
    # Not by an index: the gradient of one chunk would be a tensor of all.
    for factor, term in zip(_by_chunk(kept, terms), terms.unbind(2), strict=True):
        states.append(state)
        state = _added(term, factor, state)
    return torch.stack(states, dim=2), state


def _carry_delta(
    kept: Tensor | None, to_state: Tensor, inverse: Tensor, values: Tensor, erased: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values that are written (B, H, N, C, V), the states before each chunk, and after the last.

    Each write of a chunk erases what the state and the writes before it have for its key. A chunk writes
    U = inverse (values - erased S), and maps S to kept * S + to_state U.
    """
    written: list[Tensor] = []
    states: list[Tensor] = []
    chunks = (part.unbind(2) for part in (to_state, inverse, values, erased))
    for factor, keys, solve, value, from_state in zip(_by_chunk(kept, values), *chunks, strict=True):
        states.append(state)
        written.append(solve @ (value - from_state @ state))
        state = _added(keys @ written[-1], factor, state)
    return torch.stack(written, dim=2), torch.stack(states, dim=2), state


def _by_chunk(factors: Tensor | None, chunks: Tensor) -> Sequence[Tensor | None]:
    return [None] * chunks.shape[2] if factors is None else factors.unbind(2)


def _added(term: Tensor, factor: Tensor | None, state: Tensor) -> Tensor:
    return term + state if factor is None else torch.addcmul(term, factor, state)
