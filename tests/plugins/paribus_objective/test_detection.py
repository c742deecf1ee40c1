"""Detection of replaced tokens: labels, loss and cost."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from paribus import IGNORED, PADDING, Draw, ForwardPass, Load, Objective, Stream, TrainingExamples, Vocabulary

Build = Callable[..., Objective]
Passed = Callable[[TrainingExamples], ForwardPass]
CLS = 1


def text(rows: int) -> Stream:
    tokens = torch.arange(rows * 40).reshape(rows, 40) * 7 % 74 + 6
    tokens[:, 0] = CLS
    documents = torch.where(torch.arange(40) < 37, 0, PADDING).expand(rows, -1)
    return Stream(tokens, documents=documents)


def replaced(objective: Objective, rows: int) -> tuple[Stream, TrainingExamples]:
    body = text(rows)
    return body, objective.corrupt({"body": body}, {}, Draw(0, 0, torch.arange(rows)))


def test_labels_mark_the_replaced_tokens(build: Build, vocabulary: Vocabulary) -> None:
    body, formed = replaced(build("detection", vocabulary, rate=0.3), 200)
    inputs, labels = formed.streams["body"].tokens, formed.targets["labels"]
    assert (labels[:, 37:] == IGNORED).all()
    assert torch.equal(labels[:, :37] == 1, (inputs != body.tokens)[:, :37])
    assert torch.equal(inputs[:, 37:], body.tokens[:, 37:])
    assert (inputs[:, 0] == CLS).all()
    assert not labels[:, 0].any()
    assert (inputs[:, 1:] >= 6).all()
    share = 0.3 * 73 / 74
    assert (labels[:, 1:37] == 1).double().mean().item() == pytest.approx(share, abs=4 * (share / 200 / 36) ** 0.5)


def test_the_loss_of_constant_scores_equals_that_of_frequencies(
    build: Build, passed: Passed, vocabulary: Vocabulary
) -> None:
    objective: Any = build("detection", vocabulary, rate=0.3)
    _, formed = replaced(objective, 4)
    run = passed(formed)
    term = objective(run)["loss"]
    labels = formed.targets["labels"]
    by_hand = 0.0
    for rows, row_labels in zip(run.hidden(), labels.tolist(), strict=True):
        for row, label in zip(rows, row_labels, strict=True):
            if label != IGNORED:
                inner = nn.functional.gelu(row @ objective.detector.dense.weight.T + objective.detector.dense.bias)
                probability = torch.sigmoid(
                    inner @ objective.detector.scores.weight[0] + objective.detector.scores.bias[0]
                ).item()
                by_hand -= math.log(probability if label else 1 - probability)
    assert term.total.item() == pytest.approx(by_hand, rel=1e-9)
    assert term.count == (labels != IGNORED).sum()
    share = 0.3 * 73 / 74
    counted_labels = labels[labels != IGNORED].tolist()
    nats = [-math.log(share if label else 1 - share) for label in counted_labels]
    assert objective.unigram_loss(None, formed.targets) == pytest.approx(sum(nats) / len(nats), rel=1e-12)


def test_the_cost_of_the_head_equals_the_count_of_torch(build: Build, vocabulary: Vocabulary) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    objective = build("detection", vocabulary, add_first_token=True)
    with FlopCounterMode(display=False) as counter:
        objective.logits(torch.randn(2, 9, 8, dtype=torch.float64), lambda h, bias=None: h)
    assert 2 * objective.cost(Load(9, 9, head_positions=objective.head_positions(9))).flops == counter.get_total_flops()
