"""Masked diffusion: its loss is, in the mean, the bound that an enumeration of all masks gives."""

import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

import paribus
from paribus import IGNORED, PADDING, Draw, Objective, Prompt, Stream, Vocabulary
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus_objective.masked_diffusion import SCHEDULES, MaskedDiffusion, ScheduleName, mask_counts

Build = Callable[..., Objective]
TEXT = torch.tensor([[3, 7, 7, 1, 4]])
BATCHES, BATCH = 48, 64
VALIDATION = -1


def exact_bound(model: Model) -> float:
    """Return the bound in nats per token, ∫ 1/t E CE dt / n, as a sum over the sets S of masked tokens: the integral of
    t^(|S| - 1) (1 - t)^(n - |S|) is (|S| - 1)! (n - |S|)! / n!.
    """
    objective = model.objective("masked-diffusion")
    assert isinstance(objective, MaskedDiffusion)
    length, total = TEXT.shape[1], 0.0
    for size in range(1, length + 1):
        for places in map(list, combinations(range(length), size)):
            inputs = TEXT.clone()
            inputs[0, places] = objective.mask
            log_shares = objective.logits(model.hidden(inputs), model.topology.embedding.unembed).log_softmax(-1)
            loss = -float(log_shares[0, places, TEXT[0, places]].sum())
            total += math.factorial(size - 1) * math.factorial(length - size) / math.factorial(length) * loss
    return total / length


def estimates(model: Model, epoch: int) -> Tensor:
    """Return the bound on each of many batches of one text."""
    objective = model.objective("masked-diffusion")
    values = []
    for number in range(BATCHES):
        index = torch.arange(number * BATCH, (number + 1) * BATCH)
        made = objective.corrupt({"body": Stream(TEXT.repeat(BATCH, 1))}, {}, Draw(3, epoch, index))
        batch = Batch(made.streams, {"masked-diffusion": made.targets}, index)
        term = model.terms(model.run(batch), ["masked-diffusion"])["masked-diffusion/bound"]
        values.append(term.total / term.count)
    return torch.stack(values)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_mean_of_the_loss_is_the_bound_by_enumeration(schedule: str) -> None:
    """In training and in evaluation, whose samples lower the variance."""
    changes = ("dims={width: 16, layers: 1, length: 5}", f"objective={{name: masked-diffusion, schedule: {schedule}}}")
    torch.manual_seed(0)
    model = paribus.assemble(paribus.spec("mdlm-tiny", *changes)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.5)
        expected, deviations = exact_bound(model), []
        for epoch in (0, VALIDATION):
            values = estimates(model, epoch)
            error = float(values.std()) / math.sqrt(BATCHES)
            assert abs(float(values.mean()) - expected) < 4 * error < 0.05 * expected
            deviations.append(error)
    assert deviations[1] < 0.7 * deviations[0]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_every_number_of_masks_has_the_weight_of_its_probability(schedule: ScheduleName) -> None:
    times, length = (np.arange(60_000) + 0.5) / 60_000, 6
    counts, weights = mask_counts(np.full(len(times), length), times, 1, SCHEDULES[schedule], 0.0)
    for count in range(1, length + 1):
        is_count = counts[:, 0] == count
        assert count * weights[is_count, 0].mean() * is_count.mean() == pytest.approx(1, abs=1e-3)
        if schedule == "linear":
            assert weights[is_count, 0] == pytest.approx(length / count)


def test_lowest_rate_and_schedule_change_the_masks_of_training_only(build: Build, vocabulary: Vocabulary) -> None:
    stream = {"body": Stream(torch.full((64, 20), 9))}
    plain = build("masked-diffusion", vocabulary)
    changed = build("masked-diffusion", vocabulary, schedule="cosine", min_rate=0.5)
    for epoch in (0, VALIDATION):
        draw = Draw(0, epoch, torch.arange(64))
        masked, unchanged = (it.corrupt(stream, {}, draw).targets["masked"] for it in (changed, plain))
        assert torch.equal(masked, unchanged) == (epoch == VALIDATION)
        assert (int(masked.sum(-1).min()) >= 10) == (epoch == 0)


def test_ends_of_documents_are_masked_and_padding_and_marks_are_not(build: Build, vocabulary: Vocabulary) -> None:
    eos = vocabulary.specials["eos"]
    tokens = torch.tensor([[1, 20, 21, eos, 22, 0]]).repeat(200, 1)
    documents = torch.tensor([[0, 0, 0, 0, 1, PADDING]]).repeat(200, 1)
    special = torch.tensor([[True, False, False, False, False, False]]).repeat(200, 1)
    objective = build("masked-diffusion", vocabulary)
    stream = Stream(tokens, documents=documents, special=special)
    made = objective.corrupt({"body": stream}, {}, Draw(0, 0, torch.arange(200)))
    assert made.targets["labels"][0].tolist() == [IGNORED, 20, 21, eos, 22, IGNORED]
    is_mask = made.streams["body"].tokens == vocabulary.specials["mask"]
    assert torch.equal(is_mask, made.targets["masked"][:, 0])
    assert is_mask.any(0).tolist() == [False, True, True, True, True, False]


def test_the_rates_of_each_training_batch_are_spread_evenly() -> None:
    """The number of masks of the example in place i is within two places of an even spread, in every step."""
    data = paribus.data(paribus.spec("mdlm-tiny", "data.batch=16", "dims.length=64", "data.validation=16"))
    for step in (0, 1, 7):
        counts = data.step(step).targets["masked-diffusion"]["masked"].sum(-1).flatten().sort().values
        assert (counts / 64 - (torch.arange(16) + 0.5) / 16).abs().max() < 2 / 16


def test_the_mask_has_no_score_and_a_prompt_is_followed_by_masks(build: Build, vocabulary: Vocabulary) -> None:
    objective, mask = build("masked-diffusion", vocabulary), vocabulary.specials["mask"]
    scores = objective.logits(torch.randn(2, 8).double(), lambda h, bias=None: h.new_ones(*h.shape[:-1], 100))
    assert (scores[:, mask] == -torch.inf).all()
    assert scores.isfinite().sum() == 2 * 99
    assert objective.prompt([]) == Prompt((), stop=vocabulary.specials["eos"], mask=mask)
