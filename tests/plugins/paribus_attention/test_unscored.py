"""Attentions without scores: decoding states, costs and traits."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import Context, Load, Memory, Stack, TokenLayout
from paribus.complexity.counting import flop_counter
from paribus_attention import attention

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]

KINDS: dict[str, dict[str, Any]] = {
    "identity": {"name": "identity"},
    "uniform": {"name": "uniform"},
    "conv": {"name": "conv"},
    "conv-even": {"name": "conv", "kernel": 4},
    "full-conv": {"name": "full-conv", "dilation": 3},
    "full-conv-gate": {"name": "full-conv", "kernel": 4, "gate": True},
    "dilated-conv": {"name": "dilated-conv"},
    "bottleneck-conv": {"name": "bottleneck-conv", "inner": 5},
    "lstm": {"name": "lstm"},
    "gru": {"name": "gru"},
    "qrnn": {"name": "qrnn"},
    "qrnn-ifo": {"name": "qrnn", "kernel": 4, "pooling": "ifo"},
    "delta": {"name": "delta"},
    "delta-gate": {"name": "delta", "kernel": None, "value_width": 5, "gate": True},
    "delta-product": {"name": "delta-product", "writes": 3, "decay": True},
    "gated-delta": {"name": "gated-delta", "value_width": 5},
    "gated-linear": {"name": "gated-linear"},
    "gated-linear-head": {"name": "gated-linear", "decay": "head", "rank": None},
    "kimi-delta": {"name": "kimi-delta"},
    "mamba2": {"name": "mamba2", "state": 5},
    "retention": {"name": "retention"},
    "fixed": {"name": "fixed"},
    "fourier": {"name": "fourier"},
    "linear": {"name": "linear"},
    "linear-relu-gqa": {"name": "linear", "features": "relu", "kv_heads": 2},
    "linformer": {"name": "linformer", "rank": 6},
    "linformer-shared": {"name": "linformer", "rank": 6, "shared": True},
}
LENGTH = 150


def kinds_with(*traits: str) -> pytest.MarkDecorator:
    """Return each kind with any of the traits, causal and bidirectional where it can be both."""
    return pytest.mark.parametrize(("kind", "causal"), [*_kinds_with(*traits)])


def _kinds_with(*traits: str) -> Iterator[Any]:
    for kind, options in KINDS.items():
        declared: Any = attention()[options["name"]].traits
        if not any(declared[trait] for trait in traits if trait in declared):
            continue
        sides = [True] * declared["causal"] + [False] * declared.get("bidirectional", True)
        for causal in sides:
            yield pytest.param(kind, causal, id=f"{kind}-{'causal' if causal else 'both'}")


def ramp(length: int, start: int = 0) -> TokenLayout:
    return TokenLayout(torch.arange(start, start + length).unsqueeze(0))


@kinds_with("decodes")
def test_the_state_keeps_the_declared_size(kind: str, causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    if not causal:
        return
    stack = build_stack(**KINDS[kind])
    module: Any = stack.layers[0]
    states = stack.start(3, 20)
    for past in range(3):
        tensors = states.layers[0]["attention"].values()
        assert module.attention.cost(Load(1, 20)).state * 3 == sum(value.numel() for value in tensors)
        assert all(value.shape[0] == 3 and value.dtype == torch.float64 for value in tensors)
        stack(randn(3, 1, 12), ramp(1, past), states=states)


@pytest.mark.covering
@kinds_with("residual")
@pytest.mark.parametrize("length", [1, 20, LENGTH])
def test_cost_matches_the_torch_flop_counter(kind: str, causal: bool, length: int, build_stack: BuildStack) -> None:
    module: Any = build_stack(**KINDS[kind], causal=causal).to("meta")
    x = torch.zeros(1, length, 12, device="meta", dtype=torch.float64)
    with flop_counter() as counter:
        module(x, TokenLayout(torch.arange(length).unsqueeze(0).to("meta")))
    assert module.layers[0].attention.cost(Load(length, length)).flops == counter.get_total_flops()


@kinds_with("cross")
def test_cross_attention_cost_matches_the_torch_flop_counter(kind: str, causal: bool, build_stack: BuildStack) -> None:
    module: Any = build_stack(**KINDS[kind], causal=causal, memory_width=10).to("meta")
    x, hidden = (torch.zeros(1, *size, device="meta", dtype=torch.float64) for size in ((20, 12), (30, 10)))
    with flop_counter() as counter:
        module(
            x,
            *(TokenLayout(torch.arange(20).unsqueeze(0).to("meta")),),
            Memory(hidden, TokenLayout(torch.arange(30)[None].to("meta"))),
        )
    assert module.layers[0].cross.cost(Load(20, 20, memory=30)).flops == counter.get_total_flops()


@kinds_with("residual")
def test_unscored_attentions_use_no_kernel_and_have_no_weights(
    kind: str, causal: bool, build_stack: BuildStack, randn: Randn
) -> None:
    stack = build_stack(**KINDS[kind], causal=causal)
    assert stack.kernels() == ("its own",)
    with pytest.raises(ValueError, match="expected an attention with the trait `weights`"):
        stack(randn(1, 3, 12), ramp(3), capture=True)


def test_unscored_attentions_use_no_positions() -> None:
    module = [attention()[options["name"]] for options in KINDS.values()]
    assert all(item.traits["position_hooks"] == [] and not item.traits["weights"] for item in module)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # dynamo's own
@pytest.mark.parametrize(
    "name", ["delta", "delta-product", "gated-delta", "gated-linear", "kimi-delta", "mamba2", "retention"]
)
def test_a_recurrence_compiles_into_one_graph_with_its_gradients(
    name: str, build_stack: BuildStack, randn: Randn
) -> None:
    stack: Any = build_stack(name)
    attention = stack.layers[0].attention
    x, documents = randn(2, 100, 12).requires_grad_(), torch.arange(100).unsqueeze(0) // 40
    layout = TokenLayout(torch.arange(100).unsqueeze(0), documents)
    compiled: Any = torch.compile(attention, fullgraph=True, backend="aot_eager")
    outputs = [module(x, Context((), layout, layout)) for module in (compiled, attention)]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)
    leaves = [x, *attention.parameters()]
    for pair in zip(*(torch.autograd.grad(y.sin().sum(), leaves) for y in outputs), strict=True):
        torch.testing.assert_close(*pair, rtol=0, atol=1e-10)
