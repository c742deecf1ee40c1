"""Prefix matching on repeated random tokens, with heads of known score."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paribus import Batch
from paribus_measure.induction_score import InductionScore, repeated_sequences

N = 7  # half of the sequence length


def uniform(rows: int) -> Tensor:
    return torch.ones(rows, rows).tril() / torch.arange(1, rows + 1).unsqueeze(1)


def induction_head(rows: int) -> Tensor:
    """Attention of an induction head: each token attends to the successor of its last occurrence."""
    weights = torch.eye(rows)
    for row in range(rows // 2, rows - 1):
        weights[row] = functional.one_hot(torch.tensor(row - rows // 2 + 1), rows)
    return weights


def attention_of(*heads: Any) -> Any:
    def of(batch: Batch) -> list[Tensor]:
        count, rows = batch.streams["body"].tokens.shape
        return [torch.stack([head(rows) for head in heads]).expand(count, -1, -1, -1)]

    return of


def logits_of(batch: Batch) -> Tensor:
    """Scores: uniform in the first half, the repeated token in the second."""
    tokens = batch.streams["body"].tokens
    scores = torch.zeros(*tokens.shape, 24)
    half = tokens.shape[1] // 2
    scores[:, half:-1] = 1000.0 * functional.one_hot(tokens[:, half + 1 :], 24)
    return scores


def test_an_induction_head_scores_1_and_equal_weights_their_share(fake_model: Any) -> None:
    values = InductionScore(tokens=N).measure(
        fake_model(attention_of=attention_of(uniform, induction_head, uniform), logits_of=logits_of)
    )
    average = sum(1 / rows for rows in range(N + 1, 2 * N)) / (N - 1)
    assert values["score"] == pytest.approx(1.0)
    assert values["mean"] == pytest.approx((1 + 2 * average) / 3, rel=1e-6)
    lone = InductionScore(tokens=N).measure(fake_model(attention_of=attention_of(uniform), logits_of=logits_of))
    assert lone["score"] == lone["mean"] == pytest.approx(average, rel=1e-6)


def test_a_head_that_attends_to_the_same_token_scores_0(fake_model: Any) -> None:
    values = InductionScore(tokens=N).measure(
        fake_model(attention_of=attention_of(lambda rows: induction_head(rows).roll(-1, 1)), logits_of=logits_of)
    )
    assert values["score"] == 0.0


def test_copying_has_no_loss_and_gains_over_uniform_guesses(fake_model: Any) -> None:
    values = InductionScore(tokens=N).measure(fake_model(attention_of=attention_of(uniform), logits_of=logits_of))
    assert values["loss"] == pytest.approx(0.0, abs=1e-9)
    assert values["gain"] == pytest.approx(torch.tensor(24.0).log().item(), rel=1e-6)


def test_sequences_repeat_distinct_text_tokens(fake_model: Any) -> None:
    tokens = repeated_sequences(fake_model(), 100, 9)
    assert tokens.shape == (9, 16)
    assert torch.equal(tokens[:, :8], tokens[:, 8:])
    assert all(len(set(row)) == 8 and not {0, 1} & set(row) for row in tokens[:, :8].tolist())
    assert len({tuple(row) for row in tokens.tolist()}) == 9
    assert torch.equal(repeated_sequences(fake_model(), 100, 9), tokens)


def test_a_model_of_length_three_has_no_score(fake_model: Any) -> None:
    model = fake_model(attention_of=attention_of(uniform), logits_of=logits_of)
    model.trial = model.trial._replace(length=3)
    assert set(InductionScore().measure(model).values()) == {
        "dims.length is too short for two tokens and their repetition"
    }
