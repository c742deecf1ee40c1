"""Distillation of attention scores before the softmax."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from tests.plugins.paribus_objective.conftest import GivenPass
from torch import Tensor

import paribus
from paribus import IGNORED, PADDING, Load, Objective, Shape, SpecError, Stream, Vocabulary
from paribus.assembly.forward_pass import BatchForward
from paribus.parts.batch import Batch
from paribus.parts.context import Capture
from paribus.registry import installed
from paribus.specs import resolved
from paribus_objective import objective as objectives
from paribus_objective.distill_attention import _scores

Build = Callable[..., Objective]
Heads = dict[tuple[int, str], Tensor]
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, PADDING]])
COUNTED = torch.zeros(2, 5, dtype=torch.long).masked_fill(DOCUMENTS < 0, IGNORED)


def heads(layer: int, count: int, width: int, kv: int | None = None) -> Heads:
    """Queries and keys of a layer: (2, H, 5, K)."""
    sizes = {"q": count, "k": kv or count}
    return {
        (layer, name): torch.randn(2, size, 5, width, dtype=torch.float64, requires_grad=True)
        for name, size in sizes.items()
    }


class StreamPass(GivenPass):
    @property
    def streams(self) -> dict[str, Stream]:
        return {"body": Stream(COUNTED, DOCUMENTS)}


def passed(student: Heads, teacher: Heads) -> StreamPass:
    nothing = torch.empty(0)
    return StreamPass(nothing, nothing, {"counted": COUNTED}, GivenPass(nothing, nothing, {}, layers=teacher), student)


def by_hand(student: Heads, teacher: Heads, layer: int, teacher_layer: int, *, causal: bool) -> Tensor:
    """The loss of one pair of layers: a loop over texts, tokens, heads, and the tokens that a token sees."""
    total = torch.zeros((), dtype=torch.float64)
    for b, t in ((b, t) for b in range(2) for t in range(5) if DOCUMENTS[b, t] != PADDING):
        visible = [s for s in range(5) if DOCUMENTS[b, s] == DOCUMENTS[b, t] and (s <= t or not causal)]
        count = student[layer, "q"].shape[1]
        for head in range(count):
            for s in visible:
                scores = []
                for side, number in ((student, layer), (teacher, teacher_layer)):
                    q, k = side[number, "q"], side[number, "k"]
                    product = (q[b, head, t] * k[b, head * k.shape[1] // count, s]).sum()
                    scores.append(product / math.sqrt(q.shape[-1]))
                total = total + (scores[0] - scores[1]) ** 2 / (count * len(visible))
    return total


@pytest.mark.parametrize("kv_heads", [None, 1])
def test_scores_of_mapped_layers_are_compared_head_by_head(
    kv_heads: int | None, build: Build, vocabulary: Vocabulary
) -> None:
    student, teacher = {**heads(1, 2, 4, kv_heads), **heads(2, 2, 4)}, {**heads(3, 2, 6), **heads(6, 2, 6)}
    objective = build("distill-attention", vocabulary, layers=(1, 2), teacher_layers=(3, 6), weight=0.5)
    term = objective(passed(student, teacher))["loss"]
    expected = torch.stack([by_hand(student, teacher, *pair, causal=False) for pair in ((1, 3), (2, 6))]).sum()
    torch.testing.assert_close(term.total, expected, rtol=1e-12, atol=0)
    assert (int(term.count), term.weight) == (9, 0.5)
    assert objective.captures == Capture(heads=(1, 2))
    assert objective.teacher_captures == Capture(heads=(3, 6))
    inputs = list(student.values())
    for actual, value in zip(
        torch.autograd.grad(term.total, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(actual, value, rtol=1e-12, atol=1e-12)


def test_a_token_of_a_causal_model_is_compared_with_earlier_ones_only(vocabulary: Vocabulary) -> None:
    shape = Shape(8, 2, 4, 32, vocabulary.size, layers=1, causal=True)
    objective = objectives()["distill-attention"](shape, vocabulary, lambda width=None: torch.nn.LayerNorm(width or 8))
    student, teacher = heads(-1, 2, 4), heads(-1, 2, 6)
    total = objective(passed(student, teacher))["loss"].total
    torch.testing.assert_close(total, by_hand(student, teacher, -1, -1, causal=True), rtol=1e-12, atol=0)


def test_the_softmax_of_the_scores_is_the_attention() -> None:
    model = paribus.assemble(resolved("encoder-tiny"), registry=installed(no_plugins=True)).double()
    batch = Batch({"body": Stream(torch.arange(24).reshape(2, 12))}, {}, torch.arange(2))
    with torch.no_grad():
        forward = BatchForward(model.topology, batch, capture=Capture(weights=True, heads=(2,)))
        weights = forward.output("body").captured[1]["weights"]
        torch.testing.assert_close(_scores(forward.of("mlm"), 2).softmax(-1), weights, rtol=0, atol=1e-12)


def test_unfitting_options_are_refused_with_valid_ones(build: Build, vocabulary: Vocabulary) -> None:
    with raises_problem(SpecError, "does-not-fit", "objective", "3", "2", "distill-relations"):
        build("distill-attention", vocabulary)(passed(heads(-1, 2, 4), heads(-1, 3, 4)))
    wrong: dict[str, dict[str, Any]] = {
        "got 2 and 1": {"layers": (1, 2)},
        "got 0 and 0": {"layers": (), "teacher_layers": ()},
        "layer 0 has no attention": {"layers": (0,)},
    }
    for message, options in wrong.items():
        with pytest.raises(ValueError, match=message):
            build("distill-attention", vocabulary, **options)


def test_the_cost_is_that_of_the_products(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("distill-attention", vocabulary, layers=(1, 2), teacher_layers=(1, 2))
    assert objective.cost(Load(5, 5, head_positions=5)).flops == 2 * (2 * 5 * 5 * 8)
    assert not list(objective.parameters())
