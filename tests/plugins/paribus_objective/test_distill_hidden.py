"""Distillation of hidden rows by cosine or squared distance."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.fixtures.problems import raises_problem
from tests.plugins.paribus_objective.conftest import GivenPass

from paribus import IGNORED, Load, Objective, SpecError, Vocabulary

Build = Callable[..., Objective]


def cosine(x: list[float], y: list[float]) -> float:
    dot = sum(a * b for a, b in zip(x, y, strict=True))
    return 1 - dot / math.sqrt(sum(a * a for a in x) * sum(b * b for b in y))


def squared(x: list[float], y: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) / len(x)


@pytest.mark.parametrize(("loss", "distance"), [("cosine", cosine), ("squared", squared)])
def test_the_loss_compares_each_hidden_state_with_the_teachers(
    loss: str, distance: Callable[[list[float], list[float]], float], build: Build, vocabulary: Vocabulary
) -> None:
    student, teacher = torch.randn(2, 2, 5, 16, dtype=torch.float64).unbind()
    counted = torch.zeros(2, 5, dtype=torch.long)
    counted[0, 4] = IGNORED
    objective = build("distill-hidden", vocabulary, loss=loss, weight=0.5)
    term = objective(GivenPass(student, student, {"counted": counted}, GivenPass(teacher, teacher, {})))["loss"]
    positions = [(b, t) for b in range(2) for t in range(5) if counted[b, t] != IGNORED]
    expected = sum(distance(student[position].tolist(), teacher[position].tolist()) for position in positions)
    assert float(term.total) == pytest.approx(expected, rel=1e-12)
    assert (int(term.count), term.weight) == (9, 0.5)
    assert not list(objective.parameters())


def test_hidden_states_are_projected_to_the_teachers_width(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("distill-hidden", vocabulary, width=24, loss="squared")
    (matrix,) = objective.parameters()
    width = matrix.shape[1]
    assert tuple(matrix.shape) == (24, width)
    assert objective.cost(Load(4, 4, head_positions=4)).flops == 2 * 4 * 24 * width
    student, teacher = torch.randn(1, 3, width, dtype=torch.float64), torch.randn(1, 3, 24, dtype=torch.float64)
    targets = {"counted": torch.zeros(1, 3, dtype=torch.long)}
    term = objective(GivenPass(student, student, targets, GivenPass(teacher, teacher, {})))["loss"]
    expected = (student @ matrix.T - teacher).square().mean(-1).sum()
    assert float(term.total.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)


def test_a_teacher_of_another_width_is_refused_with_the_option(build: Build, vocabulary: Vocabulary) -> None:
    student, teacher = torch.zeros(1, 2, 7), torch.zeros(1, 2, 8)
    run = GivenPass(student, student, {"counted": torch.zeros(1, 2)}, GivenPass(teacher, teacher, {}))
    with raises_problem(SpecError, "does-not-fit", "teacher", "8", "7"):
        build("distill-hidden", vocabulary)(run)


def test_hidden_states_of_layers_are_compared_with_the_chosen_teacher_layers(
    build: Build, vocabulary: Vocabulary
) -> None:
    objective = build(
        "distill-hidden", vocabulary, width=16, loss="squared", layers=(0, 1, -1), teacher_layers=(0, 3, -1)
    )
    assert sorted(name for name, _ in objective.named_parameters()) == ["enter.weight", "project.weight"]
    student = {(layer, "hidden"): torch.randn(2, 3, 8, dtype=torch.float64) for layer in (0, 1, -1)}
    teacher = {(layer, "hidden"): torch.randn(2, 3, 16, dtype=torch.float64) for layer in (0, 3, -1)}
    counted = torch.zeros(2, 3, dtype=torch.long)
    nothing = torch.empty(0)
    run = GivenPass(nothing, nothing, {"counted": counted}, GivenPass(nothing, nothing, {}, layers=teacher), student)
    expected = 0.0
    for layer, teacher_layer in ((0, 0), (1, 3), (-1, -1)):
        matrix = objective.get_parameter("project.weight" if layer else "enter.weight")
        projected = student[layer, "hidden"] @ matrix.T
        pairs = zip(
            projected.flatten(0, 1).tolist(), teacher[teacher_layer, "hidden"].flatten(0, 1).tolist(), strict=True
        )
        expected += sum(squared(x, y) for x, y in pairs)
    assert float(objective(run)["loss"].total.detach()) == pytest.approx(expected, rel=1e-12)
    assert objective.captures.hidden == (0, 1, -1)
    assert objective.teacher_captures.hidden == (0, 3, -1)
    assert objective.cost(Load(4, 4, head_positions=4)).flops == 3 * 2 * 4 * 8 * 16


def test_student_and_teacher_layers_must_be_equally_many(build: Build, vocabulary: Vocabulary) -> None:
    with pytest.raises(ValueError, match=r"`layers` .* got 2 and 1"):
        build("distill-hidden", vocabulary, layers=(1, 2), teacher_layers=(3,))
