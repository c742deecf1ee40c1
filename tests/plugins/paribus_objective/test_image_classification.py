"""Image classification: examples, labels, heads and metrics."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.fixtures.problems import raises_problem
from tests.plugins.paribus_objective.conftest import GivenPass
from torch import nn
from torch.nn import functional

from paribus import (
    DataError,
    Draw,
    Labels,
    Load,
    Objective,
    TrainingExamples,
    Vocabulary,
)

Build = Callable[..., Objective]
VALUES = 12


@dataclass
class ImageCorpus:
    ids: Any
    sentences: Any
    documents: Any
    targets: Any = None
    languages: Any = None
    labels: Any = None


def corpus(labels: list[int], sizes: list[int] | None = None) -> ImageCorpus:
    """Images with consecutive values, each of one sentence."""
    ends = np.cumsum([0, *(sizes or [VALUES] * len(labels))])
    numbers = np.arange(len(labels) + 1)
    image_labels = Labels(np.array(labels, np.float64), numbers)
    return ImageCorpus((np.arange(ends[-1]) % 256).astype(np.uint16), ends, numbers, labels=image_labels)


def form(objective: Objective, tokens: Any, index: list[int]) -> TrainingExamples:
    return objective.form(tokens, 5, Draw(0, 0, torch.tensor(index)))


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary(257, {"mask": 256})


def test_an_example_is_an_image_and_its_label(build: Build, vocabulary: Vocabulary) -> None:
    objective, tokens = build("image-classify", vocabulary), corpus([3, 0, 700, 999])
    assert objective.example_count(tokens, 5) == 4
    formed = form(objective, tokens, [2, 0])
    stream = formed.streams["body"]
    assert stream.tokens.tolist() == [list(range(24, 36)), list(range(12))]
    assert stream.tokens.dtype == torch.uint8
    assert all(vector is None for vector in stream[1:])
    assert formed.targets["labels"].tolist() == [700, 3]


def test_images_of_different_sizes_are_refused(build: Build, vocabulary: Vocabulary) -> None:
    objective, tokens = build("image-classify", vocabulary), corpus([0, 1, 2], [12, 12, 9])
    assert form(objective, tokens, [0, 1]).streams["body"].tokens.shape == (2, 12)
    with raises_problem(DataError, "image-size-mismatch", "9", "12"):
        form(objective, tokens, [1, 2])


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_of_the_first_token_and_smoothed_only_in_training(
    head: str, smoothing: float, build: Build, vocabulary: Vocabulary
) -> None:
    objective = build("image-classify", vocabulary, classes=5, head=head, smoothing=smoothing)
    rows, labels = torch.randn(3, 4, 8, dtype=torch.float64), [4, 0, 2]
    heads: Any = objective.head
    scores = heads(rows[:, 0]) if head == "linear" else heads.scores(torch.tanh(heads.dense(rows[:, 0])))
    logs = scores.log_softmax(-1)
    for training in (True, False):
        share = smoothing if training else 0.0
        expected = sum(-(1 - share) * logs[row, label] - share * logs[row].mean() for row, label in enumerate(labels))
        term = objective.train(training)(GivenPass(rows, rows, {"labels": torch.tensor(labels)}))["loss"]
        assert abs(term.total - expected) < 1e-12
        assert int(term.count) == 3


def test_accuracy_is_the_share_of_right_classes(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("image-classify", vocabulary, classes=5)
    rows = torch.randn(6, 2, 8, dtype=torch.float64)
    best = objective.head(rows[:, 0]).argmax(-1).tolist()  # type: ignore[operator]  # a module
    labels = [*best[:4], *((guess + 1) % 5 for guess in best[4:])]
    metrics = objective.metrics()
    objective.update_metrics(GivenPass(rows, rows, {"labels": torch.tensor(labels)}), metrics)
    assert float(metrics["accuracy"].compute()) == pytest.approx(4 / 6)


def test_the_loss_of_frequencies_is_the_entropy_of_the_labels(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("image-classify", vocabulary, classes=4)
    even = corpus([0, 1, 2, 3] * 5)
    assert objective.unigram_loss(even, {"labels": torch.tensor([0, 1, 2, 3])}) == pytest.approx(math.log(4))
    # 3 + 1 of 8, 1 + 1, 0 + 1, 0 + 1
    assert objective.unigram_loss(corpus([0, 0, 0, 1]), {"labels": torch.tensor([0, 2])}) == pytest.approx(
        -(math.log(4 / 8) + math.log(1 / 8)) / 2
    )


@pytest.mark.parametrize(("head", "flops"), [("linear", 2 * 8 * 5), ("mlp", 2 * 8 * (8 + 5))])
def test_the_head_runs_on_one_position(head: str, flops: int, build: Build, vocabulary: Vocabulary) -> None:
    objective = build("image-classify", vocabulary, classes=5, head=head)
    assert objective.head_positions(197) == 1
    assert objective.cost(Load(197, 197, head_positions=1)).flops == flops
    roles = {name for module in objective.modules() for name in getattr(type(module), "roles", {})}
    assert roles >= {"head.weight"}


def test_text_objectives_on_images_are_compared_with_uniform_predictions(build: Build) -> None:
    vocabulary = Vocabulary(50, {"cls": 0, "sep": 1})
    for name in ("nsp", "sop"):
        assert build(name, vocabulary).unigram_loss(corpus([0]), {"labels": torch.tensor([0])}) == math.log(2)
    assert functional.cross_entropy(torch.zeros(1, 2), torch.tensor([1])) == pytest.approx(math.log(2))
    assert isinstance(build("nsp", vocabulary), nn.Module)
