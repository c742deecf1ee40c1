"""Masked language modelling: mask statistics, and a head that runs on masked rows alone."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import nn

from paribus import IGNORED, PADDING, Draw, ForwardPass, Objective, SpecError, Stream, TrainingExamples, Vocabulary
from paribus_objective.masking import MaskSchedule, gather

Build = Callable[..., Objective]
Passed = Callable[[TrainingExamples], ForwardPass]


def corrupted(objective: Objective, **vectors: torch.Tensor) -> TrainingExamples:
    tokens = torch.arange(4 * 32).reshape(4, 32) * 7 % 74 + 6
    return objective.corrupt({"body": Stream(tokens, **vectors)}, {}, Draw(0, 0, torch.arange(4)))


def test_scoring_masked_tokens_equals_scoring_all_and_selecting(
    build: Build, passed: Passed, table: nn.Embedding, vocabulary: Vocabulary
) -> None:
    objective = build("mlm", vocabulary)
    parameters = [table.weight, *objective.parameters()]
    batch = corrupted(objective)
    run = passed(batch)
    term = objective(run)["loss"]
    everything = objective.logits(run.hidden(), run.unembed)
    labels = torch.full(batch.streams["body"].tokens.shape, IGNORED)
    for row, (pick, label) in enumerate(zip(batch.targets["pick"], batch.targets["labels"], strict=True)):
        labels[row, pick] = label
    total = nn.functional.cross_entropy(everything.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(term.total, total, rtol=0, atol=1e-12)
    taken, whole = torch.autograd.grad(term.total, parameters), torch.autograd.grad(total, parameters)
    torch.testing.assert_close(taken, whole, rtol=0, atol=1e-12)


def test_the_head_is_a_gelu_layer_with_norm_and_a_bias_per_token(
    build: Build, passed: Passed, table: nn.Embedding, vocabulary: Vocabulary
) -> None:
    objective = build("mlm", vocabulary)
    hidden = torch.randn(3, 8, dtype=torch.float64)
    weights = dict(objective.named_parameters())
    nn.init.normal_(weights["bias"])
    inner = hidden @ weights["dense.weight"].T + weights["dense.bias"]
    inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
    inner = (inner - inner.mean(-1, keepdim=True)) / (inner.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    scores = objective.logits(hidden, passed(corrupted(objective)).unembed)
    torch.testing.assert_close(scores, inner @ table.weight.T + weights["bias"], rtol=0, atol=1e-12)


def test_without_transform_and_bias_the_head_has_no_parameters(
    build: Build, passed: Passed, vocabulary: Vocabulary
) -> None:
    objective = build("mlm", vocabulary, transform=False, bias=False)
    assert list(objective.parameters()) == []
    run = passed(corrupted(objective))
    torch.testing.assert_close(objective.logits(run.hidden(), run.unembed), run.unembed(run.hidden()), rtol=0, atol=0)


@pytest.mark.parametrize("rate", [0.01, 0.15, 0.5, 1.0])
@pytest.mark.parametrize("length", [1, 2, 7, 32])
def test_the_head_has_as_many_positions_as_the_rate_can_mask(
    rate: float, length: int, build: Build, vocabulary: Vocabulary
) -> None:
    objective = build("mlm", vocabulary, rate=rate)
    body = Stream(torch.full((5, length), 9))
    targets = objective.corrupt({"body": body}, {}, Draw(0, 0, torch.arange(5))).targets
    assert targets["pick"].shape == targets["labels"].shape == (5, objective.head_positions(length))
    assert objective.head_positions(length) == max(1, math.ceil(rate * length))
    assert (targets["labels"] != IGNORED).any(1).all()


def test_all_vectors_but_tokens_are_unchanged(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("mlm", vocabulary)
    zeros = torch.zeros(4, 32, dtype=torch.int64)
    vectors = {"documents": zeros, "positions": zeros, "segments": zeros, "special": zeros.bool()}
    body = corrupted(objective, **vectors).streams["body"]
    assert all(getattr(body, name) is vector for name, vector in vectors.items())


def test_a_batch_of_padding_has_no_labels(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("mlm", vocabulary)
    batch = corrupted(objective, documents=torch.full((4, 32), PADDING))
    assert (batch.targets["labels"] == IGNORED).all()


def test_shares_that_sum_to_more_than_1_are_refused(build: Build, vocabulary: Vocabulary) -> None:
    with pytest.raises(ValueError, match=r"`mask` .* ≤ 1, got 0.8 \+ 0.3"):
        build("mlm", vocabulary, mask=0.8, random=0.3)
    build("mlm", vocabulary, mask=0.9, random=0.1)


def test_a_tokenizer_without_a_mask_token_is_refused(build: Build) -> None:
    with raises_problem(SpecError, "missing-special-token", "mask"):
        build("mlm", Vocabulary(100, {"pad": 0}))


def test_masked_tokens_are_gathered_in_order() -> None:
    hidden = torch.randn(2, 5, 3)
    pick = torch.tensor([[4, 0], [1, 1]])
    for b in range(2):
        for n in range(2):
            assert torch.equal(gather(hidden, pick)[b, n], hidden[b, pick[b, n]])


def hidden(objective: Objective, epoch: int, seed: int = 0, progress: float = 0.0) -> torch.Tensor:
    """Sorted positions of the predicted tokens, (B, N)."""
    tokens = torch.arange(64 * 32).reshape(64, 32) * 7 % 74 + 6
    targets = objective.corrupt({"body": Stream(tokens)}, {}, Draw(seed, epoch, torch.arange(64), progress)).targets
    return torch.where(targets["labels"] == IGNORED, 99, targets["pick"]).sort(1).values


def test_a_fixed_number_of_masks_repeats_in_turn(build: Build, vocabulary: Vocabulary) -> None:
    static = build("mlm", vocabulary, mask_schedule=MaskSchedule(masks=1))
    ten = build("mlm", vocabulary, mask_schedule=MaskSchedule(masks=10))
    fresh = build("mlm", vocabulary)
    assert all(torch.equal(hidden(static, epoch), hidden(static, 0)) for epoch in (1, 2, 30))
    assert torch.equal(hidden(ten, 13), hidden(ten, 3))
    for objective, epochs in ((ten, range(10)), (fresh, range(12))):
        masks = [hidden(objective, epoch) for epoch in epochs]
        assert all(not torch.equal(mask_a, mask_b) for mask_a, mask_b in itertools.combinations(masks, 2))
    assert not torch.equal(hidden(static, 0, seed=1), hidden(static, 0))


def test_evaluation_masks_do_not_depend_on_the_number_of_masks(build: Build, vocabulary: Vocabulary) -> None:
    static = build("mlm", vocabulary, mask_schedule=MaskSchedule(masks=1))
    assert torch.equal(hidden(static, -1), hidden(build("mlm", vocabulary), -1))


@pytest.mark.parametrize(("start", "end"), [(0.1, 0.5), (0.6, 0.2)])
def test_a_rate_changes_linearly_with_a_constant_batch_size(
    start: float, end: float, build: Build, vocabulary: Vocabulary
) -> None:
    objective = build("mlm", vocabulary, rate=start, mask_schedule=MaskSchedule(final_rate=end))
    for progress in (0.0, 0.25, 0.5, 1.0):
        positions = hidden(objective, 0, progress=progress)
        assert positions.shape == (64, objective.head_positions(32)) == (64, math.ceil(max(start, end) * 32))
        expected = 32 * (start + (end - start) * progress)
        assert (positions < 99).double().sum(1).mean().item() == pytest.approx(expected, abs=4 * 0.5 / 8)


def test_a_growing_rate_keeps_masked_tokens_masked(build: Build, vocabulary: Vocabulary) -> None:
    objective = build("mlm", vocabulary, rate=0.1, mask_schedule=MaskSchedule(masks=1, final_rate=0.5))
    early, late = hidden(objective, 0, progress=0.1), hidden(objective, 7, progress=0.9)
    assert all(
        set(early_positions.tolist()) - {99} <= set(late_positions.tolist())
        for early_positions, late_positions in zip(early, late, strict=True)
    )
