"""Averages of weights, by `trainer.ema_decay` or an optimizer: they are evaluated and saved, and change no step."""

from __future__ import annotations

import copy
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import nn

import paribus
from paribus.assembly.components import make
from paribus.errors import SpecError
from paribus.models.averaged_weights import AveragedWeights, decay_at
from paribus.models.checkpoint import parameter_digest
from paribus.models.evaluate import evaluate
from paribus.models.optimizer_schedule import build_optimizer, evaluated_weights
from paribus.registry import Registry
from paribus.slots.optimizer import Optimizer
from paribus.specs.resolve import resolved
from paribus.train.step_memory import step_memory
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_callback import InterruptedTrialError

SMALL = (
    "trainer.max_steps=6", "dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=32", "data.batch=4",
    "data.validation=16",
)  # fmt: skip
METRIC = "metric: {name: val/clm/loss, better: lower, margin: 0.05}"
SCHEDULE_FREE = "optimizer={name: schedule-free, weight_decay: 0.1}"


def trained(registry: Registry, folder: Path, *overrides: str, **arguments: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    spec = resolved("gpt-tiny", *SMALL, *overrides, registry=registry)
    result: dict[str, Any] = run_trial(spec, registry, TrialContext("x", folder, **arguments))["result"]
    return result


def test_the_average_is_the_weighted_sum_of_all_weights() -> None:
    """Against the sum written out: each step has its own share, times what later steps keep."""
    model, decay = nn.Linear(3, 2), 0.6
    averages = AveragedWeights(model, decay)
    history = [{name: parameter.detach().clone() for name, parameter in model.named_parameters()}]
    for step in range(1, 31):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        averages.update(step)
        history.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})
    shares = [1.0]
    for step in range(1, 31):
        kept = min(decay, step / (9 + step))
        shares = [share * kept for share in shares] + [1 - kept]
    assert sum(shares) == pytest.approx(1)
    for name, average in averages.averages.items():
        expected = sum(share * weights[name].double() for share, weights in zip(shares, history, strict=True))
        torch.testing.assert_close(average.double(), expected, rtol=1e-5, atol=1e-5)


def test_the_share_that_is_kept_grows_to_the_decay() -> None:
    shares = [decay_at(step, 0.99) for step in range(1, 2000)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(0.1)
    assert shares[-1] == 0.99


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_applied_averages_leave_the_weights_unchanged(dtype: torch.dtype) -> None:
    model = nn.Linear(4, 4).to(dtype)
    frozen = model.bias.requires_grad_(False).clone()
    averages = AveragedWeights(model, 0.5)
    with torch.no_grad():
        model.weight += 1
    averages.update(1)
    assert averages.averages["weight"].dtype == torch.promote_types(dtype, torch.float32)
    weights = copy.deepcopy(model.state_dict())
    with averages.applied():
        assert not torch.equal(model.weight, weights["weight"])
        torch.testing.assert_close(model.weight, averages.averages["weight"].to(dtype))
        assert torch.equal(model.bias, frozen)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    with suppress(RuntimeError), averages.applied():
        raise RuntimeError
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["32", "bf16-mixed", "bf16-true"])
def test_averages_change_what_is_evaluated_and_no_step(precision: str, registry: Registry, tmp_path: Path) -> None:
    last = trained(registry, tmp_path / "last", f"trainer.precision={precision}")
    averaged = trained(registry, tmp_path / "averaged", f"trainer.precision={precision}", "trainer.ema_decay=0.9")
    assert averaged["losses"] == last["losses"]
    assert averaged["certificate"]["changed_tensors"] == []
    assert averaged["digests"]["optimizer"] == last["digests"]["optimizer"]
    assert averaged["digests"]["parameters"] != last["digests"]["parameters"]
    for mean, point in zip(averaged["curve"], last["curve"], strict=True):
        assert mean["step"] == point["step"]
        assert mean["val/clm/loss"] != point["val/clm/loss"]


@pytest.mark.thorough
@pytest.mark.parametrize("option", ["trainer.ema_decay=0.9", SCHEDULE_FREE])
def test_the_saved_model_has_the_averages(option: str, registry: Registry, tmp_path: Path) -> None:
    result = trained(registry, tmp_path, option)
    model = paribus.load(tmp_path)
    assert parameter_digest(model) == result["digests"]["parameters"]
    metrics = evaluate(model, paribus.data(model.spec))
    assert {name: metrics[name] for name in metrics} == result["metrics"]


@pytest.mark.thorough
def test_an_average_of_one_step_is_nearly_its_weights(registry: Registry, tmp_path: Path) -> None:
    """With a decay of almost 0, the average is the last weights: all metrics agree."""
    last = trained(registry, tmp_path / "last")
    averaged = trained(registry, tmp_path / "averaged", "trainer.ema_decay=1e-9")
    assert averaged["metrics"] == pytest.approx(last["metrics"], rel=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["32", "bf16-true"])
@pytest.mark.parametrize("option", ["trainer.ema_decay=0.9", SCHEDULE_FREE])
def test_a_trial_with_averages_resumes_bitwise(option: str, precision: str, registry: Registry, tmp_path: Path) -> None:
    steps = 0

    def count_steps(step: int, loss: float) -> None:
        nonlocal steps
        steps = step

    options = (option, f"trainer.precision={precision}")
    whole = trained(registry, tmp_path / "whole", *options)
    with pytest.raises(InterruptedTrialError, match="checkpoint"):
        trained(registry, tmp_path / "resumed", *options, should_stop=lambda: steps == 3, on_step=count_steps)
    assert trained(registry, tmp_path / "resumed", *options) == whole


@pytest.mark.thorough
def test_averages_count_as_memory(registry: Registry) -> None:
    last, averaged = (
        step_memory(resolved("gpt-tiny", *overrides, registry=registry), registry)
        for overrides in ((), ("trainer.ema_decay=0.9",))
    )
    assert averaged.simulated
    assert averaged.parameters == pytest.approx(2 * last.parameters, rel=0.01)  # the last have buffers as well
    assert averaged[1:3] == last[1:3]
    assert averaged.total - last.total == averaged.parameters - last.parameters


@pytest.mark.parametrize(
    ("value", "code"), [("0", "out-of-range"), ("1", "out-of-range"), ("true", "wrong-type"), ("fast", "wrong-type")]
)
def test_a_decay_is_between_0_and_1(value: str, code: str, registry: Registry) -> None:
    with raises_problem(SpecError, code, "trainer.ema_decay", "> 0 and < 1"):
        resolved("gpt-tiny", f"trainer.ema_decay={value}", registry=registry)


def test_no_decay_is_the_default(registry: Registry) -> None:
    assert resolved("gpt-tiny", "trainer.ema_decay=null", registry=registry) == resolved("gpt-tiny", registry=registry)


@pytest.mark.thorough
@pytest.mark.usefixtures("trials_in_this_process")
def test_a_study_compares_averages_with_last_weights(tmp_path: Path) -> None:
    """The trials are paired, since their steps are equal; the change is found to change something."""
    path = tmp_path / "averages.yaml"
    dims = "{width: 16, layers: 1, heads: 2, length: 32}"
    base = f"base: {{preset: gpt-tiny, dims: {dims}, data: {{batch: 4, validation: 16}}}}"
    lines = [base, "vary: {trainer.ema_decay: [0.9]}", "seeds: 2", "budget: {steps: 4}", METRIC]
    path.write_text("\n".join(lines))
    text = str(paribus.compare(paribus.run(path)))
    assert "same batches; training differs" in " ".join(text.split())
    assert "changed nothing" not in text


# -- averages of an optimizer -------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["32", "bf16-true"])
def test_evaluations_of_an_optimizers_averages_change_no_step(
    precision: str, registry: Registry, tmp_path: Path
) -> None:
    options = (SCHEDULE_FREE, f"trainer.precision={precision}", "trainer.max_steps=8")
    once, often = (trained(registry, tmp_path / str(n), *options, f"data.evaluations={n}") for n in (1, 8))
    assert len(often["curve"]) == 8
    assert often["losses"] == once["losses"]
    for name in ("parameters", "optimizer"):
        assert often["digests"][name] == once["digests"][name]
    assert often["metrics"] == once["metrics"]
    assert often["certificate"]["changed_tensors"] == []


@pytest.mark.thorough
def test_a_trial_evaluates_and_saves_the_averages_of_its_optimizer(registry: Registry, tmp_path: Path) -> None:
    """Against a loop over the same steps that computes the averages itself."""
    trained(registry, tmp_path, SCHEDULE_FREE, "schedule=constant")
    spec = resolved("gpt-tiny", *SMALL, SCHEDULE_FREE, "schedule=constant", registry=registry)
    model, data = paribus.assemble(spec), paribus.data(spec)
    optimizer: Any = build_optimizer(model.optimizer, model)
    for step in range(6):
        model.loss(data.step(step)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), (spec["trainer"] or {}).get("gradient_clip_val") or torch.inf)
        optimizer.step()
        optimizer.zero_grad()
    saved = dict(paribus.load(tmp_path).named_parameters())
    for name, y in model.named_parameters():
        average = (y - (1 - 0.9) * optimizer.state[y]["z"]) / 0.9
        torch.testing.assert_close(saved[name], average, rtol=1e-4, atol=1e-5)
        assert not torch.equal(saved[name], y)


def test_averages_of_half_precision_are_those_of_float32_updates(registry: Registry) -> None:
    component = make(registry, "optimizer", resolved("gpt-tiny", SCHEDULE_FREE)["optimizer"], kind=Optimizer)
    half, exact = nn.Linear(4, 3).bfloat16(), nn.Linear(4, 3)
    exact.load_state_dict({name: value.float() for name, value in half.state_dict().items()})
    optimizers = [build_optimizer(component, model) for model in (half, exact)]
    for _ in range(9):
        for rounded, parameter in zip(half.parameters(), exact.parameters(), strict=True):
            rounded.grad = torch.randn(parameter.shape, dtype=torch.bfloat16)
            parameter.grad = rounded.grad.float()
        for optimizer in optimizers:
            optimizer.step()
    resumed = build_optimizer(component, half)
    resumed.load_state_dict(optimizers[0].state_dict())
    expected = component.evaluated_weights(optimizers[1])
    for optimizer in (optimizers[0], resumed):
        averages = evaluated_weights(component, optimizer)
        for rounded, parameter in zip(half.parameters(), exact.parameters(), strict=True):
            assert torch.equal(averages[rounded], expected[parameter])


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("trainer.ema_decay=0.9", "trainer.ema_decay"),
        ("placement=ngpt", "optimizer"),
        ("placement=[pre, ngpt]", "optimizer"),
    ],
)
def test_an_optimizer_with_averages_refuses_others_and_scaled_weights(
    override: str, key: str, registry: Registry
) -> None:
    with raises_problem(SpecError, "does-not-fit", key, "schedule-free"):
        resolved("gpt-tiny", SCHEDULE_FREE, override, registry=registry)
