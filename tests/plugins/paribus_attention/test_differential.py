"""Differential attention, compared with loops over the paper's formula and with DiffLlama."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import DiffLlamaConfig
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, DiffLlamaRotaryEmbedding

import paribus
from paribus import Load, Memory, ScoreOptions, Shape, SpecError, Stack, TokenLayout
from paribus_attention import attention

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
Looped = list[list[float]]
groups = pytest.mark.parametrize("kv_heads", [4, 2])


def attention_of(stack: Stack, layer: int = 0) -> Any:
    module: Any = stack.layers[layer]
    return module.attention


def weights_of(q: Looped, k: Looped, causal: bool) -> Looped:
    """Return softmax(q k / sqrt(K)) of one head."""
    layout = []
    for i, query in enumerate(q):
        visible = k[: i + 1] if causal else k
        powers = [
            math.exp(sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query))) for key in visible
        ]
        layout.append([power / sum(powers) for power in powers])
    return layout


def loop_reference(module: Any, x: Tensor, layer: int, causal: bool) -> Tensor:
    """Attend over one sequence, (T, 12), a pair of heads at a time."""
    length, groups = len(x), module.heads.kv_heads
    q = module.heads.q(x).view(length, 4, 4).transpose(0, 1).tolist()
    k, v = (side(x).view(length, groups, 4).transpose(0, 1).tolist() for side in (module.heads.k, module.heads.v))
    (lq1, lq2), (lk1, lk2) = module.lambda_q.tolist(), module.lambda_k.tolist()
    lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)
    left, right = (math.exp(sum(a * b for a, b in zip(lq, lk, strict=True))) for lq, lk in ((lq1, lk1), (lq2, lk2)))
    factor = left - right + lambda_init
    merged = torch.zeros(length, 16, dtype=x.dtype)
    for pair in range(2):
        group = pair // (4 // groups)
        values = [v[group][j] + v[group + groups // 2][j] for j in range(length)]  # [v1; v2]
        both = [weights_of(q[h], k[g], causal) for h, g in ((pair, group), (pair + 2, group + groups // 2))]
        for i in range(length):
            mixed = [0.0] * 8
            for j, (a, b) in enumerate(zip(both[0][i], both[1][i], strict=True)):
                mixed = [sum_ + (a - factor * b) * value for sum_, value in zip(mixed, values[j], strict=True)]
            root = math.sqrt(sum(value * value for value in mixed) / 8 + 1e-5)
            gains = module.norm.weight.tolist()
            normalised = [gain * value / root * (1 - lambda_init) for gain, value in zip(gains, mixed, strict=True)]
            merged[i, pair * 8 : pair * 8 + 8] = torch.tensor(normalised, dtype=x.dtype)
    output: Tensor = module.heads.o(merged)
    return output


@groups
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
def test_matches_a_loop_implementation(kv_heads: int, causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack("differential", causal=causal, layers=2, kv_heads=kv_heads)
    x, layout = randn(2, 6, 12), TokenLayout(torch.arange(6).unsqueeze(0))
    for layer in range(2):
        x = torch.stack([loop_reference(attention_of(stack, layer), item, layer, causal) for item in x])
    assert torch.allclose(stack(randn(2, 6, 12), layout).hidden, x, rtol=0, atol=1e-9)


@groups
@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_matches_diffllama(kv_heads: int, layer: int, kernel: str, build_stack: BuildStack, randn: Randn) -> None:
    config = DiffLlamaConfig(
        hidden_size=12,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=4,
        attention_bias=True,
        rms_norm_eps=1e-5,
        attn_implementation=kernel,
    )
    torch.manual_seed(1)
    reference: Any = DiffLlamaAttention(config, layer_idx=layer).double().eval()
    stack = build_stack("differential", "rope", layers=layer + 1, kv_heads=kv_heads)
    actual = attention_of(stack, layer)
    stack.layers = stack.layers[layer:]
    with torch.no_grad():
        actual.norm.weight.fill_(1.0)
        for side in "qkvo":
            linear = getattr(reference, f"{side}_proj")
            getattr(actual.heads, side).load_state_dict(linear.state_dict())
        actual.lambda_q.copy_(torch.stack([reference.lambda_q1, reference.lambda_q2]))
        actual.lambda_k.copy_(torch.stack([reference.lambda_k1, reference.lambda_k2]))
    x, ramp = randn(2, 9, 12), torch.arange(9).unsqueeze(0)
    hidden = torch.full((9, 9), -torch.inf, dtype=torch.float64).triu(1).view(1, 1, 9, 9)
    expected = reference(x, DiffLlamaRotaryEmbedding(config)(x, ramp), hidden)[0]
    # DiffLlama computes lambda and angles in float32
    assert torch.allclose(stack(x, TokenLayout(ramp)).hidden, expected, rtol=0, atol=2e-6)


def test_equal_heads_cancel_at_lambda_1(build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack("differential")
    module = attention_of(stack)
    with torch.no_grad():
        for side in (module.heads.q, module.heads.k):
            side.weight[8:], side.bias[8:] = side.weight[:8], side.bias[:8]
        module.lambda_q.copy_(torch.zeros(2, 4))
        module.lambda_init = 1.0
    output = stack(randn(2, 6, 12), TokenLayout(torch.arange(6).unsqueeze(0))).hidden
    assert torch.allclose(output, module.heads.o.bias.expand(2, 6, 12), rtol=0, atol=1e-9)


def test_captured_weights_are_the_difference(build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack("differential", causal=False)
    module, x, layout = attention_of(stack), randn(2, 6, 12), TokenLayout(torch.arange(6).unsqueeze(0))
    captured = stack(x, layout, capture=True)
    weights = captured.captured[0]["weights"]
    assert torch.allclose(weights.sum(-1), (1 - module.lambda_value()).expand(2, 2, 6), rtol=0, atol=1e-12)
    mixed = weights @ torch.cat(module.heads.values(x).chunk(2, dim=1), dim=-1)
    assert torch.allclose(
        module.heads.merge(module.norm(mixed) * (1 - module.lambda_init)), captured.hidden, rtol=0, atol=1e-12
    )
    assert torch.allclose(stack(x, layout).hidden, captured.hidden, rtol=0, atol=1e-12)


@groups
def test_cost_matches_the_torch_flop_counter(kv_heads: int, build_stack: BuildStack) -> None:
    stack = build_stack("differential", memory_width=10, kv_heads=kv_heads).to("meta")
    x, layout = (
        torch.zeros(1, 20, 12, device="meta", dtype=torch.float64),
        TokenLayout(torch.arange(20).view(1, -1).to("meta")),
    )
    hidden = torch.zeros(1, 30, 10, device="meta", dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        stack(x, layout, Memory(hidden, TokenLayout(torch.arange(30).view(1, -1).to("meta"))))
    module = attention()["differential"](Shape(12, 4, 4, 64, 11, 1, layer=0, memory_width=10), kv_heads=kv_heads)
    assert module.cost(Load(20, 20, memory=30)).flops == counter.get_total_flops()


def test_it_has_the_tensors_of_mha_and_lambda() -> None:
    shape = Shape(12, 4, 4, 64, 11, 1, layer=0)
    plain, actual = (dict(attention()[name](shape).named_parameters()) for name in ("mha", "differential"))
    assert all(actual[path].shape == tensor.shape for path, tensor in plain.items())
    assert set(actual) - set(plain) == {"lambda_q", "lambda_k", "norm.weight"}


@pytest.mark.parametrize(("heads", "options"), [(3, {}), (6, {"kv_heads": 3})])
def test_odd_numbers_of_heads_are_rejected(heads: int, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="even numbers of heads"):
        attention()["differential"](Shape(12, heads, 4, 64, 11, 1, layer=0), scores=ScoreOptions(), **options)


def test_shared_layers_are_rejected() -> None:
    with raises_problem(SpecError, "does-not-fit", "differential"):
        paribus.spec("gpt-tiny", "attention=differential", "dims.groups=1")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # dynamo's own
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # the same
def test_layers_with_different_lambdas_share_a_graph() -> None:
    graphs = 0

    def counting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    torch._dynamo.reset()
    model: Any = paribus.assemble(paribus.spec("gpt-tiny", "attention=differential", "dims.layers=12"))
    tokens = torch.randint(0, 200, (2, 9), generator=torch.Generator().manual_seed(0))
    expected = model.hidden(tokens)
    for layer in model.topology.get_submodule("body").layers:
        layer.compile(fullgraph=True, backend=counting)
    torch.testing.assert_close(model.hidden(tokens), expected)
    torch._dynamo.reset()
    assert graphs <= 2
