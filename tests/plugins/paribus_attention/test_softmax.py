"""Declared traits, state and cost of softmax attentions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from paribus import Load, Memory, ScoreOptions, Shape, Stack, TokenLayout, Visibility
from paribus.registry.class_reader import schema_of
from paribus.schema import Divides, Option, Range
from paribus.slots.attention import SOFTMAX_TRAITS, visibility_of
from paribus_attention import attention

BuildStack = Callable[..., Stack]
SHAPE = Shape(12, 4, 4, 64, 11, 1)
KINDS: list[tuple[str, dict[str, Any], int]] = [
    ("mha", {}, 4),
    ("gqa", {}, 2),
    ("gqa", {"kv_heads": 4}, 4),
    ("mqa", {}, 1),
    ("restricted", {"window": 8}, 4),
    ("restricted", {"window": 8, "kv_heads": 2}, 2),
]
kinds = pytest.mark.parametrize(("name", "options", "groups"), KINDS)


@kinds
def test_the_state_has_the_declared_size_and_dtype(name: str, options: dict[str, Any], groups: int) -> None:
    module = attention()[name](SHAPE, **options)
    state = module.start(3, 20, torch.zeros((), dtype=torch.float64))
    assert {key: tuple(value.shape) for key, value in state.items()} == {
        "k": (3, groups, 20, 4),
        "v": (3, groups, 20, 4),
    }
    assert {value.dtype for value in state.values()} == {torch.float64}
    assert module.cost(Load(queries=1, keys=20)).state * 3 == sum(value.numel() for value in state.values())


def torch_flops(stack: Stack, queries: int, memory: int = 0) -> int:
    stack = stack.to("meta")
    x, layout = torch.zeros(1, queries, 12, device="meta", dtype=torch.float64), torch.arange(queries).unsqueeze(0)
    cross_memory = None
    if memory:
        hidden = torch.zeros(1, memory, 10, device="meta", dtype=torch.float64)
        cross_memory = Memory(hidden, TokenLayout(torch.arange(memory).unsqueeze(0).to("meta")))
    with FlopCounterMode(display=False) as counter:
        stack(x, TokenLayout(layout.to("meta")), cross_memory)
    return int(counter.get_total_flops())


@pytest.mark.parametrize(("name", "options", "groups"), KINDS[:4])
@pytest.mark.parametrize("causal", [True, False])
def test_cost_matches_the_torch_flop_counter(
    name: str, options: dict[str, Any], groups: int, causal: bool, build_stack: BuildStack
) -> None:
    module = attention()[name](Shape(12, 4, 4, 64, 11, 1, causal=causal), **options)
    assert module.cost(Load(20, 20)).flops == torch_flops(build_stack(name, causal=causal, **options), 20)


def test_cross_attention_cost_matches_the_torch_flop_counter(build_stack: BuildStack) -> None:
    module = attention()["gqa"](Shape(12, 4, 4, 64, 11, 1, memory_width=10))
    cost = module.cost(Load(20, 20, memory=30))
    assert cost.flops == torch_flops(build_stack("gqa", memory_width=10), 20, 30)
    assert cost.state == 2 * 30 * 2 * 4


@pytest.mark.parametrize(("causal", "span"), [(True, 8), (False, 15)])
def test_the_cost_of_a_window_counts_visible_keys(causal: bool, span: int) -> None:
    module = attention()["restricted"](Shape(12, 4, 4, 64, 11, 1, causal=causal), window=8)
    plain = attention()["mha"](Shape(12, 4, 4, 64, 11, 1, causal=causal))
    scored = plain.cost(Load(40, 40)).flops - module.cost(Load(40, 40)).flops
    assert scored == 4 * 16 * 40 * (40 - span)
    assert plain.cost(Load(5, 5)) == module.cost(Load(5, 5))


@kinds
def test_bias_applies_to_all_projections(name: str, options: dict[str, Any], groups: int) -> None:
    module = attention()[name](SHAPE, scores=ScoreOptions(bias=False), **options)
    assert {path for path, _ in module.named_parameters()} == {f"heads.{side}.weight" for side in "qkvo"}
    module = attention()[name](SHAPE, **options)
    assert {path.rpartition(".")[2] for path, _ in module.named_parameters()} == {"weight", "bias"}


@kinds
def test_scores_are_scaled_and_capped(
    name: str, options: dict[str, Any], groups: int, build_stack: BuildStack, randn: Callable[..., Tensor]
) -> None:
    x, layout = randn(2, 8, 12), TokenLayout(torch.arange(8).unsqueeze(0))
    module = {
        scores: build_stack(name, scores=scores, **options)(x, layout, capture=True).captured[0]["weights"]
        for scores in (
            ScoreOptions(),
            ScoreOptions(scaled=False),
            ScoreOptions(soft_cap=1e-9),
            ScoreOptions(soft_cap=1e9),
        )
    }
    ratio = (module[ScoreOptions()].log() / module[ScoreOptions(scaled=False)].log())[:, :, 0, 0]
    assert torch.equal(ratio.isnan(), torch.ones_like(ratio).bool())  # the first token sees itself only
    differences = [
        module[scores][:, :, -1, -2:].log().diff() for scores in (ScoreOptions(), ScoreOptions(scaled=False))
    ]
    assert torch.allclose(differences[0] * 2, differences[1], rtol=0, atol=1e-9)  # 2 is the root of the head width
    flat = module[ScoreOptions(soft_cap=1e-9)]
    visible = (module[ScoreOptions()] > 0).double()
    assert torch.allclose(flat, visible / visible.sum(-1, keepdim=True), rtol=0, atol=1e-6)
    assert torch.allclose(module[ScoreOptions(soft_cap=1e9)], module[ScoreOptions()], rtol=0, atol=1e-6)
    assert build_stack(name, scores=ScoreOptions(soft_cap=2.0), **options).kernels() == ("eager",)


def test_cross_attention_is_not_causal() -> None:
    assert visibility_of(Shape(12, 4, 4, 64, 11, 1, causal=True)) == Visibility(causal=True)
    assert visibility_of(Shape(12, 4, 4, 64, 11, 1, causal=True), 3) == Visibility(causal=True, window=3)
    assert visibility_of(Shape(12, 4, 4, 64, 11, 1, causal=True, memory_width=10)) == Visibility()


def test_all_declare_the_same_traits_except_cross_attention_of_windows() -> None:
    traits = {name: component.traits for name, component in attention().items()}
    assert traits["restricted"] == {**SOFTMAX_TRAITS, "cross": False}
    assert all(traits[name] == SOFTMAX_TRAITS for name in ("mha", "gqa", "mqa"))
    assert traits["talking-heads"] == {**SOFTMAX_TRAITS, "normalized": False}


def options_of(name: str) -> dict[str, Option]:
    return {option.name: option for option in schema_of(attention()[name], ("shape",))}


def test_options_match_their_signatures() -> None:
    assert list(options_of("mha")) == ["qkv_bias", "key_bias", "scores"]
    assert list(options_of("mqa")) == ["scores"]
    assert list(options_of("gqa")) == ["kv_heads", "output_bias", "share_kv", "scores"]
    assert options_of("gqa")["kv_heads"].limits == (Range(1), Divides("heads"))
    assert options_of("restricted")["window"].required
    assert options_of("restricted")["window"].sample == 8
    assert options_of("restricted")["kv_heads"].kind.optional
