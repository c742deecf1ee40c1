"""Permutation language modelling: order of tokens, and no visible label."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paribus import IGNORED, PADDING, Draw, ForwardPass, Objective, Stream, TrainingExamples, Vocabulary

Build = Callable[..., Objective]
Passed = Callable[[TrainingExamples], ForwardPass]

LENGTH = 32


@pytest.fixture
def objective(build: Build, vocabulary: Vocabulary) -> Objective:
    return build("permutation", vocabulary)


def corrupted(
    objective: Objective, rows: int = 64, epoch: int = 0, tokens: Tensor | None = None, **vectors: Tensor
) -> TrainingExamples:
    text = torch.arange(rows * LENGTH).reshape(rows, LENGTH) * 7 % 74 + 6 if tokens is None else tokens
    return objective.corrupt({"body": Stream(text, **vectors)}, {}, Draw(0, epoch, torch.arange(len(text))))


def queries(formed: TrainingExamples) -> tuple[Tensor, Tensor, Tensor]:
    """Positions of the query rows, their order and their labels."""
    body = formed.streams["body"]
    assert body.query_positions is not None
    assert body.order is not None
    return body.query_positions, body.order, formed.targets["labels"]


def test_predicted_tokens_come_last_in_a_random_order(objective: Objective) -> None:
    formed = corrupted(objective)
    pick, order, labels = queries(formed)
    for row in range(len(labels)):
        real = labels[row] != IGNORED
        ranks = sorted(order[row, pick[row, real]].tolist())
        assert ranks == [2 * rank for rank in range(1, int(real.sum()) + 1)]
        assert int((order[row] > 0).sum()) == int(real.sum())
        assert torch.equal(labels[row, real], formed.streams["body"].tokens[row, pick[row, real]])


def test_tokens_are_unchanged_and_a_sixth_is_predicted(objective: Objective) -> None:
    formed = corrupted(objective, rows=2000)
    assert torch.equal(formed.streams["body"].tokens, torch.arange(2000 * LENGTH).reshape(2000, LENGTH) * 7 % 74 + 6)
    _, _, labels = queries(formed)
    assert labels.shape[1] == objective.head_positions(LENGTH) == 6
    assert float((labels != IGNORED).sum()) / (2000 * LENGTH) == pytest.approx(1 / 6, abs=0.002)


def test_every_order_of_two_is_equally_likely(build: Build, vocabulary: Vocabulary) -> None:
    pick, order, _ = queries(corrupted(build("permutation", vocabulary, rate=1.0), rows=4000))
    ranks = order.gather(1, pick).double()
    share = (ranks[:, 3] < ranks[:, 17]).double().mean()
    assert float(share) == pytest.approx(0.5, abs=0.03)
    assert float(ranks.mean(0).std()) < 1.0


def test_special_tokens_and_padding_are_never_predicted(objective: Objective) -> None:
    tokens = torch.arange(64 * LENGTH).reshape(64, LENGTH) * 7 % 74 + 6
    tokens[:, 0], tokens[:, 5] = 1, 2
    documents = torch.zeros_like(tokens)
    documents[:, 7:] = PADDING
    special = torch.zeros_like(tokens, dtype=torch.bool)
    special[:, 3] = True
    pick, _, labels = queries(corrupted(objective, tokens=tokens, documents=documents, special=special))
    predicted = pick[labels != IGNORED]
    assert set(predicted.tolist()) == {1, 2, 4, 6}
    assert ((labels != IGNORED).sum(1) >= 1).all()


def test_an_order_depends_on_the_epoch_and_not_on_the_batch(objective: Objective) -> None:
    formed = corrupted(objective)
    assert torch.equal(queries(formed)[1], queries(corrupted(objective))[1])
    assert not torch.equal(queries(formed)[1], queries(corrupted(objective, epoch=1))[1])
    tokens = formed.streams["body"].tokens[9:11]
    few = objective.corrupt({"body": Stream(tokens)}, {}, Draw(0, 0, torch.tensor([9, 10])))
    for few_values, values in zip(queries(few), queries(formed), strict=True):
        assert torch.equal(few_values, values[9:11])


def test_the_loss_is_of_the_query_tokens(build: Build, passed: Passed, vocabulary: Vocabulary) -> None:
    objective = build("permutation", vocabulary)
    formed = corrupted(objective, rows=4)
    run = passed(formed)
    labels = formed.targets["labels"]
    scores = run.unembed(run.hidden()[:, -labels.shape[1] :], objective.get_parameter("bias"))
    total = torch.nn.functional.cross_entropy(
        scores.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=IGNORED
    )
    term = objective(run)["loss"]
    torch.testing.assert_close(term.total, total, rtol=0, atol=1e-12)
    assert int(term.count) == int((labels != IGNORED).sum())
