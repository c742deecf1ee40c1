"""Losses and accuracy, compared with loops."""

import math

import pytest
import torch

from paribus import IGNORED
from paribus_objective import scoring


def test_cross_entropy_is_the_sum_over_labels_that_are_not_ignored() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 5, dtype=torch.float64)
    labels = torch.tensor([[0, IGNORED, 4], [IGNORED, 2, 2]])
    by_hand = 0.0
    for b in range(2):
        for t in range(3):
            label = int(labels[b, t])
            if label != IGNORED:
                scores = logits[b, t].tolist()
                by_hand += math.log(sum(math.exp(score) for score in scores)) - scores[label]
    term = scoring.cross_entropy(logits, labels)
    assert term.total.item() == pytest.approx(by_hand, abs=1e-12)
    assert term.count == 4
    assert term.weight == 1


def test_cross_entropy_accepts_one_label_per_sequence() -> None:
    term = scoring.cross_entropy(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))
    assert term.total.item() == pytest.approx(4 * math.log(2))
    assert term.count == 4


def test_accuracy_counts_labels_that_are_not_ignored() -> None:
    metric = scoring.accuracy(3)
    scoring.update(metric, torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, IGNORED, 1]))
    scoring.update(metric, torch.tensor([0]), torch.tensor([2]))
    assert metric.compute() == pytest.approx(2 / 4)
