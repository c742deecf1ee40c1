"""Attentions that replace the softmax: sigmoid, relu, softpick, sparsemax and stick-breaking."""

import runpy
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

from paribus import ScoreOptions, Shape, Stack, TokenLayout
from paribus.errors import SpecError
from paribus.specs import resolved
from paribus_attention import attention
from paribus_attention.softpick import softpick
from paribus_attention.sparsemax import sparsemax
from paribus_attention.stick_breaking import break_stick

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
NAMES = ("relu", "sigmoid", "softpick", "sparsemax", "stick-breaking")
names = pytest.mark.parametrize("name", NAMES)
LOWEST = torch.finfo(torch.float64).min


def sparsemax_by_bisection(row: Tensor) -> Tensor:
    """Find the threshold for which max(score - tau, 0) sums to 1, between the largest score less 1 and itself."""
    low, high = float(row.max()) - 1, float(row.max())
    for _ in range(100):
        tau = (low + high) / 2
        low, high = (tau, high) if float((row - tau).clamp(min=0).sum()) > 1 else (low, tau)
    return (row - low).clamp(min=0)


def weights_of(stack: Stack, x: Tensor, layout: TokenLayout) -> Tensor:
    captured = stack(x, layout, capture=True).captured[0]["weights"]
    assert isinstance(captured, Tensor)
    return captured


def scores_of(stack: Stack, x: Tensor) -> Tensor:
    layer: Any = stack.layers[0]
    heads = layer.attention.heads
    scores: Tensor = (heads.queries(x) @ heads.keys(x).transpose(-1, -2)) / heads.head_width**0.5
    return scores


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
def test_weights_match_the_formulas(causal: bool, build_stack: BuildStack, randn: Randn) -> None:
    x, layout = randn(2, 7, 12), TokenLayout(torch.arange(7).unsqueeze(0))
    visible = torch.ones(7, 7, dtype=torch.bool).tril() if causal else torch.ones(7, 7, dtype=torch.bool)
    keys = visible.sum(1).double().unsqueeze(1)
    formulas: dict[str, Callable[[Tensor], Tensor]] = {
        "sigmoid": lambda scores: 1 / (1 + keys * (-scores).exp()),
        "relu": lambda scores: scores.clamp(min=0) / keys,
    }
    for name, formula in formulas.items():
        stack = build_stack(name, causal=causal)
        expected = formula(scores_of(stack, x)) * visible
        assert torch.allclose(weights_of(stack, x, layout), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("hidden", [0.0, 0.5], ids=["all keys", "half of the keys"])
def test_sparsemax_is_the_projection_onto_the_simplex(hidden: float, randn: Randn) -> None:
    scores = 2 * randn(3, 2, 5, 9)
    scores = scores.masked_fill(randn(3, 2, 5, 9, seed=1).abs() < hidden, LOWEST)
    expected = torch.stack([sparsemax_by_bisection(row) for row in scores.view(-1, 9)]).view_as(scores)
    weights = sparsemax(scores, scores > LOWEST)
    assert torch.allclose(weights, expected, rtol=0, atol=1e-12)
    assert 0.2 < (weights == 0).double().mean() < 0.9
    assert torch.autograd.gradcheck(lambda x: sparsemax(x, x > LOWEST), randn(2, 1, 4, 6, seed=2).requires_grad_())


def test_sparsemax_of_equal_or_distant_scores() -> None:
    scores = torch.tensor([[3.0, 3.0, 3.0, 3.0], [1e6, 0.0, 0.0, 0.0], [0.0, LOWEST, LOWEST, -0.5]])
    expected = torch.tensor([[0.25] * 4, [1.0, 0.0, 0.0, 0.0], [0.75, 0.0, 0.0, 0.25]])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        weights = sparsemax(scores.to(dtype).clamp(min=torch.finfo(dtype).min), scores > LOWEST)
        assert weights.dtype == dtype
        assert torch.equal(weights.float(), expected)


def test_softpick_matches_the_formula_at_any_scale(randn: Randn) -> None:
    scores, visible = 3 * randn(2, 2, 5, 9), randn(2, 1, 5, 9, seed=1) > -0.5
    powers = (scores.exp() - 1).masked_fill(~visible, 0)
    expected = powers.clamp(min=0) / powers.abs().sum(-1, keepdim=True)
    hidden = scores.masked_fill(~visible, LOWEST)
    assert torch.allclose(softpick(hidden, visible), expected, rtol=0, atol=1e-4)  # an epsilon beside the sum
    assert torch.equal(softpick(-scores.abs(), visible), torch.zeros_like(scores))
    large = torch.tensor([[1e4, 1e4, -1e4, LOWEST]])
    weights = softpick(large, large > LOWEST)
    assert torch.allclose(weights, torch.tensor([[0.5, 0.5, 0.0, 0.0]]), rtol=0, atol=1e-6)
    assert torch.autograd.gradcheck(lambda x: softpick(x, x > LOWEST), randn(2, 1, 4, 6, seed=2).requires_grad_())


def test_stick_breaking_takes_shares_from_the_nearest_key_on() -> None:
    scores, visible = torch.zeros(5, 5), torch.ones(5, 5, dtype=torch.bool).tril()
    expected = torch.tensor([[0, 0, 0, 0], [4, 0, 0, 0], [2, 4, 0, 0], [1, 2, 4, 0], [0.5, 1, 2, 4]]) / 8
    assert torch.equal(break_stick(scores, visible)[:, :4], expected)
    assert torch.equal(break_stick(scores[3:], visible[3:])[:, :4], expected[3:])  # the last tokens
    full = break_stick(scores, visible, remainder=True)
    assert torch.equal(full.sum(-1), torch.ones(5))
    assert torch.equal(full.diagonal(), 1 - expected.sum(-1))
    visible[4, 2] = False  # a hidden key leaves everything to those before it
    assert torch.equal(break_stick(scores, visible)[4], torch.tensor([0.125, 0.25, 0.0, 0.5, 0.0]))


def test_stick_breaking_is_finite_at_any_scale(randn: Randn) -> None:
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    large = (1e4 * randn(2, 1, 6, 6)).float().requires_grad_()
    weights = break_stick(large.masked_fill(~visible, torch.finfo(torch.float32).min), visible, remainder=True)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 1, 6), rtol=0, atol=1e-6)
    weights.square().sum().backward()
    assert large.grad is not None
    assert large.grad.isfinite().all()
    assert torch.autograd.gradcheck(lambda x: break_stick(x, visible), randn(2, 1, 6, 6, seed=2).requires_grad_())


def test_stick_breaking_equals_that_of_fla(build_stack: BuildStack, randn: Randn) -> None:
    """`fla-core` has a reference, which is read by path, since an import of `fla` needs Triton."""
    package = find_spec("fla")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("fla-core is not installed")
    path = Path(package.submodule_search_locations[0], "ops", "stickbreaking_attn", "naive.py")
    peer = runpy.run_path(str(path))["naive_stickbreaking_attn"]
    x, layout = randn(2, 9, 12), TokenLayout(torch.arange(9).unsqueeze(0))
    for remainder in (False, True):
        stack = build_stack("stick-breaking", remainder=remainder)
        layer: Any = stack.layers[0]
        heads = layer.attention.heads
        q, k, v = (part(x).transpose(1, 2) for part in (heads.queries, heads.keys, heads.values))
        mixed, left = peer(q, k, v)
        expected = heads.merge((mixed + remainder * left.unsqueeze(-1) * v).transpose(1, 2))
        assert torch.allclose(stack(x, layout).hidden, expected, rtol=0, atol=1e-12)


@names
def test_only_the_reference_kernel_runs(name: str, build_stack: BuildStack) -> None:
    assert build_stack(name).kernels() == ("eager",)


@names
def test_initial_weights_equal_those_of_multi_head_attention(name: str) -> None:
    shape = Shape(12, 4, 4, 64, 11, 1)
    paths = {path: tuple(parameter.shape) for path, parameter in attention()[name](shape).named_parameters()}
    assert paths == {path: tuple(parameter.shape) for path, parameter in attention()["mha"](shape).named_parameters()}


@pytest.mark.parametrize("name", ["relu", "sigmoid", "stick-breaking"])
def test_weights_that_share_nothing_have_no_sink(name: str) -> None:
    with pytest.raises(ValueError, match=r"scores\.sinks"):
        attention()[name](Shape(12, 4, 4, 64, 11, 1), scores=ScoreOptions(sinks=True))
    assert attention()[name].traits["normalized"] is False


def test_stick_breaking_rejects_a_remainder_that_would_be_subtracted() -> None:
    with pytest.raises(ValueError, match=r"scores\.exclusive"):
        attention()["stick-breaking"](Shape(12, 4, 4, 64, 11, 1), remainder=True, scores=ScoreOptions(exclusive=True))


def test_measures_of_shares_accept_sparsemax_only() -> None:
    resolved("gpt-tiny", "attention=sparsemax", "measure=entropy")
    with raises_problem(SpecError, "does-not-fit", "1", "sigmoid"):
        resolved("gpt-tiny", "attention=sigmoid", "measure=entropy")
