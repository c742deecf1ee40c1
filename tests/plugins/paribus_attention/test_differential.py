"""The difference of two softmaxes, held against loops over the paper's formula and against DiffLlama."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import DiffLlamaConfig
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, DiffLlamaRotaryEmbedding

import paribus
from paribus import Load, Memory, ScoreOptions, Shape, SpecError, Stack, TokenLayout
from paribus_attention import attention

Stacked = Callable[..., Stack]
Drawn = Callable[..., Tensor]
Looped = list[list[float]]
groups = pytest.mark.parametrize("kv_heads", [4, 2])


def own(stack: Stack, layer: int = 0) -> Any:
    made: Any = stack.layers[layer]
    return made.attention


def weights_of(q: Looped, k: Looped, causal: bool) -> Looped:
    """softmax(q k / sqrt(K)) of one head."""
    rows = []
    for i, query in enumerate(q):
        seen = k[: i + 1] if causal else k
        powers = [math.exp(sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query))) for key in seen]
        rows.append([power / sum(powers) for power in powers])
    return rows


def looped(made: Any, x: Tensor, layer: int, causal: bool) -> Tensor:
    """One sequence, (T, 12), a pair of heads at a time."""
    length, groups = len(x), made.heads.kv_heads
    q = made.heads.q(x).view(length, 4, 4).transpose(0, 1).tolist()
    k, v = (side(x).view(length, groups, 4).transpose(0, 1).tolist() for side in (made.heads.k, made.heads.v))
    (lq1, lq2), (lk1, lk2) = made.lambda_q.tolist(), made.lambda_k.tolist()
    first = 0.8 - 0.6 * math.exp(-0.3 * layer)
    one, two = (math.exp(sum(a * b for a, b in zip(lq, lk, strict=True))) for lq, lk in ((lq1, lk1), (lq2, lk2)))
    less = one - two + first
    merged = torch.zeros(length, 16, dtype=x.dtype)
    for pair in range(2):
        group = pair // (4 // groups)
        values = [v[group][j] + v[group + groups // 2][j] for j in range(length)]  # [v1; v2]
        both = [weights_of(q[h], k[g], causal) for h, g in ((pair, group), (pair + 2, group + groups // 2))]
        for i in range(length):
            mixed = [0.0] * 8
            for j, (a, b) in enumerate(zip(both[0][i], both[1][i], strict=True)):
                mixed = [sum_ + (a - less * b) * value for sum_, value in zip(mixed, values[j], strict=True)]
            root = math.sqrt(sum(value * value for value in mixed) / 8 + 1e-5)
            gains = made.norm.weight.tolist()
            normed = [gain * value / root * (1 - first) for gain, value in zip(gains, mixed, strict=True)]
            merged[i, pair * 8 : pair * 8 + 8] = torch.tensor(normed, dtype=x.dtype)
    out: Tensor = made.heads.o(merged)
    return out


@groups
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
def test_matches_a_loop_implementation(kv_heads: int, causal: bool, stacked: Stacked, drawn: Drawn) -> None:
    stack = stacked("differential", causal=causal, layers=2, kv_heads=kv_heads)
    x, rows = drawn(2, 6, 12), TokenLayout(torch.arange(6).unsqueeze(0))
    for layer in range(2):
        x = torch.stack([looped(own(stack, layer), each, layer, causal) for each in x])
    assert torch.allclose(stack(drawn(2, 6, 12), rows).hidden, x, rtol=0, atol=1e-9)


@groups
@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_matches_diffllama(kv_heads: int, layer: int, kernel: str, stacked: Stacked, drawn: Drawn) -> None:
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
    theirs: Any = DiffLlamaAttention(config, layer_idx=layer).double().eval()
    stack = stacked("differential", "rope", layers=layer + 1, kv_heads=kv_heads)
    ours = own(stack, layer)
    stack.layers = stack.layers[layer:]
    with torch.no_grad():
        ours.norm.weight.fill_(1.0)
        for side in "qkvo":
            linear = getattr(theirs, f"{side}_proj")
            getattr(ours.heads, side).load_state_dict(linear.state_dict())
        ours.lambda_q.copy_(torch.stack([theirs.lambda_q1, theirs.lambda_q2]))
        ours.lambda_k.copy_(torch.stack([theirs.lambda_k1, theirs.lambda_k2]))
    x, ramp = drawn(2, 9, 12), torch.arange(9).unsqueeze(0)
    hidden = torch.full((9, 9), -torch.inf, dtype=torch.float64).triu(1).view(1, 1, 9, 9)
    wanted = theirs(x, DiffLlamaRotaryEmbedding(config)(x, ramp), hidden)[0]
    # their lambda is made in float32, and so are their angles
    assert torch.allclose(stack(x, TokenLayout(ramp)).hidden, wanted, rtol=0, atol=2e-6)


def test_equal_heads_cancel_at_lambda_1(stacked: Stacked, drawn: Drawn) -> None:
    stack = stacked("differential")
    made = own(stack)
    with torch.no_grad():
        for side in (made.heads.q, made.heads.k):
            side.weight[8:], side.bias[8:] = side.weight[:8], side.bias[:8]
        made.lambda_q.copy_(torch.zeros(2, 4))
        made.lambda_init = 1.0
    out = stack(drawn(2, 6, 12), TokenLayout(torch.arange(6).unsqueeze(0))).hidden
    assert torch.allclose(out, made.heads.o.bias.expand(2, 6, 12), rtol=0, atol=1e-9)


def test_captured_weights_are_the_difference(stacked: Stacked, drawn: Drawn) -> None:
    stack = stacked("differential", causal=False)
    made, x, rows = own(stack), drawn(2, 6, 12), TokenLayout(torch.arange(6).unsqueeze(0))
    seen = stack(x, rows, capture=True)
    weights = seen.captured[0]["weights"]
    assert torch.allclose(weights.sum(-1), (1 - made.lambda_value()).expand(2, 2, 6), rtol=0, atol=1e-12)
    mixed = weights @ torch.cat(made.heads.values(x).chunk(2, dim=1), dim=-1)
    assert torch.allclose(made.heads.merge(made.norm(mixed) * (1 - made.lambda_init)), seen.hidden, rtol=0, atol=1e-12)
    assert torch.allclose(stack(x, rows).hidden, seen.hidden, rtol=0, atol=1e-12)


@groups
def test_cost_matches_the_torch_flop_counter(kv_heads: int, stacked: Stacked) -> None:
    stack = stacked("differential", memory_width=10, kv_heads=kv_heads).to("meta")
    x, rows = (
        torch.zeros(1, 20, 12, device="meta", dtype=torch.float64),
        TokenLayout(torch.arange(20).view(1, -1).to("meta")),
    )
    hidden = torch.zeros(1, 30, 10, device="meta", dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        stack(x, rows, Memory(hidden, TokenLayout(torch.arange(30).view(1, -1).to("meta"))))
    made = attention()["differential"](Shape(12, 4, 4, 64, 11, 1, layer=0, memory_width=10), kv_heads=kv_heads)
    assert made.cost(Load(20, 20, memory=30)).flops == counter.get_total_flops()


def test_it_has_the_tensors_of_mha_and_lambda() -> None:
    shape = Shape(12, 4, 4, 64, 11, 1, layer=0)
    plain, ours = (dict(attention()[name](shape).named_parameters()) for name in ("mha", "differential"))
    assert all(ours[path].shape == tensor.shape for path, tensor in plain.items())
    assert set(ours) - set(plain) == {"lambda_q", "lambda_k", "norm.weight"}


@pytest.mark.parametrize(("heads", "options"), [(3, {}), (6, {"kv_heads": 3})])
def test_odd_numbers_of_heads_are_rejected(heads: int, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="even numbers of heads"):
        attention()["differential"](Shape(12, heads, 4, 64, 11, 1, layer=0), scores=ScoreOptions(), **options)


def test_shared_layers_are_rejected() -> None:
    with pytest.raises(SpecError, match="attention `differential` must know which layer it is in"):
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
    wanted = model.hidden(tokens)
    for layer in model.topology.get_submodule("body").layers:
        layer.compile(fullgraph=True, backend=counting)
    torch.testing.assert_close(model.hidden(tokens), wanted)
    torch._dynamo.reset()
    assert graphs <= 2
