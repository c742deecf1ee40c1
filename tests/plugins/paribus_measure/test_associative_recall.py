"""Associative recall, compared with loops over tokens; and the threshold of its curve."""

from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import Batch, Stream
from paribus_measure.associative_recall import AssociativeRecall
from paribus_measure.steps_to_threshold import StepsToThreshold


def random_batch(count: int, documents: Tensor | None = None) -> Batch:
    tokens = torch.randint(2, 6, (count, 16), generator=torch.Generator().manual_seed(count))
    return Batch({"body": Stream(tokens, documents)}, {}, torch.arange(count))


def logits_of(batch: Batch) -> Tensor:
    generator = torch.Generator().manual_seed(len(batch.index))
    return torch.randn(*batch.streams["body"].tokens.shape, 24, generator=generator, dtype=torch.float64) * 3


def recall_by_loop(batches: list[Batch]) -> dict[str, float]:
    repeats: list[tuple[float, bool]] = []
    others_losses: list[float] = []
    for batch in batches:
        body, scores = batch.streams["body"], logits_of(batch).log_softmax(-1)
        for row, tokens in enumerate(body.tokens.tolist()):
            documents = [0] * 16 if body.documents is None else body.documents[row].tolist()
            for t in range(15):
                if documents[t] != documents[t + 1] or documents[t] < 0:
                    continue
                loss, guess = -float(scores[row, t, tokens[t + 1]]), int(scores[row, t].argmax())
                previous_pairs = [(tokens[s], tokens[s + 1]) for s in range(t) if documents[s] == documents[t]]
                if (tokens[t], tokens[t + 1]) in previous_pairs:
                    repeats.append((loss, guess == tokens[t + 1]))
                else:
                    others_losses.append(loss)
    return {
        "loss": sum(loss for loss, _ in repeats) / len(repeats),
        "accuracy": sum(is_correct for _, is_correct in repeats) / len(repeats),
        "rest": sum(others_losses) / len(others_losses),
        "share": len(repeats) / (len(repeats) + len(others_losses)),
    }


def test_loss_and_accuracy_equal_those_of_a_loop(fake_model: Any) -> None:
    documents = torch.tensor([[0] * 6 + [1] * 7 + [-1] * 3]).expand(4, -1)
    for batches in ([random_batch(3), random_batch(2)], [random_batch(4, documents)]):
        values = AssociativeRecall().measure(fake_model(batches, logits_of=logits_of))
        assert values == pytest.approx(recall_by_loop(batches), rel=1e-9)


def test_without_repeated_tokens_there_is_no_score(fake_model: Any) -> None:
    distinct = Batch({"body": Stream(torch.arange(2, 18)[None])}, {}, torch.arange(1))
    values = AssociativeRecall().measure(fake_model([distinct], logits_of=logits_of))
    assert set(values.values()) == {"expected repeated and new tokens, got 0 repeated and 15 new"}


CURVE = [{"step": step, "val/clm/accuracy": value} for step, value in ((10, 0.1), (20, 0.6), (30, 0.4), (40, 0.9))]


@pytest.mark.parametrize(
    ("value", "below", "expected"),
    [
        (0.5, False, {"steps": 20.0, "reached": 1.0}),
        (0.9, False, {"steps": 40.0, "reached": 1.0}),
        (0.95, False, {"steps": 40.0, "reached": 0.0}),
        (0.45, True, {"steps": 10.0, "reached": 1.0}),
    ],
)
def test_a_threshold_is_reached_at_the_first_point_that_reaches_it(
    value: float, below: bool, expected: dict[str, float], fake_model: Any
) -> None:
    measure = StepsToThreshold(metric="val/clm/accuracy", value=value, below=below)
    assert measure.measure(fake_model(learning_curve=CURVE)) == expected


def test_an_unknown_metric_is_reported(fake_model: Any) -> None:
    measure = StepsToThreshold(metric="val/clm/acuracy", value=0.5)
    reason = "unknown metric `val/clm/acuracy`; valid: val/clm/accuracy"
    assert measure.measure(fake_model(learning_curve=CURVE)) == {"steps": reason, "reached": reason}
    assert "valid: none" in str(measure.measure(fake_model())["steps"])
