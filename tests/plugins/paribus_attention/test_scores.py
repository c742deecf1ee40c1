"""Options of softmax attention, from query/key norms to gates, with every position."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, GptOssConfig, PreTrainedConfig, Qwen3Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from paribus import PADDING, Pair, Position, ScoreOptions, Stack, TokenLayout
from paribus.kernels import KERNELS

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
PLAIN: dict[str, dict[str, Any]] = {
    "mha": {"name": "mha"},
    "gqa": {"name": "gqa", "kv_heads": 2},
    "mqa": {"name": "mqa"},
    "restricted": {"name": "restricted", "window": 3},
}
KINDS: dict[str, dict[str, Any]] = {
    **PLAIN,
    **{
        name: {"name": name}
        for name in ("talking-heads", "differential", "mla", "additive", "mlp-score", "sparsemax", "softpick")
    },
    "differential, shared": {"name": "differential", "kv_heads": 2},
    "dot": {"name": "dot", "width": 16},
    "bilinear": {"name": "bilinear", "width": 16},
}
UNTURNED = {"additive", "mlp-score"}
OPTIONS = {
    "norms": ScoreOptions(qk_norm=True),
    "sinks": ScoreOptions(sinks=True),
    "first values": ScoreOptions(value_residual=True),
    "a cap": ScoreOptions(soft_cap=0.7),
    "exclusive": ScoreOptions(exclusive=True),
    "forget gates": ScoreOptions(forget=True),
    "gates of heads": ScoreOptions(gate="headwise"),
    "gates of channels": ScoreOptions(gate="elementwise"),
    "all": ScoreOptions(
        qk_norm=True, sinks=True, value_residual=True, soft_cap=0.7, exclusive=True, forget=True, gate="elementwise"
    ),
}
POSITION_NAMES = ("none", "rope", "alibi", "t5")
options = pytest.mark.parametrize("option", OPTIONS)
places = pytest.mark.parametrize("position_name", POSITION_NAMES)
sides = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
everywhere = pytest.mark.parametrize(
    ("kind", "position_name"),
    [
        (kind, position_name)
        for kind in KINDS
        for position_name in POSITION_NAMES
        if not (kind in UNTURNED and position_name == "rope")
    ],
)


def ramp(length: int) -> TokenLayout:
    return TokenLayout(torch.arange(length).unsqueeze(0))


def rotate(x: Tensor) -> Tensor:
    """Rotate (…, T, K) by RoPE, with complex numbers."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2]).unsqueeze(-1) * 10_000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    rotated = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([rotated.real, rotated.imag], dim=-1)


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain


def explicit_reference(stack: Stack, x: Tensor, position_name: str, *, causal: bool, window: int | None) -> Tensor:
    """Run multi-head layers over (B, T, D) by the formulas of the papers."""
    length = x.shape[1]
    away = torch.arange(length).unsqueeze(1) - torch.arange(length)
    hidden = (away < 0) if causal else torch.zeros_like(away, dtype=torch.bool)
    hidden = hidden | (away.abs() >= window) if window is not None else hidden
    first_values: Tensor | None = None
    layers: Any = stack.layers
    for layer in layers:
        heads, attend = layer.attention.heads, layer.attention.attend
        q, k, v = heads.queries(x), heads.keys(x), heads.values(x)
        if attend.normed:
            q, k = rms_norm(q, attend.q_norm.weight), rms_norm(k, attend.k_norm.weight)
        if position_name == "rope":
            q, k = rotate(q), rotate(k)
        if attend.own_share is not None:
            first_values = v if first_values is None else first_values
            v = (0.5 + attend.own_share) * v + (0.5 - attend.own_share) * first_values
        k, v = (side.repeat_interleave(4 // side.shape[1], 1) for side in (k, v))
        scores = torch.einsum("bhik,bhjk->bhij", q, k) / math.sqrt(4) + position_bias(stack, position_name, length)
        if attend.forget is not None:
            gates = torch.sigmoid(x @ attend.forget.score.weight.T + attend.forget.score.bias).transpose(1, 2)
            scores = scores + gates_between(gates)
        if attend.soft_cap is not None:
            scores = attend.soft_cap * (scores / attend.soft_cap).tanh()
        powers = scores.exp().masked_fill(hidden, 0)
        total = powers.sum(-1, keepdim=True)
        if attend.sinks is not None:
            total = total + attend.sinks.exp().view(1, 4, 1, 1)
        mixed = powers / total @ v
        if attend.exclusive:
            mixed = mixed - (mixed * v).sum(-1, keepdim=True) / v.square().sum(-1, keepdim=True) * v
        if attend.gate is not None:
            gates = 1 / (1 + (-x @ attend.gate.weight.T).exp())
            mixed = mixed * gates.view(*x.shape[:2], 4, -1).transpose(1, 2)
        x = x + heads.merge(mixed)
    return x


def gates_between(gates: Tensor) -> Tensor:
    """Return the logarithm of the product of the gates after one token up to another: (B, H, T) -> (B, H, T, T)."""
    length, rows = gates.shape[-1], []
    for i in range(length):
        pairs = [gates[..., min(i, j) + 1 : max(i, j) + 1].prod(-1).log() for j in range(length)]
        rows.append(torch.stack(pairs, -1))
    return torch.stack(rows, -2)


def position_bias(stack: Stack, position_name: str, length: int) -> Tensor:
    """Return the position bias of the scores, (1, H, T, T)."""
    if position_name == "alibi":
        slopes = torch.tensor([2.0 ** (-8 * (head + 1) / 4) for head in range(4)], dtype=torch.float64)
        return -slopes.view(1, 4, 1, 1) * (torch.arange(length).unsqueeze(1) - torch.arange(length)).abs()
    if position_name == "t5":
        position, layout = stack.position[0], torch.arange(length).unsqueeze(0)
        assert isinstance(position, Position)
        return position.bias(Pair(None, None, layout, layout, 0.5, 4, dtype=torch.float64))
    return torch.zeros(1, 1, 1, 1, dtype=torch.float64)


@pytest.mark.covering
@options
@places
@sides
@pytest.mark.parametrize("kind", PLAIN)
def test_matches_the_formulas(
    kind: str, option: str, position_name: str, causal: bool, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(
        **PLAIN[kind], position_name=position_name, causal=causal, layers=3, residual=True, scores=OPTIONS[option]
    )
    x = randn(2, 9, 12)
    expected = explicit_reference(stack, x, position_name, causal=causal, window=PLAIN[kind].get("window"))
    assert torch.allclose(stack(x, ramp(9)).hidden, expected, rtol=0, atol=1e-9)


@pytest.mark.few(11)
@options
@everywhere
def test_decoding_step_by_step_matches_one_pass(
    kind: str, option: str, position_name: str, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(**KINDS[kind], position_name=position_name, layers=2, residual=True, scores=OPTIONS[option])
    x, padding_length = randn(2, 12, stack.shape.width), torch.tensor([[0], [4]])
    left_padded = TokenLayout(torch.arange(12) - padding_length, (torch.arange(12) < padding_length).long().neg())
    for layout in (ramp(12), left_padded):
        full_output = stack(x, layout).hidden
        states, start, chunks = stack.start(2, 12), 0, []
        for size in (5, 1, 1, 4, 1):
            part = layout.span(start, start + size)
            chunks.append(stack(x[:, start : start + size], part, states=states).hidden)
            start += size
        assert torch.allclose(torch.cat(chunks, 1), full_output, rtol=0, atol=1e-9)


@pytest.mark.covering
@options
@everywhere
@sides
def test_every_option_changes_outputs_and_respects_visibility(
    kind: str, option: str, position_name: str, causal: bool, build_stack: BuildStack, randn: Randn
) -> None:
    keywords = {**KINDS[kind], "position_name": position_name, "causal": causal, "layers": 2, "residual": True}
    stack, without = build_stack(**keywords, scores=OPTIONS[option]), build_stack(**keywords)
    x, real = randn(1, 8, stack.shape.width), 5
    output = stack(x, ramp(8)).hidden
    without.load_state_dict(stack.state_dict(), strict=False)
    assert not torch.allclose(output, without(x, ramp(8)).hidden, rtol=0, atol=1e-6)
    padded = TokenLayout(torch.arange(8).unsqueeze(0), torch.arange(8).ge(real).long().unsqueeze(0) * PADDING)
    alone = stack(x[:, :real], ramp(real)).hidden
    assert torch.allclose(stack(x, padded).hidden[:, :real], alone, rtol=0, atol=1e-9)
    if causal:
        assert torch.allclose(output[:, :real], alone, rtol=0, atol=1e-9)
    packed = TokenLayout(torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]]), torch.tensor([[0] * 5 + [1] * 3]))
    both = torch.cat([alone, stack(x[:, real:], ramp(3)).hidden], dim=1)
    assert torch.allclose(stack(x, packed).hidden, both, rtol=0, atol=1e-9)


@pytest.mark.covering
@options
@everywhere
def test_all_kernels_agree_on_outputs_and_gradients(
    kind: str, option: str, position_name: str, build_stack: BuildStack, randn: Randn
) -> None:
    keywords = {**KINDS[kind], "position_name": position_name, "layers": 2, "residual": True}
    stacks = [build_stack(**keywords, scores=OPTIONS[option], kernels=kernels) for kernels in (KERNELS, KERNELS[-1:])]
    x, documents = randn(2, 9, stacks[0].shape.width), torch.tensor([[0] * 9, [0] * 4 + [1] * 3 + [PADDING] * 2])
    layout = TokenLayout(torch.arange(9).unsqueeze(0), documents)
    outputs = [stack(x, layout).hidden for stack in stacks]
    assert torch.allclose(outputs[0], outputs[1], rtol=0, atol=1e-9)
    visible = documents.ge(0).unsqueeze(-1)
    grads = [
        torch.autograd.grad((output.sin() * visible).sum(), list(stack.parameters()))
        for output, stack in zip(outputs, stacks, strict=True)
    ]
    for actual, reference in zip(*grads, strict=True):
        assert torch.isfinite(actual).all()
        assert torch.allclose(actual, reference, rtol=0, atol=1e-8)


@options
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("error")
def test_autocast_is_close(kind: str, option: str, build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack(**KINDS[kind], position_name="alibi", layers=2, residual=True, scores=OPTIONS[option])
    x = randn(2, 10, stack.shape.width)
    exact = stack(x, ramp(10)).hidden
    small = stack.float()
    with torch.autocast("cpu", torch.bfloat16):
        near = small(x.float(), ramp(10)).hidden
    assert near.dtype == torch.float32
    assert ((near - exact).norm() / exact.norm()).item() < 2**-4
    near.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in small.parameters() if parameter.grad is not None)


SIZES = {
    "hidden_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "attention_bias": True,
    "rms_norm_eps": 1e-6,
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
    "attn_implementation": "eager",
}


def angles(length: int, *, twice: bool) -> tuple[Tensor, Tensor]:
    turns = torch.arange(length).view(1, -1, 1) * 10_000.0 ** (-torch.arange(2, dtype=torch.float64) / 2)
    turns = torch.cat([turns, turns], dim=-1) if twice else turns
    return turns.cos(), turns.sin()


@pytest.mark.parametrize(
    ("config", "hf_module", "scores"),
    [
        (Qwen3Config(**SIZES), Qwen3Attention, ScoreOptions(qk_norm=True)),
        (GptOssConfig(**SIZES), GptOssAttention, ScoreOptions(sinks=True)),
        (
            Gemma2Config(**SIZES, attn_logit_softcapping=1.5, query_pre_attn_scalar=4),
            Gemma2Attention,
            ScoreOptions(soft_cap=1.5),
        ),
    ],
    ids=["Qwen 3", "gpt-oss", "Gemma 2"],
)
def test_each_option_matches_its_model(
    config: PreTrainedConfig, hf_module: Any, scores: ScoreOptions, build_stack: BuildStack, randn: Randn
) -> None:
    reference = hf_module(config, 0).double().eval()
    torch.manual_seed(1)
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    stack = build_stack("gqa", "rope", kv_heads=2, scores=scores)
    layer: Any = stack.layers[0]
    actual = layer.attention
    with torch.no_grad():
        for side in "qkvo":
            getattr(actual.heads, side).load_state_dict(getattr(reference, f"{side}_proj").state_dict())
        for name in ("q_norm.weight", "k_norm.weight", "sinks"):
            if name in dict(reference.named_parameters()):
                actual.attend.get_parameter(name).copy_(reference.get_parameter(name))
    x = randn(2, 9, 12)
    hidden = torch.full((9, 9), -torch.inf, dtype=torch.float64).triu(1).view(1, 1, 9, 9)
    expected = reference(x, angles(9, twice=hf_module is not GptOssAttention), hidden)[0]
    tolerance = 1e-12 if scores.sinks else 2e-6  # references use float32 in norms or in the softmax
    assert (stack(x, ramp(9)).hidden - expected).abs().max().item() < tolerance
