"""Dilated windows, compared with a loop, with the plain window and with Longformer."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from paribus import PADDING, Heads, Load, Shape, Stack, TokenLayout
from paribus.kernels import KERNELS
from paribus.parts.context import AttentionPlan, KernelRequest
from paribus.parts.visibility import with_order
from paribus_attention.dilated import Dilated
from paribus_attention.restricted import Restricted

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
sides = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
OPTIONS = [(2, 3, 0), (3, 2, 2), (2, 1, 1), (1, 5, 3), (4, 4, 0)]
SLOPES = [2.0 ** (-8 * (head + 1) / 4) for head in range(4)]


def in_window(i: int, j: int, window: int, dilation: int, start: int) -> bool:
    """Return whether position j is in the window of position i, apart from causality."""
    return min(i, j) < start or (abs(i - j) < window * dilation and (i - j) % dilation == 0)


def loop_reference(
    heads: Heads, x: Tensor, positions: Tensor, documents: Tensor, causal: bool, options: tuple[int, int, int]
) -> Tensor:
    """Attend over tokens (B, T, 12) with linear biases, one token at a time."""
    q, k, v = heads.queries(x), heads.keys(x), heads.values(x)
    output = torch.zeros_like(q)
    for b in range(x.shape[0]):
        position_ids, document_ids = positions[b].tolist(), documents[b].tolist()
        for h in range(4):
            g = h // (4 // heads.kv_heads)
            for i in range(x.shape[1]):
                visible = [
                    j
                    for j in range(x.shape[1])
                    if document_ids[j] == document_ids[i] >= 0 and in_window(position_ids[i], position_ids[j], *options)
                ]
                visible = [j for j in visible if j <= i or not causal]
                if visible:
                    away = torch.tensor([abs(position_ids[i] - position_ids[j]) for j in visible], dtype=x.dtype)
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
        "left": TokenLayout(ramp - padding_length, nothing.masked_fill(ramp < padding_length, PADDING)),
        "packed": TokenLayout(ramp - starts, separate),
    }[kind]


@pytest.mark.covering
@sides
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "right", "left", "packed"])
@pytest.mark.parametrize("length", [11, 70])
def test_matches_a_loop_implementation(
    causal: bool, options: tuple[int, int, int], kind: str, length: int, build_stack: BuildStack, randn: Randn
) -> None:
    window, dilation, global_tokens = options
    stack = build_stack(
        "dilated", "alibi", causal=causal, window=window, dilation=dilation, global_tokens=global_tokens, kv_heads=2
    )
    x, layout = randn(2, length, 12), layout_of(kind, length)
    assert layout.documents is not None
    module: Any = stack.layers[0]
    expected = loop_reference(module.attention.heads, x, layout.positions, layout.documents, causal, options)
    assert torch.allclose(stack(x, layout).hidden, expected, rtol=0, atol=1e-9)


@sides
@pytest.mark.parametrize("position_name", ["none", "rope", "alibi"])
@pytest.mark.parametrize("options", [(4, 2, 0), (4, 2, 3)], ids=str)
def test_all_kernels_agree(
    causal: bool, position_name: str, options: tuple[int, int, int], build_stack: BuildStack, randn: Randn
) -> None:
    keywords = dict(zip(("window", "dilation", "global_tokens"), options, strict=True))
    fast, readable = (
        build_stack("dilated", position_name, causal=causal, layers=2, kernels=kernels, **keywords)
        for kernels in (KERNELS, KERNELS[-1:])
    )
    assert fast.kernels(queries=150) == ("gathered", "gathered")
    x = randn(2, 150, 12)
    for kind in ("plain", "right"):
        outputs = [stack(x, layout_of(kind, 150)).hidden for stack in (fast, readable)]
        assert torch.allclose(outputs[0], outputs[1], rtol=0, atol=1e-9)
        grads = [
            torch.autograd.grad(output.sin().sum(), list(stack.parameters()))
            for output, stack in zip(outputs, (fast, readable), strict=True)
        ]
        for actual, reference in zip(*grads, strict=True):
            assert torch.allclose(actual, reference, rtol=0, atol=1e-8)


@sides
@pytest.mark.parametrize("dilation", [1, 3])
def test_a_window_has_the_declared_steps_and_gaps(
    causal: bool, dilation: int, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack("dilated", causal=causal, window=4, dilation=dilation, residual=True)
    x, layout = randn(1, 120, 12), TokenLayout(torch.arange(120).unsqueeze(0))
    original = stack(x, layout).hidden
    for touched in (0, 50, 119):
        changed_input = x.clone()
        changed_input[0, touched] += 1
        changed = (stack(changed_input, layout).hidden != original).any(-1)[0].nonzero().flatten().tolist()
        steps = range(0 if causal else -3, 4)
        reached = [touched + step * dilation for step in steps]
        assert changed == [row for row in reached if 0 <= row < 120]


@sides
def test_dilation_1_is_a_sliding_window(causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    x, layout = randn(2, 100, 12), layout_of("left", 100)
    plain, gaps = (
        build_stack(name, "rope", causal=causal, window=5, **options)
        for name, options in (("restricted", {}), ("dilated", {"dilation": 1}))
    )
    assert torch.allclose(plain(x, layout).hidden, gaps(x, layout).hidden, rtol=0, atol=1e-9)


@pytest.mark.parametrize("padded", [0, 9])
def test_matches_longformer(padded: int, randn: Randn) -> None:
    """Longformer's global projections are set to the local ones; Paribus has no separate ones."""
    longformer = pytest.importorskip("transformers.models.longformer.modeling_longformer")
    config = longformer.LongformerConfig(
        hidden_size=12, num_attention_heads=3, attention_window=[16], attention_probs_dropout_prob=0.0
    )
    reference = longformer.LongformerSelfAttention(config, 0).double().eval()
    actual = Dilated(Shape(12, 3, 4, 96, 11, 1), window=9, dilation=1, global_tokens=3).double()
    for name in ("query", "key", "value"):
        local = getattr(reference, name)
        getattr(reference, f"{name}_global").load_state_dict(local.state_dict())
        getattr(actual.heads, name[0]).load_state_dict(local.state_dict())
    x, ramp = randn(2, 96, 12), torch.arange(96)
    mask = torch.zeros(2, 96, dtype=x.dtype)
    mask[:, :3], mask[1, 96 - padded :] = 10000.0, -10000.0
    context = reference(x, mask, mask < 0, mask > 0, True)[0]
    visibility, kernel = actual.attend.visibility, KERNELS[1]
    documents = torch.where(mask < 0, PADDING, 0)
    layout = TokenLayout(ramp.expand(2, -1), documents, None, ramp.expand(2, -1))
    plan = AttentionPlan(
        kernel, KernelRequest(visibility), 0.5, None, with_order(layout), with_order(layout), None, None, None
    )
    plan = plan._replace(kernel_data=kernel.prepare(plan, None, 3, x))
    mixed = kernel(actual.heads.queries(x), actual.heads.keys(x), actual.heads.values(x), plan, None, 0.0)
    part = mixed.transpose(1, 2).flatten(2)
    assert torch.allclose(part[mask >= 0], context[mask >= 0], rtol=0, atol=1e-6)  # its softmax is in float32


def torch_flops(stack: Stack, layout: int) -> int:
    x = torch.zeros(1, layout, 12, device="meta", dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        stack.to("meta")(x, TokenLayout(torch.arange(layout, device="meta").unsqueeze(0)))
    return int(counter.get_total_flops())


@sides
def test_cost_counts_visible_keys_and_the_kernel_computes_little_more(causal: bool, build_stack: BuildStack) -> None:
    shape = Shape(12, 4, 4, 4096, 11, 1, causal=causal)
    module = Dilated(shape, window=9, dilation=4, global_tokens=2)
    plain = Restricted(shape, window=9)
    additional_flops = module.cost(Load(2000, 2000)).flops - plain.cost(Load(2000, 2000)).flops
    span = 9 if causal else 17
    full_output = 0 if causal else 2 * (2000 - span - 2)  # the two global tokens
    assert additional_flops == 4 * 16 * (2000 * 2 + full_output)
    stack = build_stack("dilated", causal=causal, window=9, dilation=4, global_tokens=2)
    short, long = torch_flops(stack, 1024), torch_flops(stack, 4096)
    assert long <= 4.01 * short
    assert module.cost(Load(4096, 4096)).flops <= long <= 3 * module.cost(Load(4096, 4096)).flops
