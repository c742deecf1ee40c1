"""Trials with frozen parameters: their values, optimizer, costs, certificates and stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.core.paribus.train.test_fit import fit

import paribus
from paribus.models.checkpoint import optimizer_digest, parameter_digest
from paribus.models.optimizer_schedule import build_optimizer
from paribus.registry import Registry
from paribus.specs.resolve import resolved
from paribus.train.spec_costs import flops_per_step
from paribus.train.step_memory import step_memory
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_callback import InterruptedTrialError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # of dynamo
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # the same
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),  # of Lightning
    pytest.mark.filterwarnings("ignore:The '(train|val)_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),  # where Slurm is installed
]

SMALL = (
    "trainer.max_steps=6", "dims.width=16", "dims.layers=2", "dims.heads=2", "dims.length=32", "data.batch=4",
    "data.validation=16", "schedule=constant",
)  # fmt: skip
FROZEN = "freeze=[embedding, body.layers.0]"


def trained(registry: Registry, folder: Path, *overrides: str, **arguments: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    spec = resolved("gpt-tiny", *SMALL, *overrides, registry=registry)
    result: dict[str, Any] = run_trial(spec, registry, TrialContext("x", folder, **arguments))["result"]
    return result


def test_frozen_parameters_keep_their_values_and_the_others_are_trained_as_by_hand(
    registry: Registry, tmp_path: Path
) -> None:
    """Against a loop written out, in which the gradients of frozen parameters are thrown away."""
    result = trained(registry, tmp_path, FROZEN)
    spec = resolved("gpt-tiny", *SMALL, registry=registry)
    model, data = paribus.assemble(spec), paribus.data(spec)
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    frozen = {name for name in initial if name.startswith(("embedding.", "body.layers.0."))}
    model.train()
    optimizer = build_optimizer(model.optimizer, model)
    for step in range(6):
        model.loss(data.step(step)).backward()
        for name, parameter in model.named_parameters():
            if name in frozen:
                parameter.grad = None
        optimizer.step()
        optimizer.zero_grad()
    weights = paribus.load(tmp_path).state_dict()
    for name, value in weights.items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-5, atol=1e-6)
        assert torch.equal(value, initial[name]) == (name in frozen), name
    assert not frozen & set(result["certificate"]["optimizer_options"])
    assert result["certificate"]["no_gradient"] == result["certificate"]["changed_tensors"] == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "option", ["trainer.accumulate_grad_batches=2", "trainer.precision=bf16-true", "trainer.precision=bf16-mixed",
               "trainer.ema_decay=0.5", "trainer.activation_checkpointing=true", "trainer.compile={backend: eager}",
               "trainer.gradient_clip_val=0.1", "optimizer=lamb"]
)  # fmt: skip
@pytest.mark.parametrize("freeze", [FROZEN, "freeze={paths: [embedding, body.layers.0], steps: 3}"])
def test_they_are_frozen_with_every_option_of_training(
    option: str, freeze: str, registry: Registry, tmp_path: Path
) -> None:
    weights = {}
    for steps in (2, 6):
        folder = tmp_path / str(steps)
        options = [option, freeze] if steps == 6 else [option, freeze.replace("steps: 3", "steps: null")]
        result = trained(registry, folder, *options, f"trainer.max_steps={steps}")
        assert result["certificate"]["no_gradient"] == result["certificate"]["changed_tensors"] == []
        weights[steps] = paribus.load(folder).state_dict()
    initial = paribus.assemble(resolved("gpt-tiny", *SMALL, registry=registry)).state_dict()
    kept = {
        steps: all(
            torch.equal(values[name], initial[name].to(values[name].dtype))
            for name in initial
            if name.startswith(("embedding.", "body.layers.0."))
        )
        for steps, values in weights.items()
    }
    assert kept == {2: True, 6: freeze == FROZEN}
    moved = "body.layers.1.attention.heads.q.weight"
    assert not torch.equal(weights[2][moved], initial[moved].to(weights[2][moved].dtype))


def test_after_its_steps_everything_is_trained(registry: Registry, tmp_path: Path) -> None:
    """The first step after them is that of a new optimizer: Adam's moments start with the first gradient."""
    until = "freeze={paths: [embedding, body.layers.0], steps: 4}"
    before = trained(registry, tmp_path / "before", FROZEN, "trainer.max_steps=4")
    result = trained(registry, tmp_path / "all", until)
    other = trained(registry, tmp_path / "other", FROZEN)
    assert result["losses"][:4] == before["losses"]
    assert result["losses"][:5] == other["losses"][:5]
    assert result["losses"][5] != other["losses"][5]
    assert set(result["certificate"]["optimizer_options"]) == set(result["certificate"]["tensors"])
    model = paribus.load(tmp_path / "all")
    assert all(parameter.requires_grad for parameter in model.parameters())
    spec = resolved("gpt-tiny", *SMALL, registry=registry)
    whole, frozen = (
        flops_per_step({**spec, "freeze": freeze}, registry)
        for freeze in (None, {"paths": ["embedding", "body.layers.0"], "trained": [], "layers": 0, "steps": None})
    )
    assert result["training_flops"] == 4 * frozen + 2 * whole
    assert other["training_flops"] == 6 * frozen < result["training_flops"] < 6 * whole


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_trial_resumes_bitwise_before_and_after_the_last_frozen_step(
    stop: int, registry: Registry, tmp_path: Path
) -> None:
    options = ("freeze={paths: [embedding, body.layers.0], steps: 3}", "trainer.ema_decay=0.9", "dropout=0.1")
    whole = trained(registry, tmp_path / "whole", *options)
    steps: list[int] = []
    arguments = {"on_step": lambda step, loss: steps.append(step), "should_stop": lambda: steps[-1] == stop}
    with pytest.raises(InterruptedTrialError, match="checkpoint"):
        trained(registry, tmp_path / "cut", *options, **arguments)
    assert trained(registry, tmp_path / "cut", *options) == whole
    model = paribus.load(tmp_path / "cut")
    assert parameter_digest(model) == whole["digests"]["parameters"]


def test_memory_is_that_of_the_trained_parameters(registry: Registry) -> None:
    def memory(*overrides: str) -> tuple[int, int, int]:
        spec = resolved("gpt-tiny", *SMALL, *overrides, registry=registry)
        needed = step_memory(spec, registry)
        assert needed.simulated
        return needed.parameters, needed.gradients, needed.optimizer

    spec = resolved("gpt-tiny", *SMALL, FROZEN, registry=registry)
    model = paribus.assemble(spec)
    trained_count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    parameters, gradients, optimizer = memory(FROZEN)
    assert parameters == memory()[0]
    assert gradients == 4 * trained_count < memory()[1]
    assert 8 * trained_count <= optimizer < memory()[2]
    assert memory("freeze={paths: [embedding], steps: 2}")[2] == memory()[2]


@pytest.mark.thorough
def test_the_trainer_of_a_user_trains_the_same(registry: Registry, tmp_path: Path) -> None:
    freeze = "freeze={paths: [embedding, body.layers.0], steps: 4}"
    result = trained(registry, tmp_path, freeze)
    spec = resolved("gpt-tiny", *SMALL, freeze, registry=registry)
    model = paribus.assemble(spec)
    trainer = fit(model, paribus.data(spec), max_steps=6, limit_val_batches=0)
    assert parameter_digest(model) == result["digests"]["parameters"]
    assert optimizer_digest(trainer.optimizers[0], model) == result["digests"]["optimizer"]


@pytest.mark.thorough
@pytest.mark.usefixtures("trials_in_this_process")
def test_a_study_compares_frozen_layers_after_one_pretraining(tmp_path: Path) -> None:
    path = tmp_path / "probing.yaml"
    dims = "{width: 16, layers: 2, heads: 2, length: 32}"
    lines = [
        f"base: {{preset: gpt-tiny, dims: {dims}, data: {{batch: 4, validation: 16}}, schedule: constant}}",
        "stages: {pretrain: {objective: clm}, tune: {from: pretrain}}",
        "vary: {tune.freeze: [body, {layers: 1}]}",
        "seeds: 2",
        "budget: {steps: 4}",
        "metric: {name: val/clm/loss, better: lower, margin: 0.05, unlearned: true}",
    ]
    path.write_text("\n".join(lines))
    run = paribus.run(path)
    report = paribus.compare(run)
    document = json.loads(json.dumps(report.to_json()))
    for certificate in document["certificates"].values():
        assert certificate["failures"] == []
        assert any(text.endswith("tensors trained") for text in certificate["confirmed"])
