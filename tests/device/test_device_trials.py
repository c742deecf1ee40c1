"""Whole trials on a simulated device, by the trainer, the checkpoints and the records of real ones."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from unittest.mock import Mock

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from tests.device.lightning_accelerator import trainer_options
from tests.fixtures.problems import raises_problem

from paribus.errors import StoreError
from paribus.evidence import digests
from paribus.inference.generate import translate_validation
from paribus.models.evaluate import to_device
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.testing.simulated_device import NAME, SimulatedDevice, simulated_device
from paribus.train import trial, trial_callback
from paribus.train.trial import Record, TrialContext, run_trial
from paribus.train.trial_callback import InterruptedTrialError, should_check_step
from paribus.train.trial_options import TrialOptions

pytestmark = pytest.mark.device
SIZES: Final = ("data.batch=4", "data.validation=8", "data.evaluations=1")
COMMON: Final = (
    "gpt-tiny",
    "bert-tiny",
    "encoder-tiny",
    "seq2seq-tiny",
    "t5-tiny",
    "llama-tiny",
    "modernbert-tiny",
    "vit-tiny",
)
STEPS: Final = 16  # of which 9 to 14 are neither checked nor read


class WaitsByStep(Callback):
    """Waits for the device in each step, from the first hook of a step to that of the next."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device, self.marks = device, list[int]()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.marks.append(len(self.device.waits))

    def of(self, step: int) -> list[str]:
        return [str(wait) for wait in self.device.waits[self.marks[step] : self.marks[step + 1]]]


class Hooks:
    """Plugin hooks that let trials train on the simulated device."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = list(callbacks)

    def configure_trainer(self, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{**trainer_options(), "callbacks": self.callbacks}]

    def trial_started(self, **context: Any) -> None: ...

    def trial_finished(self, **context: Any) -> None: ...


@pytest.fixture(autouse=True)
def _no_drawn_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no step be drawn for a check, which waits for the device."""
    monkeypatch.setattr(trial_callback, "DRAWN_STEPS", 1 << 40)


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    with simulated_device() as device:
        yield device


def run(spec: Mapping[str, Any], registry: Registry, folder: Path, *callbacks: Callback, **context: Any) -> Record:
    folder.mkdir(exist_ok=True)
    return run_trial(spec, registry, TrialContext("trial", folder, hooks=Hooks(*callbacks), **context))


@pytest.mark.parametrize("preset", COMMON)
def test_a_trial_has_the_results_of_a_cpu_and_its_steps_do_not_wait(
    preset: str, registry: Registry, tmp_path: Path, device: SimulatedDevice
) -> None:
    spec = resolved(preset, *SIZES, "dropout=0.0", f"trainer.max_steps={STEPS}", registry=registry)
    (tmp_path / "cpu").mkdir()
    on_cpu = run_trial(spec, registry, TrialContext("trial", tmp_path / "cpu"))["result"]
    waits = WaitsByStep(device)
    record = run(spec, registry, tmp_path / "device", waits)
    result, certificate = record["result"], record["result"]["certificate"]
    assert record["provenance"]["machine"] == {"device": NAME, "name": "simulated device", "threads": "1"}
    assert result["losses"] == pytest.approx(on_cpu["losses"], rel=1e-4)
    assert result["metrics"] == pytest.approx(on_cpu["metrics"], rel=1e-4)
    for key in ("tensors", "outputs", "validation", "batches", "order", "batch_digests", "targets", "no_gradient"):
        assert certificate[key] == on_cpu["certificate"][key], key
    assert "unchecked" not in certificate["first_step"]
    assert (certificate["first_step"]["unrepeatable"], certificate["changed_tensors"], certificate["generators"]) == (
        [],
        [],
        [],
    )
    quiet = [step for step in range(STEPS - 1) if not should_check_step(step, STEPS)]
    assert len(quiet) >= 6
    assert not [wait for step in quiet for wait in waits.of(step)]


@pytest.mark.parametrize(
    "words", [["gpt-tiny", "dropout=0.1"], ["bert-tiny", "trainer.accumulate_grad_batches=2"]], ids=" ".join
)
def test_an_interrupted_trial_resumes_bitwise(
    words: list[str], registry: Registry, tmp_path: Path, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = resolved(*words, *SIZES, "trainer.max_steps=12", registry=registry)
    expected = run(spec, registry, tmp_path / "whole")
    digest = Mock(wraps=digests.untrained_outputs_digest)
    monkeypatch.setattr(trial, "untrained_outputs_digest", digest)
    steps = iter(range(100))
    with pytest.raises(InterruptedTrialError, match="asked to stop"):
        run(spec, registry, tmp_path / "cut", should_stop=lambda: next(steps) == 4)
    resumed = run(spec, registry, tmp_path / "cut")
    assert resumed["result"] == expected["result"]
    assert digest.call_count == 1  # it is in the checkpoint


def test_a_checkpoint_of_the_device_does_not_go_on_on_a_cpu(registry: Registry, tmp_path: Path) -> None:
    spec = resolved("gpt-tiny", *SIZES, "trainer.max_steps=12", registry=registry)
    steps = iter(range(100))
    with simulated_device(), pytest.raises(InterruptedTrialError, match="asked to stop"):
        run(spec, registry, tmp_path / "trial", should_stop=lambda: next(steps) == 4)
    with raises_problem(StoreError, "other-machine", "device", "cpu", NAME):
        run_trial(spec, registry, TrialContext("trial", tmp_path / "trial"))


def test_a_checkpoint_of_a_cpu_does_not_go_on_on_the_device(registry: Registry, tmp_path: Path) -> None:
    spec = resolved("gpt-tiny", *SIZES, "trainer.max_steps=12", registry=registry)
    steps = iter(range(100))
    (tmp_path / "trial").mkdir()
    with pytest.raises(InterruptedTrialError, match="asked to stop"):
        run_trial(spec, registry, TrialContext("trial", tmp_path / "trial", should_stop=lambda: next(steps) == 4))
    with simulated_device(), raises_problem(StoreError, "other-machine", "device", "cpu", NAME):
        run(spec, registry, tmp_path / "trial")


def test_losses_are_read_at_few_steps(registry: Registry, tmp_path: Path, device: SimulatedDevice) -> None:
    spec = resolved("bert-tiny", *SIZES, "trainer.max_steps=64", registry=registry)
    waits = WaitsByStep(device)
    record = run(spec, registry, tmp_path / "trial", waits)
    assert len(record["result"]["losses"]) == 64
    reading = [step for step in range(33, 63) if waits.of(step)]
    assert reading == [39, 49, 59]  # the losses of 20 steps, and Lightning's logging at each 50th
    # The losses of 20 steps at once, and the targets of each of the two objectives.
    assert len(waits.of(39)) == 3


def test_a_time_limit_counts_the_time_of_the_device(
    registry: Registry, tmp_path: Path, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work of 0.05 s a step is queued, and takes its time when the CPU waits for the device."""
    queued = [0.0]

    class SlowSteps(Callback):
        def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
            queued[0] += 0.05

    def synchronize(*given: object) -> None:
        time.sleep(queued[0])
        queued[0] = 0.0

    monkeypatch.setattr(torch.get_device_module(NAME), "synchronize", synchronize)
    spec = resolved("gpt-tiny", *SIZES, 'trainer.max_time="00:00:00:01"', "trainer.max_steps=null", registry=registry)
    record = run(spec, registry, tmp_path / "trial", SlowSteps())
    steps, provenance = record["result"]["steps"], record["provenance"]
    assert provenance["training_seconds"] >= 0.05 * steps
    assert record["result"]["time_budget"] == {"seconds": 1.0, "clock": "wall"}


def test_the_digest_of_a_large_model_is_of_few_examples(
    registry: Registry, tmp_path: Path, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = resolved("gpt-tiny", *SIZES, "data.batch=8", "trainer.max_steps=2", registry=registry)
    monkeypatch.setattr(digests, "MAX_DIGEST_FLOPS", 1)
    tensors = Mock(wraps=to_device)
    monkeypatch.setattr(digests, "to_device", tensors)
    run(spec, registry, tmp_path / "trial")
    assert [len(call.args[0].index) for call in tensors.call_args_list] == [2]


def test_a_gradient_that_changes_between_repetitions_is_found(
    registry: Registry, tmp_path: Path, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is the same; a parameter's gradient is not."""
    from paribus_norm.layer_norm import LayerNorm

    calls, forward = iter(range(10_000)), LayerNorm.forward

    def noisy(self: LayerNorm, x: torch.Tensor) -> torch.Tensor:
        y = forward(self, x)
        if y.requires_grad:
            factor = 1 + 0.01 * (next(calls) % 7)
            y.register_hook(lambda gradient: gradient * factor)
        return y

    monkeypatch.setattr(LayerNorm, "forward", noisy)
    spec = resolved("gpt-tiny", *SIZES, "trainer.max_steps=2", registry=registry)
    record = run(spec, registry, tmp_path / "trial")
    assert record["result"]["certificate"]["first_step"]["unrepeatable"] == ["gradients"]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_a_step_that_differs_by_rounding_is_repeatable(
    precision: str, registry: Registry, tmp_path: Path, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of a GPU have no fixed order. Without positions, the gradient of a bias of keys is zero but for rounding."""
    from paribus_norm.layer_norm import LayerNorm

    forward, noise = LayerNorm.forward, torch.Generator().manual_seed(0)
    unit = torch.finfo(torch.float32 if precision == "32-true" else torch.bfloat16).eps

    def rounded(self: LayerNorm, x: torch.Tensor) -> torch.Tensor:
        y = forward(self, x)
        return y * (1 + unit * (torch.rand(y.shape, generator=noise) - 0.5).to(y))

    monkeypatch.setattr(LayerNorm, "forward", rounded)
    words = (
        "position=none",
        "attention={name: mha, scores: {bias: true}, key_bias: true}",
        "trainer.max_steps=2",
        f"trainer.precision={precision}",
    )
    record = run(resolved("gpt-tiny", *SIZES, *words, registry=registry), registry, tmp_path / "trial")
    assert record["result"]["certificate"]["first_step"]["unrepeatable"] == []


@pytest.mark.parametrize(
    ("preset", "measures"),
    [
        ("gpt-tiny", "[entropy, sink, span, induction, recall, extrapolation]"),
        ("encoder-tiny", "[entropy, sink, span, positions]"),
        ("vit-tiny", "[entropy, span]"),
        ("transformer-tiny", "[{name: translation, scores: []}]"),
    ],
)
def test_measures_are_those_of_a_cpu(
    preset: str, measures: str, registry: Registry, tmp_path: Path, device: SimulatedDevice
) -> None:
    small = (*SIZES, "dropout=0.0", "trainer.max_steps=2", f"measure={measures}")
    spec = resolved(preset, *small, "position=rope" if preset == "gpt-tiny" else "seed=0", registry=registry)
    (tmp_path / "cpu").mkdir()
    on_cpu = run_trial(spec, registry, TrialContext("trial", tmp_path / "cpu", writer=translate_validation))["result"]
    result = run(spec, registry, tmp_path / "device", writer=translate_validation)["result"]
    assert result.get("unmeasured") == on_cpu.get("unmeasured")
    numbers = (
        {key: value for key, value in one["metrics"].items() if isinstance(value, float)} for one in (result, on_cpu)
    )
    assert next(numbers) == pytest.approx(next(numbers), rel=1e-3, abs=1e-4)


def test_a_deterministic_trial_in_half_precision_runs(
    registry: Registry, tmp_path: Path, device: SimulatedDevice
) -> None:
    words = ("attention=sparsemax", "trainer.max_steps=4", "trainer.deterministic=true", "trainer.precision=bf16-true")
    record = run(resolved("gpt-tiny", *SIZES, *words, registry=registry), registry, tmp_path / "trial")
    assert record["result"]["state"] == "done"
    assert not torch.are_deterministic_algorithms_enabled()


def test_records_of_the_device_are_written(registry: Registry, tmp_path: Path, device: SimulatedDevice) -> None:
    spec = resolved("gpt-tiny", *SIZES, "trainer.max_steps=2", registry=registry)
    run(spec, registry, tmp_path / "trial", options=TrialOptions())
    written = json.loads((tmp_path / "trial" / "record.json").read_text())["body"]
    assert written["provenance"]["machine"]["device"] == NAME
