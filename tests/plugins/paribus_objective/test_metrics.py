"""Metrics, compared with their formulas."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from paribus import IGNORED
from paribus_objective.metrics import AnswerMatch, Correlation, Matthews, f1
from paribus_objective.scoring import accuracy

GUESSES, LABELS = [0, 1, 1, 0, 2, 2, 1, 0, 2, 1], [0, 1, 0, 0, 2, 1, 1, 2, 2, 1]


def updated(metric: Any, predictions: list[int], labels: list[int]) -> float:
    """Update a metric with two batches and ignored labels between them."""
    for rows in (slice(0, 4), slice(4, None)):
        metric.update(torch.tensor([*predictions[rows], 1]), torch.tensor([*labels[rows], IGNORED]))
    return float(metric.compute())


def f1_of(kind: int, predictions: list[int], labels: list[int]) -> float:
    hits = sum(a == b == kind for a, b in zip(predictions, labels, strict=True))
    return 2 * hits / (predictions.count(kind) + labels.count(kind))


def test_accuracy_is_the_share_of_right_predictions() -> None:
    right = sum(a == b for a, b in zip(GUESSES, LABELS, strict=True))
    assert updated(accuracy(3), GUESSES, LABELS) == pytest.approx(right / len(LABELS))


def test_f1_is_of_class_1_for_two_classes_and_else_the_mean() -> None:
    two = [[min(value, 1) for value in values] for values in (GUESSES, LABELS)]
    assert updated(f1(2), *two) == pytest.approx(f1_of(1, *two))
    assert updated(f1(3), GUESSES, LABELS) == pytest.approx(sum(f1_of(kind, GUESSES, LABELS) for kind in range(3)) / 3)


def test_matthews_is_the_correlation_of_predictions_with_labels() -> None:
    two = [[min(value, 1) for value in values] for values in (GUESSES, LABELS)]
    assert updated(Matthews(2), *two) == pytest.approx(np.corrcoef(two[0], two[1])[0, 1])
    tp, tn = (sum(a == b == kind for a, b in zip(*two, strict=True)) for kind in (1, 0))
    fp, fn = (sum(a == kind and b != kind for a, b in zip(*two, strict=True)) for kind in (1, 0))
    formula = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert updated(Matthews(2), *two) == pytest.approx(formula)
    hot = [np.eye(3)[values] - np.eye(3)[values].mean(0) for values in (GUESSES, LABELS)]
    expected = (hot[0] * hot[1]).sum() / math.sqrt((hot[0] ** 2).sum() * (hot[1] ** 2).sum())  # Gorodkin's
    assert updated(Matthews(3), GUESSES, LABELS) == pytest.approx(expected)


@pytest.mark.parametrize("labels", [[0, 1, 1, 0, 1], [1] * 5])
def test_a_constant_guess_has_no_matthews_correlation(labels: list[int]) -> None:
    assert updated(Matthews(2), [1] * 5, labels) == 0


@pytest.mark.parametrize("kind", ["pearson", "spearman"])
def test_correlations_equal_those_of_scipy(kind: Any) -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 6, 50) / 5
    predictions = labels + draw.normal(size=50)
    metric = Correlation(kind)
    for rows in (slice(0, 20), slice(20, 50)):
        metric.update(torch.tensor(predictions[rows], dtype=torch.float32), torch.tensor(labels[rows]))
    expected = stats.pearsonr(predictions, labels) if kind == "pearson" else stats.spearmanr(predictions, labels)
    assert float(metric.compute()) == pytest.approx(expected.statistic, abs=1e-6)


@pytest.mark.parametrize("kind", ["pearson", "spearman"])
@pytest.mark.parametrize(
    ("predictions", "labels"), [([1.0, 1.0, 1.0], [0.0, 1.0, 2.0]), ([0.0, 1.0], [2.0, 2.0]), ([1.0], [1.0])]
)
def test_constant_values_have_no_correlation(kind: Any, predictions: list[float], labels: list[float]) -> None:
    metric = Correlation(kind)
    metric.update(torch.tensor(predictions), torch.tensor(labels))
    assert float(metric.compute()) == 0


def answer_match(rows: list[tuple[int, float, float, float, float]], threshold: float = 0.0) -> float:
    metric = AnswerMatch(threshold=threshold)
    for window in rows:
        metric.update(*(torch.tensor([value]) for value in window))
    return float(metric.compute())


def test_the_best_span_of_all_windows_counts() -> None:
    rows = [
        (7, 0.8, 0.0, 2.0, 1.0),
        (7, 0.0, 0.0, 1.5, 5.0),  # no answer in this window alone
        (2, 0.0, 1.0, 1.0, 1.5),
        (2, 0.0, 1.0, 1.2, 1.3),
        (4, 1.0, 0.0, 0.0, 0.0),
    ]
    assert answer_match(rows) == pytest.approx((0.8 + 1 + 1) / 3)
    assert answer_match(rows, threshold=1.0) == pytest.approx((0.8 + 0 + 1) / 3)
    assert answer_match(rows, threshold=-2.0) == pytest.approx((0 + 1 + 0) / 3)
