"""Distillation of a teacher's scores at a temperature, on all rows but padding."""

import math
from collections.abc import Callable

import pytest
import torch
from tests.fixtures.problems import raises_problem
from tests.plugins.paribus_objective.conftest import GivenPass
from torch import Tensor

from paribus import IGNORED, Draw, Objective, SpecError, Stream, Vocabulary

Build = Callable[..., Objective]

DRAW = Draw(0, 0, torch.arange(2))


def softmax(scores: list[float], temperature: float) -> list[float]:
    powers = [math.exp(score / temperature) for score in scores]
    return [power / sum(powers) for power in powers]


def by_hand(student: Tensor, teacher: Tensor, counted: Tensor, temperature: float) -> float:
    """t² · Σ over rows and classes of p (log p - log q)."""
    total = 0.0
    for b in range(counted.shape[0]):
        for t in range(counted.shape[1]):
            if counted[b, t] == IGNORED:
                continue
            q, p = softmax(student[b, t].tolist(), temperature), softmax(teacher[b, t].tolist(), temperature)
            total += temperature**2 * sum(x * (math.log(x) - math.log(y)) for x, y in zip(p, q, strict=True))
    return total


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_loss_is_the_divergence_times_the_squared_temperature(
    temperature: float, build: Build, vocabulary: Vocabulary
) -> None:
    student, teacher = torch.randn(2, 2, 5, 7, dtype=torch.float64).unbind()
    counted = torch.zeros(2, 5, dtype=torch.long)
    counted[1, 3:] = IGNORED
    objective = build("distill-scores", vocabulary, temperature=temperature, weight=2.5)
    term = objective(GivenPass(student, student, {"counted": counted}, GivenPass(teacher, teacher, {})))["loss"]
    assert float(term.total) == pytest.approx(by_hand(student, teacher, counted, temperature), rel=1e-12)
    assert (int(term.count), term.weight) == (8, 2.5)


def test_equal_scores_have_no_loss(build: Build, vocabulary: Vocabulary) -> None:
    scores = torch.randn(2, 5, 7, dtype=torch.float64).requires_grad_()
    rows = {"counted": torch.zeros(2, 5, dtype=torch.long)}
    shifted = scores.detach() + 3.0  # a constant shift of all classes changes nothing
    term = build("distill-scores", vocabulary)(GivenPass(scores, scores, rows, GivenPass(shifted, shifted, {})))["loss"]
    term.total.backward()
    assert float(term.total.detach()) == pytest.approx(0, abs=1e-12)
    assert scores.grad is not None
    assert scores.grad.abs().max() < 1e-12


def test_gradients_keep_their_size_at_high_temperatures(build: Build, vocabulary: Vocabulary) -> None:
    student, teacher = torch.randn(2, 1, 3, 7, dtype=torch.float64).unbind()
    gradients = []
    for temperature in (50.0, 500.0):
        scores = student.clone().requires_grad_()
        objective = build("distill-scores", vocabulary, temperature=temperature)
        targets = {"counted": torch.zeros(1, 3, dtype=torch.long)}
        objective(GivenPass(scores, scores, targets, GivenPass(teacher, teacher, {})))["loss"].total.backward()
        assert scores.grad is not None
        gradients.append(scores.grad)
    # equation 4: (z - v) / N, of scores less their means
    centred = [side_scores - side_scores.mean(-1, keepdim=True) for side_scores in (student, teacher)]
    torch.testing.assert_close(gradients[1], (centred[0] - centred[1]) / 7, rtol=0.02, atol=1e-3)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0.1, atol=0.01)


def test_padding_has_no_loss(build: Build, vocabulary: Vocabulary) -> None:
    stream = Stream(torch.ones(2, 3, dtype=torch.long), documents=torch.tensor([[0, 0, -1], [0, 1, 1]]))
    formed = build("distill-scores", vocabulary).corrupt({"body": stream}, {}, DRAW)
    assert formed.targets["counted"].tolist() == [[0, 0, IGNORED], [0, 0, 0]]
    assert formed.streams["body"] is stream


def test_another_vocabulary_is_refused(build: Build, vocabulary: Vocabulary) -> None:
    student, teacher = torch.zeros(1, 2, 7), torch.zeros(1, 2, 8)
    run = GivenPass(student, student, {"counted": torch.zeros(1, 2)}, GivenPass(teacher, teacher, {}))
    with raises_problem(SpecError, "does-not-fit", "teacher", "8", "7"):
        build("distill-scores", vocabulary)(run)
