"""Trials with updates after each step: biases of a mixture of experts, and weights of length 1."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.core.paribus.train.test_frozen_training import pytestmark as _warnings
from tests.core.paribus.train.test_frozen_training import trained
from torch import Tensor

import paribus
from paribus.models.optimizer_schedule import build_optimizer
from paribus.registry import Registry
from paribus.train.trial_callback import InterruptedTrialError

pytestmark = _warnings
BALANCED = "feedforward={name: moe, balance: 0, router: {name: sigmoid, bias_rate: 0.01}}"
SMALL = ("dims.width=16", "dims.layers=2", "dims.heads=2", "dims.length=32", "data.batch=4", "schedule=constant")


def biases(folder: Path) -> list[Tensor]:
    return [value for name, value in paribus.load(folder).state_dict().items() if name.endswith("bias_steps")]


@pytest.fixture(scope="module")
def by_hand() -> list[Tensor]:
    """Return the biases after six steps of a loop that counts the choices itself."""
    spec = paribus.spec("gpt-tiny", *SMALL, BALANCED, "trainer.max_steps=6", "data.validation=16")
    model, data = paribus.assemble(spec).train(), paribus.data(spec)
    optimizer = build_optimizer(model.optimizer, model)
    mixtures = [layer.feedforward for layer in model.topology.stage("body").layers]  # type: ignore[union-attr]  # of a stack
    for step in range(6):
        loads: list[Tensor] = []
        handles = [
            mixture.router.register_forward_hook(
                lambda _, inputs, scores, mixture=mixture, loads=loads: loads.append(
                    (scores.sigmoid() + 0.01 * mixture.bias_steps).topk(2).indices.flatten().bincount(minlength=4)
                )
            )
            for mixture in mixtures
        ]
        model.loss(data.step(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        for mixture, load in zip(mixtures, loads, strict=True):
            mixture.bias_steps += (load.float().mean() - load).sign().long()
        for handle in handles:
            handle.remove()
    return [mixture.bias_steps for mixture in mixtures]


@pytest.mark.parametrize(
    "option",
    [
        "trainer.max_steps=6",
        "trainer.accumulate_grad_batches=2",
        "trainer.activation_checkpointing=true",
        pytest.param("trainer.ema_decay=0.5", marks=pytest.mark.thorough),
        pytest.param("trainer.devices=2 trainer.accelerator=cpu", marks=pytest.mark.thorough),
        pytest.param("trainer.devices=2 trainer.accelerator=cpu trainer.strategy=fsdp", marks=pytest.mark.thorough),
    ],
)
def test_biases_are_updated_once_a_step(option: str, by_hand: list[Tensor], registry: Registry, tmp_path: Path) -> None:
    result = trained(registry, tmp_path, BALANCED, *option.split())
    assert all(steps.any() for steps in by_hand)
    assert [steps.tolist() for steps in biases(tmp_path)] == [steps.tolist() for steps in by_hand]
    certificate = result["certificate"]
    assert certificate["changed_tensors"] == certificate["first_step"].get("unrepeatable", []) == []


def test_biases_are_those_of_an_uninterrupted_trial(registry: Registry, tmp_path: Path) -> None:
    calls = iter(range(100))
    whole = trained(registry, tmp_path / "whole", BALANCED)
    with pytest.raises(InterruptedTrialError, match="asked to stop"):
        trained(registry, tmp_path / "stopped", BALANCED, should_stop=lambda: next(calls) == 2)
    assert trained(registry, tmp_path / "stopped", BALANCED)["losses"] == whole["losses"]
    assert all(map(torch.equal, biases(tmp_path / "whole"), biases(tmp_path / "stopped")))


def test_biases_are_exact_in_half_precision(registry: Registry, tmp_path: Path) -> None:
    trained(registry, tmp_path, BALANCED, "trainer.precision=bf16-true")
    assert {steps.dtype for steps in biases(tmp_path)} == {torch.int64}


@pytest.mark.parametrize(
    "option",
    [
        "trainer.max_steps=3",
        "freeze=body.layers.0",
        pytest.param("trainer.devices=2 trainer.accelerator=cpu trainer.strategy=fsdp", marks=pytest.mark.thorough),
    ],
)
def test_vectors_along_the_stream_have_length_1_after_a_step(option: str, registry: Registry, tmp_path: Path) -> None:
    result = trained(registry, tmp_path, "placement=ngpt", "position=rope", *option.split())
    for path, weight in paribus.load(tmp_path).state_dict().items():
        if weight.ndim == 2:
            lengths = weight.norm(dim=0 if path.endswith((".o.weight", ".outer.weight")) else 1)
            is_trained = not (option.startswith("freeze") and path.startswith("body.layers.0"))
            assert torch.allclose(lengths, torch.ones(()), rtol=1e-5, atol=0) == is_trained, path
    assert result["certificate"]["changed_tensors"] == []
