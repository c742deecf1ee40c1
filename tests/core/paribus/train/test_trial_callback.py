"""Callback of a trial: parameters without gradients, and digests of batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.storage.answers import decode_scores
from paribus.train import trial_callback
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_callback import CHECKED_STEPS, parameters_without_gradient, should_check_step


def test_missing_and_zero_gradients_are_reported() -> None:
    model = nn.ParameterDict({name: nn.Parameter(torch.ones(3)) for name in ("none", "zero", "some")})
    model["zero"].grad = torch.zeros(3)
    model["some"].grad = torch.tensor([0.0, 0.0, -1e-30])
    assert parameters_without_gradient(model, ["none", "zero", "some"]) == ["none", "zero"]
    model["zero"].grad = torch.ones(3)
    assert parameters_without_gradient(model, ["none", "zero"]) == ["none"]
    assert parameters_without_gradient(model, ["none"]) == ["none"]


def test_a_sparse_gradient_counts_as_a_gradient() -> None:
    table = nn.Embedding(10, 2, sparse=True)
    assert parameters_without_gradient(table, ["weight"]) == ["weight"]
    table(torch.tensor([3])).sum().backward()
    assert parameters_without_gradient(table, ["weight"]) == []


def test_gradients_are_checked_in_first_and_last_steps_and_powers_of_two() -> None:
    assert [step for step in range(1000) if should_check_step(step, 1000)] == [
        *range(CHECKED_STEPS),
        8,
        16,
        32,
        64,
        128,
        256,
        512,
        999,
    ]


def test_a_parameter_that_changes_once_is_found_at_a_step_that_is_drawn(
    tiny: Callable[..., dict[str, Any]], registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 12 is no step that every trial checks; here each step is drawn."""
    original, calls = Model.training_step, 0

    def training_step(self: Model, batch: Batch, batch_idx: int) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 13:
            with torch.no_grad():
                next(self.parameters()).mul_(1.01)
        return original(self, batch, batch_idx)

    monkeypatch.setattr(Model, "training_step", training_step)
    found = {}
    for share in (1, 1 << 40):
        calls = 0
        monkeypatch.setattr(trial_callback, "DRAWN_STEPS", share)
        folder = tmp_path / str(share)
        folder.mkdir()
        record = run_trial(tiny(steps=20), registry, TrialContext("x", folder))
        found[share] = record["result"]["certificate"]["changed_tensors"]
    assert len(found[1]) == 1
    assert found[1 << 40] == []


@pytest.mark.few(1)
@pytest.mark.parametrize("accumulate", [2, 3])
def test_digests_of_batches_do_not_depend_on_gradient_accumulation(
    accumulate: int, tiny: Callable[..., dict[str, Any]], registry: Registry, tmp_path: Path
) -> None:
    certificates = []
    for number in (1, accumulate):
        spec = tiny(steps=3)
        spec["trainer"]["accumulate_grad_batches"] = number
        folder = tmp_path / str(number)
        folder.mkdir()
        certificates.append(run_trial(spec, registry, TrialContext("x", folder))["result"]["certificate"])
    whole, divided = certificates
    for key in ("batches", "order", "batch_digests"):
        assert divided[key] == whole[key], key


@pytest.mark.thorough
def test_a_record_has_the_answers_to_the_same_questions_for_every_seed_and_batch(
    registry: Registry, tmp_path: Path
) -> None:
    rows = [
        f"row {number} of the {'short' if number % 3 else 'long'} text,{int(number % 3 > 0)}" for number in range(90)
    ]
    for name, part in (("train", rows[:60]), ("val", rows[60:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *part, ""]), encoding="utf-8")
    corpus = f"corpus={{name: table, path: ['{tmp_path}/train.csv'], validation: ['{tmp_path}/val.csv'], label: label}}"
    small = ("objective=classify", "dims.width=16", "dims.layers=1", "dims.length=32", "trainer.max_steps=2")
    answers = []
    for number, options in enumerate((("data.batch=4",), ("data.batch=7", "seed=1"), ("data.validation=20",))):
        folder = tmp_path / str(number)
        folder.mkdir()
        spec = resolved("encoder-tiny", corpus, *small, *options, registry=registry)
        result = run_trial(spec, registry, TrialContext("x", folder))["result"]
        answers.append(result["certificate"]["answers"]["val/classify/accuracy"])
        scores = decode_scores(answers[-1])
        assert sum(scores) / len(scores) == pytest.approx(result["metrics"]["val/classify/accuracy"])
    same, other_batch, fewer = (item["questions"] for item in answers)
    assert same == other_batch != fewer
