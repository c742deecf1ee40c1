"""Distillation of relations between rows."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from tests.plugins.paribus_objective.conftest import GivenPass
from torch import Tensor

import paribus
from paribus import IGNORED, PADDING, Load, Objective, SpecError, Stream, Vocabulary
from paribus.assembly.forward_pass import BatchForward
from paribus.parts.batch import Batch
from paribus.parts.context import Capture
from paribus.registry import installed
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial
from paribus_objective.distill_relations import attention_mask, log_relation

Build = Callable[..., Objective]
Heads = dict[tuple[int, str], Tensor]


def heads(layer: int, count: int, width: int, kv: int | None = None) -> Heads:
    """Queries, keys and values of a layer: (2, H, 5, K)."""
    sizes = {"q": count, "k": kv or count, "v": kv or count}
    return {(layer, name): torch.randn(2, size, 5, width, dtype=torch.float64) for name, size in sizes.items()}


def head_features(x: Tensor, b: int, t: int, head: int, query_heads: int, relation_heads: int) -> list[float]:
    """Features of one row in one relation head."""
    side: list[float] = []
    for h in range(query_heads):
        side += x[b, h * x.shape[1] // query_heads, t].tolist()
    width = len(side) // relation_heads
    return side[head * width : (head + 1) * width]


def softmax(scores: list[float]) -> list[float]:
    maximum = max(scores)
    powers = [math.exp(score - maximum) for score in scores]
    return [power / sum(powers) for power in powers]


def by_hand(
    student: Heads, teacher: Heads, relation: str, relation_heads: int, is_visible: Callable[[int, int, int], bool]
) -> float:
    total = 0.0
    for b in range(2):
        for t in range(5):
            visible = [s for s in range(5) if is_visible(b, t, s)]
            for head in range(relation_heads) if visible else ():
                distributions = []
                for side in (student, teacher):
                    (layer, _), q = next((key, value) for key, value in side.items() if key[1] == "q")
                    left, right = (side[layer, name] for name in relation)
                    x = head_features(left, b, t, head, q.shape[1], relation_heads)
                    rows = [head_features(right, b, s, head, q.shape[1], relation_heads) for s in visible]
                    products = [sum(i * j for i, j in zip(x, y, strict=True)) / math.sqrt(len(x)) for y in rows]
                    distributions.append(softmax(products))
                total += sum(p * math.log(p / q) for q, p in zip(*distributions, strict=True)) / relation_heads
    return total


@pytest.mark.parametrize("relations", [("qk", "vv"), ("qq", "kk", "vv")])
@pytest.mark.parametrize("shape", ["alike", "grouped", "another"])
def test_relations_equal_those_of_the_papers(
    relations: tuple[str, ...], shape: str, build: Build, vocabulary: Vocabulary
) -> None:
    relation_heads = {"alike": None, "grouped": 2, "another": 4}[shape]
    student = heads(-1, 2, 4, kv=1 if shape == "grouped" else None)
    teacher = heads(3, *{"alike": (2, 6), "grouped": (4, 4, 2), "another": (3, 8)}[shape])
    documents = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, PADDING]])
    counted = torch.zeros(2, 5, dtype=torch.long).masked_fill(documents < 0, IGNORED)
    objective = build(
        "distill-relations", vocabulary, relations=relations, heads=relation_heads, teacher_layer=3, weight=0.5
    )
    nothing = torch.empty(0)

    class StreamPass(GivenPass):
        @property
        def streams(self) -> dict[str, Stream]:
            return {"body": Stream(counted, documents)}

    run = StreamPass(nothing, nothing, {"counted": counted}, GivenPass(nothing, nothing, {}, layers=teacher), student)
    term = objective(run)["loss"]

    def is_visible(b: int, t: int, s: int) -> bool:
        return bool(documents[b, t] == documents[b, s] and documents[b, t] >= 0)

    expected = sum(by_hand(student, teacher, relation, relation_heads or 2, is_visible) for relation in relations)
    assert float(term.total) == pytest.approx(expected, rel=1e-9)
    assert (int(term.count), term.weight) == (9, 0.5)
    assert objective.captures == Capture(heads=(-1,))
    assert objective.teacher_captures == Capture(heads=(3,))


def test_tokens_are_related_only_to_visible_tokens(build: Build, vocabulary: Vocabulary) -> None:
    rows = torch.zeros(1, 3, dtype=torch.long)
    assert attention_mask(None, rows, causal=False)[0, 0].int().tolist() == [[1, 1, 1]] * 3
    documents = torch.tensor([[0, 0, 1]])
    assert attention_mask(documents, rows, causal=True)[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


def test_query_key_relations_are_attention_weights() -> None:
    model = paribus.assemble(resolved("gpt-tiny", "position=rope"), registry=installed(no_plugins=True)).double()
    batch = Batch({"body": Stream(torch.arange(24).reshape(2, 12))}, {}, torch.arange(2))
    with torch.no_grad():
        captured = (
            BatchForward(model.topology, batch, capture=Capture(weights=True, heads=(2,))).output("body").captured[1]
        )
    mask = attention_mask(None, torch.zeros(2, 12), causal=True)
    relation = log_relation(captured["q"], captured["k"], 4, 4, mask).exp()
    torch.testing.assert_close(relation, captured["weights"], rtol=0, atol=1e-12)


def test_unfitting_options_are_refused_with_valid_ones(build: Build, vocabulary: Vocabulary) -> None:
    counted, nothing = torch.zeros(2, 5, dtype=torch.long), torch.empty(0)

    class StreamPass(GivenPass):
        @property
        def streams(self) -> dict[str, Stream]:
            return {"body": Stream(counted)}

    def run(**options: Any) -> None:
        teacher = GivenPass(nothing, nothing, {}, layers=heads(-1, 3, 8))
        objective = build("distill-relations", vocabulary, **options)
        objective(StreamPass(nothing, nothing, {"counted": counted}, teacher, heads(-1, 2, 4)))

    with raises_problem(SpecError, "does-not-fit", "objective", "3", "2"):
        run()
    with raises_problem(SpecError, "does-not-fit", "objective.heads", "8", "3"):
        run(heads=3)
    with pytest.raises(ValueError, match=r"`relations` .* got qq, qq"):
        build("distill-relations", vocabulary, relations=("qq", "qq"))
    with pytest.raises(ValueError, match="layer 0 has no attention"):
        build("distill-relations", vocabulary, layer=0)


def test_the_cost_is_that_of_the_relation_products(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("distill-relations", vocabulary, relations=("qk", "vv"))
    assert objective.cost(Load(5, 5, head_positions=5)).flops == 2 * (2 * 5 * 5 * 8)
    assert not list(objective.parameters())


@pytest.mark.slow
def test_a_distilled_student_learns_faster(tmp_path: Path) -> None:
    registry = installed(no_plugins=True)
    taught = resolved("encoder-tiny", "trainer.max_steps=600", "data.validation=256", registry=registry)
    for name in ("teacher", "alone", "taught"):
        (tmp_path / name).mkdir()
    run_trial(taught, registry, TrialContext("teacher", tmp_path / "teacher"))
    small = ("dims.width=32", "dims.layers=1", "trainer.max_steps=150", "data.validation=256", "seed=1")
    alone = resolved("encoder-tiny", *small, registry=registry)
    with_it = resolved(
        "encoder-tiny",
        *small,
        "objective=[mlm, {name: distill-relations, relations: [qk, vv]}, {name: distill-scores, weight: 2.0}]",
        f"teacher={tmp_path / 'teacher'}",
        registry=registry,
    )
    losses = {}
    for name, spec in (("alone", alone), ("taught", with_it)):
        losses[name] = run_trial(spec, registry, TrialContext(name, tmp_path / name))["result"]["metrics"][
            "val/mlm/loss"
        ]
    assert losses["taught"] < losses["alone"]
