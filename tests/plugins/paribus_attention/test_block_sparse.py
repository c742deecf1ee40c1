"""Block-sparse attention: random blocks, a loop implementation, and Big Bird of transformers."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from paribus import PADDING, BlockPattern, Heads, Load, Shape, Stack, TokenLayout, Visibility
from paribus.kernels import KERNELS
from paribus.parts.context import AttentionPlan, KernelRequest
from paribus.parts.visibility import with_order
from paribus_attention.block_sparse import BlockSparse, draw_blocks

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
sides = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
SHAPE = Shape(12, 4, 4, 256, 11, 1, layer=0)
SLOPES = [2.0 ** (-8 * (head + 1) / 4) for head in range(4)]


def blocks_of(shape: Shape, **options: Any) -> BlockPattern:
    blocks = BlockSparse(shape, **options).attend.visibility.blocks
    assert blocks is not None
    return blocks


@sides
@pytest.mark.parametrize(("near", "start", "limit"), [(1, 2, 3), (0, 0, 5), (3, 1, 0), (2, 9, 40)])
def test_random_blocks_are_not_visible_otherwise(causal: bool, near: int, start: int, limit: int) -> None:
    random_blocks = draw_blocks(30, limit, neighbours=near, global_blocks=start, causal=causal, key=7)
    assert len(random_blocks) == 30
    for block, chosen in enumerate(random_blocks):
        unseen = {
            block_index for block_index in range(start, block if causal else 30) if abs(block_index - block) > near
        }
        unseen = set() if block < start else unseen
        assert set(chosen) <= unseen
        assert len(set(chosen)) == len(chosen) == min(limit, len(unseen))


def test_random_blocks_are_uniform() -> None:
    counts = torch.zeros(12)
    for key in range(4000):
        for changed in draw_blocks(12, 2, neighbours=1, global_blocks=1, causal=False, key=key)[5]:
            counts[changed] += 1
    unseen = [1, 2, 3, 7, 8, 9, 10, 11]
    assert counts.sum() == counts[unseen].sum() == 8000
    assert float(((counts[unseen] - 1000) ** 2 / 1000).sum()) < 29.9  # chi squared, 7 degrees, p 1e-4


def test_random_blocks_depend_on_seed_layer_and_length() -> None:
    plain = blocks_of(SHAPE, block_size=4)
    assert plain == blocks_of(SHAPE, block_size=4)
    assert plain == blocks_of(replace(SHAPE, width=24, heads=2, dropout=0.1), block_size=4)
    variants = [
        blocks_of(SHAPE, block_size=4, seed=1),
        blocks_of(replace(SHAPE, layer=1), block_size=4),
        blocks_of(replace(SHAPE, layer=None), block_size=4),
        blocks_of(replace(SHAPE, length=252), block_size=4),
    ]
    assert len({plain, *variants}) == 5
    assert blocks_of(replace(SHAPE, length=9), block_size=4).random_blocks == ((), (), ())


def loop_reference(heads: Heads, x: Tensor, layout: TokenLayout, visibility: Visibility) -> Tensor:
    """Attend over tokens (B, T, 12) with linear biases, one token at a time."""
    assert layout.documents is not None
    assert visibility.blocks is not None
    size, near, random_blocks = visibility.blocks
    q, k, v = heads.queries(x), heads.keys(x), heads.values(x)
    output = torch.zeros_like(q)
    for b in range(x.shape[0]):
        positions, documents = layout.positions[b].tolist(), layout.documents[b].tolist()
        for i in range(x.shape[1]):
            query_block = positions[i] // size
            visible = []
            for j in range(x.shape[1]):
                key_block = positions[j] // size
                scored = (
                    abs(query_block - key_block) <= near
                    or key_block in random_blocks[query_block]
                    or min(positions[i], positions[j]) < visibility.global_tokens
                )
                if documents[i] == documents[j] >= 0 and scored and (j <= i or not visibility.causal):
                    visible.append(j)
            if not visible:
                continue
            away = torch.tensor([abs(positions[i] - positions[j]) for j in visible], dtype=x.dtype)
            for h in range(4):
                g = h // (4 // heads.kv_heads)
                scores = k[b, g, visible] @ q[b, h, i] / math.sqrt(4) - SLOPES[h] * away
                output[b, h, i] = scores.softmax(0) @ v[b, g, visible]
    return heads.merge(output)


def layout_of(kind: str, length: int) -> TokenLayout:
    ramp, nothing = torch.arange(length).expand(2, -1), torch.zeros(2, length, dtype=torch.long)
    padding_length = torch.tensor([[0], [length // 3]])
    separate = torch.stack([ramp[0] * 2 // length, ramp[0] * 3 // length])
    starts = (separate.unsqueeze(-1) == separate.unsqueeze(-2)).int().argmax(-1)
    return {
        "plain": TokenLayout(ramp, nothing, None, ramp),
        "right": TokenLayout(ramp, nothing.masked_fill(ramp >= length - padding_length, PADDING), None, ramp),
        "apart": TokenLayout(ramp, separate, None, ramp),
        "left": TokenLayout(ramp - padding_length, nothing.masked_fill(ramp < padding_length, PADDING)),
        "packed": TokenLayout(ramp - starts, separate),
    }[kind]


@pytest.mark.covering
@sides
@pytest.mark.parametrize("kind", ["plain", "right", "apart", "left", "packed"])
@pytest.mark.parametrize("length", [11, 83])
def test_matches_a_loop_implementation(
    causal: bool, kind: str, length: int, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(
        "block-sparse", "alibi", causal=causal, block_size=3, global_blocks=1, random_blocks=2, kv_heads=2
    )
    module: Any = stack.layers[0]
    x, layout = randn(2, length, 12), layout_of(kind, length)
    expected = loop_reference(module.attention.heads, x, layout, module.attention.attend.visibility)
    assert torch.allclose(stack(x, layout).hidden, expected, rtol=0, atol=1e-9)


@sides
@pytest.mark.parametrize("position_name", ["none", "rope", "alibi"])
def test_all_kernels_agree(causal: bool, position_name: str, build_stack: BuildStack, randn: Randn) -> None:
    fast, readable = (
        build_stack("block-sparse", position_name, causal=causal, layers=2, block_size=4, kernels=kernels)
        for kernels in (KERNELS, KERNELS[-1:])
    )
    assert fast.kernels(queries=150) == ("gathered", "gathered")
    x = randn(2, 150, 12)
    for kind in ("plain", "right", "apart"):
        outputs = [stack(x, layout_of(kind, 150)).hidden for stack in (fast, readable)]
        assert torch.allclose(outputs[0], outputs[1], rtol=0, atol=1e-9)
        grads = [
            torch.autograd.grad(output.sin().sum(), list(stack.parameters()))
            for output, stack in zip(outputs, (fast, readable), strict=True)
        ]
        for actual, reference in zip(*grads, strict=True):
            assert torch.allclose(actual, reference, rtol=0, atol=1e-8)


@pytest.mark.parametrize("padded", [0, 11])
def test_matches_big_bird_with_the_same_blocks(padded: int, randn: Randn) -> None:
    """Big Bird's last block is global too: here it is one more random block of every block."""
    bigbird = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")
    config = bigbird.BigBirdConfig(hidden_size=12, num_attention_heads=3, block_size=8, num_random_blocks=2)
    reference = bigbird.BigBirdBlockSparseAttention(config).double().eval()
    count, size = 12, 8
    drawn_blocks = draw_blocks(count - 1, 2, neighbours=1, global_blocks=1, causal=False, key=3)[1:]
    reference._bigbird_block_rand_mask_with_head = lambda **_: [torch.tensor(drawn_blocks).numpy()] * 3
    every = tuple(range(count))
    blocks = BlockPattern(size, 1, (every, *((*remaining, count - 1) for remaining in drawn_blocks), every))
    x, ramp = randn(2, count * size, 12), torch.arange(count * size).expand(2, -1)
    attention_mask = torch.ones(2, count * size, dtype=x.dtype)
    attention_mask[1, count * size - padded :] = 0
    blocked, band, start, end = bigbird.BigBirdModel.create_masks_for_block_sparse_attn(attention_mask, size)
    context, _ = reference(x, band, start, end, blocked, blocked)
    q, k, v = (
        side(x).unflatten(-1, (3, 4)).transpose(1, 2) for side in (reference.query, reference.key, reference.value)
    )
    layout = with_order(TokenLayout(ramp, torch.where(attention_mask > 0, 0, PADDING), None, ramp))
    request = KernelRequest(Visibility(global_tokens=size, blocks=blocks))
    serving = [kernel for kernel in KERNELS if kernel.serves(request)]
    assert {kernel.name for kernel in serving} == {"gathered", "sdpa", "eager"}
    for kernel in serving:
        plan = AttentionPlan(kernel, request, 0.5, None, layout, layout, None, None, None)
        plan = plan._replace(kernel_data=kernel.prepare(plan, None, 3, x))
        mixed = kernel(q, k, v, plan, None, 0.0).transpose(1, 2).flatten(2)
        assert torch.allclose(mixed[attention_mask > 0], context[attention_mask > 0], rtol=0, atol=1e-9)


@sides
def test_cost_matches_the_torch_flop_counter(causal: bool, build_stack: BuildStack) -> None:
    stack = build_stack("block-sparse", causal=causal, block_size=4).to("meta")
    module: Any = stack.layers[0]
    for layout in (128, 256):
        x = torch.zeros(1, layout, 12, device="meta", dtype=torch.float64)
        with FlopCounterMode(display=False) as counter:
            stack(x, TokenLayout(torch.arange(layout, device="meta").unsqueeze(0)))
        assert module.attention.cost(Load(layout, layout)).flops == counter.get_total_flops()
    span = 4 * (1 + (1 if causal else 2) + 3 + 2)
    scored = module.attention.cost(Load(256, 256)).flops - 4 * 256 * 12 * 16 * 2
    assert scored == 4 * 16 * (256 * span if causal else 8 * 256 + 248 * span)
