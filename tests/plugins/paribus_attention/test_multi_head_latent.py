"""Multi-head latent attention, compared with loops over the paper's formulas and with DeepSeek-V3."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from paribus import PADDING, Load, Memory, ScoreOptions, Shape, Stack, TokenLayout
from paribus.kernels import KERNELS
from paribus_attention import attention

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a latent for queries": {"q_rank": 5, "kv_rank": 7},
    "wide": {"rotary": 6, "kv_rank": 3},
    "norms": {"scores": ScoreOptions(qk_norm=True)},
    "values": {"scores": ScoreOptions(value_residual=True)},
    "sinks": {"scores": ScoreOptions(sinks=True)},
    "a cap": {"scores": ScoreOptions(soft_cap=1.5)},
}
kinds = pytest.mark.parametrize("kind", KINDS)
sides = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])


def attention_of(stack: Stack) -> Any:
    module: Any = stack.layers[0]
    return module.attention


def ramp(length: int, start: int = 0) -> TokenLayout:
    return TokenLayout(torch.arange(start, start + length).unsqueeze(0))


def rotate(row: list[float], position: int) -> list[float]:
    """Rotate a vector by RoPE, a pair of channels at a time."""
    half = len(row) // 2
    angles = [position * 10_000.0 ** (-2 * i / len(row)) for i in range(half)]
    rotated_first = [row[i] * math.cos(a) - row[i + half] * math.sin(a) for i, a in enumerate(angles)]
    return rotated_first + [row[i + half] * math.cos(a) + row[i] * math.sin(a) for i, a in enumerate(angles)]


def rms_norm(row: list[float], gains: list[float]) -> list[float]:
    root = math.sqrt(sum(value * value for value in row) / len(row) + 1e-6)
    return [gain * value / root for gain, value in zip(gains, row, strict=True)]


def loop_reference(module: Any, x: Tensor, causal: bool, position_name: str) -> Tensor:
    """Attend over one sequence, (T, 12), token by token and head by head."""
    heads, length = module.heads, len(x)
    columns = heads.rotary_width
    query_latents = x
    if heads.q_rank is not None:
        gains = heads.q_norm.weight.tolist()
        query_latents = torch.tensor([rms_norm(row, gains) for row in heads.q_down(x).tolist()], dtype=x.dtype)
    q = heads.q(query_latents).view(length, 4, 4 + columns).tolist()
    gains = heads.kv_norm.weight.tolist()
    latents = torch.tensor([rms_norm(row, gains) for row in heads.kv_down(x).tolist()], dtype=x.dtype)
    k, v = (side(latents).view(length, 4, 4).tolist() for side in (heads.k, heads.v))
    shared = heads.turned(x).tolist()
    place_of = rotate if position_name == "rope" else (lambda row, _: row)
    mixed = torch.zeros(length, 4, 4, dtype=x.dtype)
    for i in range(length):
        for h in range(4):
            query = q[i][h][:4] + place_of(q[i][h][4:], i)
            powers = []
            for j in range(i + 1 if causal else length):
                key = k[j][h] + place_of(shared[j], j)
                powers.append(math.exp(sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(4 + columns)))
            for j, power in enumerate(powers):
                mixed[i, h] += power / sum(powers) * torch.tensor(v[j][h], dtype=x.dtype)
    output: Tensor = heads.o(mixed.flatten(1))
    return output


@sides
@pytest.mark.parametrize("position_name", ["none", "rope"])
@pytest.mark.parametrize("kind", ["plain", "a latent for queries", "wide"])
def test_matches_a_loop_implementation(
    kind: str, causal: bool, position_name: str, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack("mla", position_name, causal=causal, **KINDS[kind])
    x = randn(2, 6, 12)
    expected = torch.stack([loop_reference(attention_of(stack), item, causal, position_name) for item in x])
    assert torch.allclose(stack(x, ramp(6)).hidden, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("q_rank", [None, 5])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_matches_deepseek(q_rank: int | None, kernel: str, build_stack: BuildStack, randn: Randn) -> None:
    config = DeepseekV3Config(
        hidden_size=12,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=q_rank,
        kv_lora_rank=7,
        qk_rope_head_dim=6,
        qk_nope_head_dim=4,
        v_head_dim=4,
        attention_bias=False,
        attn_implementation=kernel,
    )
    torch.manual_seed(1)
    reference: Any = DeepseekV3Attention(config, layer_idx=0).double().eval()
    stack = build_stack("mla", "rope", kv_rank=7, q_rank=q_rank, rotary=6, scores=ScoreOptions(bias=False))
    separate = torch.tensor([0, 2, 4, 1, 3, 5])  # DeepSeek pairs adjacent channels, Paribus channels i and i + R/2
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.normal_(std=0.4)
        up = reference.kv_b_proj.weight.view(4, 8, 7)
        query_latents = (reference.q_proj if q_rank is None else reference.q_b_proj).weight.view(4, 10, -1)
        heads = attention_of(stack).heads
        heads.q.weight.copy_(query_latents[:, torch.cat([torch.arange(4), 4 + separate])].flatten(0, 1))
        if q_rank is not None:
            heads.q_down.weight.copy_(reference.q_a_proj.weight)
            heads.q_norm.weight.copy_(reference.q_a_layernorm.weight)
        heads.kv_down.weight.copy_(reference.kv_a_proj_with_mqa.weight[:7])
        heads.turned.weight.copy_(reference.kv_a_proj_with_mqa.weight[7:][separate])
        heads.kv_norm.weight.copy_(reference.kv_a_layernorm.weight)
        heads.k.weight.copy_(up[:, :4].flatten(0, 1))
        heads.v.weight.copy_(up[:, 4:].flatten(0, 1))
        heads.o.weight.copy_(reference.o_proj.weight)
    x, positions = randn(2, 9, 12), torch.arange(9, dtype=torch.float64)
    angles = positions.view(1, 9, 1) * 10_000.0 ** (-torch.arange(0, 6, 2, dtype=torch.float64) / 6)
    both = torch.cat([angles, angles], dim=-1)
    hidden = torch.full((9, 9), -torch.inf, dtype=torch.float64).triu(1).view(1, 1, 9, 9)
    expected = reference(x, (both.cos(), both.sin()), hidden)[0]
    # DeepSeek normalises latents in float32
    assert torch.allclose(stack(x, ramp(9)).hidden, expected, rtol=0, atol=2e-6)


@kinds
@pytest.mark.parametrize("position_name", ["none", "rope", "alibi"])
def test_decoding_with_latents_matches_one_pass(
    kind: str, position_name: str, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack("mla", position_name, layers=2, residual=True, **KINDS[kind])
    x, padding_length = randn(2, 20, 12), torch.tensor([[0], [4]])
    left_padded = TokenLayout(torch.arange(20) - padding_length, (torch.arange(20) < padding_length).long().neg())
    for layout in (ramp(20), left_padded):
        full_output = stack(x, layout).hidden
        states, start, chunks = stack.start(2, 20), 0, []
        for size in (1, 1, 5, 1, 7, 1, 1, 3):
            part = layout.span(start, start + size)
            chunks.append(stack(x[:, start : start + size], part, states=states).hidden)
            start += size
        assert torch.allclose(torch.cat(chunks, 1), full_output, rtol=0, atol=1e-9)


@kinds
@sides
def test_all_kernels_agree(kind: str, causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    options = {"position_name": "rope", "causal": causal, "layers": 2, **KINDS[kind]}
    fast, readable = build_stack("mla", **options), build_stack("mla", **options, kernels=KERNELS[-1:])
    x = randn(2, 12, 12)
    documents = torch.tensor([[0] * 12, [0] * 5 + [1] * 4 + [PADDING] * 3])
    for layout in (ramp(12), TokenLayout(torch.arange(12).unsqueeze(0), documents)):
        assert torch.allclose(fast(x, layout).hidden, readable(x, layout).hidden, rtol=0, atol=1e-9)


def test_the_cache_has_latents_and_rotary_keys_only(build_stack: BuildStack, randn: Randn) -> None:
    module = attention()["mla"](Shape(12, 4, 4, 64, 11, 1), kv_rank=7, rotary=6)
    state = module.start(3, 20, torch.zeros((), dtype=torch.float64))
    assert {name: tuple(saved.shape) for name, saved in state.items()} == {
        "latents": (3, 20, 7),
        "rotary_keys": (3, 1, 20, 6),
    }
    assert module.cost(Load(1, 20)).state == 20 * (7 + 6)
    memory = Memory(randn(2, 7, 10, seed=1), ramp(7))
    stack = build_stack("mla", memory_width=10, layers=2, residual=True)
    x, states = randn(2, 6, 12), stack.start(2, 6)
    parts = [stack(x[:, i : i + 1], ramp(1, i), memory, states).hidden for i in range(6)]
    assert torch.allclose(torch.cat(parts, 1), stack(x, ramp(6), memory).hidden, rtol=0, atol=1e-9)
    assert states.layers[0]["cross"]["latents"].shape == (2, 7, 16)


@pytest.mark.parametrize("kind", ["plain", "a latent for queries", "wide", "norms"])
@pytest.mark.parametrize(("queries", "past"), [(20, 0), (3, 17), (1, 19)])
def test_cost_matches_the_torch_flop_counter(
    kind: str, queries: int, past: int, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack("mla", "rope", **KINDS[kind])
    states = stack.start(1, 20)
    if past:
        stack(randn(1, past, 12), ramp(past), states=states)
    with FlopCounterMode(display=False) as counter:
        # the flop counter counts all kernels of a CPU
        eager = build_stack("mla", "rope", kernels=KERNELS[-1:], **KINDS[kind])
        eager(randn(1, queries, 12), ramp(queries, past), states=states)
    assert attention_of(stack).cost(Load(queries, 20)).flops == counter.get_total_flops()


@kinds
@pytest.mark.parametrize("mode", ["autocast", "bfloat16"])
def test_half_precision_is_close(kind: str, mode: str, build_stack: BuildStack, randn: Randn) -> None:
    x = randn(2, 12, 12)
    exact = build_stack("mla", "rope", residual=True, **KINDS[kind])(x, ramp(12)).hidden
    dtype = torch.float32 if mode == "autocast" else torch.bfloat16
    small = build_stack("mla", "rope", residual=True, **KINDS[kind]).to(dtype)
    states = small.start(2, 12)
    with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
        prompt_output = small(x[:, :11].to(dtype), ramp(11), states=states).hidden
        step_output = small(x[:, 11:].to(dtype), ramp(1, 11), states=states).hidden
    near = torch.cat([prompt_output, step_output], dim=1)
    assert near.dtype == dtype
    assert ((near - exact).norm() / exact.norm()).item() < 2**-4


def test_an_odd_rotary_width_is_rejected() -> None:
    with pytest.raises(ValueError, match="got 3; valid: 2, 4"):
        attention()["mla"](Shape(12, 4, 4, 64, 11, 1), rotary=3)
