"""Attention in a window from paribus and other libraries: the part between the projections, with equal outputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from benchmarks.attending import Job, mixer, runnable
from benchmarks.gpu_setup import registry
from benchmarks.peer_models import missing_line
from torch import Tensor

HEADS, HEAD_WIDTH = 8, 64
SIZES = ((2048, 64), (4096, 64), (8192, 64), (4096, 256))  # tokens, and window to each side
REFERENCE = "paribus, `restricted`"
FLEX = "torch, FlexAttention, compiled"
TOLERANCE = 1e-4
Mixing = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(rows: int, window: int) -> Mixing:
    """Return our attention with its plan, which the layers of a model share, within each call."""
    return mixer(registry(), Job("restricted", {"window": window + 1}, rows, False, "pass"), heads=HEADS)


def local_attention(rows: int, window: int) -> Mixing:
    from local_attention import LocalAttention

    attention: Mixing = LocalAttention(window, exact_windowsize=True, use_rotary_pos_emb=False)
    return attention


def longformer(rows: int, window: int) -> Mixing:
    """Return Longformer's sliding chunks, without its projections, padding and global tokens."""
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    width = HEADS * HEAD_WIDTH
    config = LongformerConfig(hidden_size=width, num_attention_heads=HEADS, attention_window=[2 * window])
    module = LongformerSelfAttention(config, layer_id=0)

    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q / math.sqrt(HEAD_WIDTH), k, v))
        weights = module._sliding_chunks_query_key_matmul(q, k, window).softmax(dim=-1)
        mixture: Tensor = module._sliding_chunks_matmul_attn_probs_value(weights, v, window)
        return mixture.transpose(1, 2)

    return mixed


def flex(rows: int, window: int) -> Mixing:
    """Return FlexAttention with a mask of blocks that is made once; on a CPU, it has no backward pass."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() <= window

    torch.compiler.reset()
    mask = create_block_mask(sees, None, None, rows, rows, device="cpu")
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


PEERS = {"local-attention": local_attention, "Hugging Face, Longformer's sliding chunks": longformer, FLEX: flex}


def contestants(rows: int, window: int, *, backward: bool) -> tuple[dict[str, Callable[[], object]], list[str]]:
    """Return what is run by label, ours first, and a line about each attention that is left out."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, rows, HEAD_WIDTH) for _ in range(3))
    attention = ours(rows, window)
    runs, notes = {REFERENCE: runnable(attention, q, k, v, backward=backward)}, []
    with torch.no_grad():
        expected = attention(q, k, v)
    for label, build in PEERS.items():
        if backward and build is flex:
            notes.append(f"{label}: not measured, because it has no backward pass on a CPU")
            continue
        try:
            peer = build(rows, window)
            with torch.no_grad():
                error = float((peer(q, k, v) - expected).abs().max())
        except ModuleNotFoundError as missing:
            notes.append(missing_line(label, missing))
            continue
        except torch._dynamo.exc.TorchDynamoException as failure:  # without a C++ compiler
            notes.append(f"{label}: not measured, because it does not compile here: {str(failure).splitlines()[0]}")
            continue
        if error > TOLERANCE:
            raise SystemExit(f"{label} differs from {REFERENCE} by {error:.2g}")
        runs[label] = runnable(peer, q, k, v, backward=backward)
    return runs, notes
