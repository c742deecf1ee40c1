"""A trial in several processes: one record, of the same loss."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus.datamodule.worker_pool import may_fork
from paribus.errors import DataError, Problem, SpecError
from paribus.models.distributed import ProcessRank, process_count, run_distributed, set_current_device, validate_devices
from paribus.models.tensor_file import read_tensors
from paribus.registry import Registry, installed
from paribus.specs.resolve import resolved
from paribus.storage.atomic import canonical_json, read_json
from paribus.storage.saved_model import RECORD, WEIGHTS
from paribus.storage.store import Trial
from paribus.train.trial import TrialContext, _trainer, run_trial
from paribus.train.trial_callback import InterruptedTrialError
from paribus.train.trial_options import TrialOptions

BOTH = {"accelerator": "cpu", "devices": 2, "strategy": "ddp"}
PIECES = {**BOTH, "strategy": "fsdp"}

MakeSpec = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(("devices", "count"), [(None, 1), (2, 2), ([0, 3, 5], 3), ("auto", 1), ("4", 4), ("0,1", 2)])
def test_each_device_gets_a_process(devices: Any, count: int) -> None:
    assert process_count({} if devices is None else {"devices": devices}) == count


@pytest.mark.parametrize(
    ("trainer", "value"),
    [
        ({"strategy": "deepspeed"}, "deepspeed"),
        ({"strategy": "ddp_spawn"}, "ddp_spawn"),
        ({"num_nodes": 2}, "trainer.num_nodes"),
        ({"max_time": "00:00:01:00"}, "trainer.max_time"),
    ],
)
def test_an_impossible_number_of_devices_is_an_error(trainer: Mapping[str, Any], value: str) -> None:
    with raises_problem(SpecError, "trainer-error", value):
        validate_devices({"devices": 2, **trainer})


@pytest.mark.usefixtures("one_thread")
def test_the_first_process_returns_the_result_and_the_others_end(tmp_path: Path) -> None:
    def run(ranks: ProcessRank) -> int:
        (tmp_path / f"{ranks.rank} of {ranks.world_size}, {os.environ['LOCAL_RANK']}").touch()
        return os.getpid()

    assert run_distributed(BOTH, run) == os.getpid()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0 of 2, 0", "1 of 2, 1"]
    assert "LOCAL_RANK" not in os.environ
    assert run_distributed({}, lambda ranks: ranks) == ProcessRank(0, 1)


@pytest.mark.usefixtures("one_thread")
def test_the_first_failure_of_any_process_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    def run(ranks: ProcessRank) -> None:
        raise ValueError("broken there" if ranks.rank else "connection closed by peer")

    with pytest.raises(RuntimeError, match="process 1 of the trial failed first, see the log; here: connection"):
        run_distributed(BOTH, run)
    assert "ValueError: broken there" in capfd.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("failure", "code"),
    [("sys.exit(3)", 1), ("os.kill(os.getpid(), 9)", -9)],
)
def test_a_trial_ends_when_a_process_fails_that_the_first_waits_for(failure: str, code: int) -> None:
    source = f"""
import os, sys, time
import torch
from paribus.models import distributed
torch.set_num_threads(1)
distributed.ABORT_SECONDS = 0.5

def run(rank):
    if rank.rank == 1:
        {failure}
    time.sleep(60)

distributed.run_distributed({{"accelerator": "cpu", "devices": 3, "strategy": "ddp"}}, run)
"""
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=50)
    assert ended.returncode == code
    assert "process 1 of the trial failed" in ended.stderr


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends the processes")
def test_the_processes_of_a_trial_end_with_a_killed_first_process(tmp_path: Path) -> None:
    source = f"""
import os, time
from pathlib import Path
import torch
from paribus.models.distributed import run_distributed
torch.set_num_threads(1)
path = Path({str(tmp_path)!r}, "pid")

def run(rank):
    if rank.rank:
        path.with_name("new").write_text(str(os.getpid()))
        path.with_name("new").rename(path)
        time.sleep(60)
    while not path.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), 9)

run_distributed({{"accelerator": "cpu", "devices": 2, "strategy": "ddp"}}, run)
"""
    # Its output is a pipe, which is at its end once no process has it any more.
    subprocess.run([sys.executable, "-c", source], capture_output=True, check=False, timeout=40)
    assert (tmp_path / "pid").exists()


@pytest.mark.usefixtures("one_thread")
def test_a_process_with_a_monitor_can_be_forked() -> None:
    assert run_distributed(BOTH, lambda ranks: may_fork())
    assert threading.active_count() == 1


@pytest.mark.usefixtures("one_thread")
def test_an_error_that_every_process_finds_is_reported_as_it_is() -> None:
    def run(ranks: ProcessRank) -> None:
        raise DataError(Problem(code="too-little-data", message="68 examples"))

    with raises_problem(DataError, "too-little-data", "68"):
        run_distributed(BOTH, run)


def test_a_process_with_threads_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["paribus.models.distributed"], "may_fork", lambda: False)
    with raises_problem(SpecError, "trainer-error", "trainer.devices"):
        run_distributed(BOTH, lambda ranks: ranks)


def test_a_gpu_becomes_current_before_its_memory_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    for name in ("cpu", "cuda", "cuda:1"):
        set_current_device(torch.device(name))
    assert devices == [torch.device("cuda:1")]


def test_the_current_device_is_set_before_the_peak_memory_is_reset(
    spec: MakeSpec, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr("paribus.train.trial.set_current_device", lambda device: calls.append(f"set {device}"))
    monkeypatch.setattr("paribus.train.trial.reset_peak_memory", lambda device=None: calls.append(f"reset {device}"))
    run_trial(spec(max_steps=1), registry, TrialContext("x", tmp_path))
    assert calls == ["reset None", "set cpu", "reset cpu"]


@pytest.mark.parametrize(("count", "devices"), [(1, 1), (2, "auto")])
def test_one_process_gets_one_device(
    spec: MakeSpec, registry: Registry, monkeypatch: pytest.MonkeyPatch, count: int, devices: Any
) -> None:
    options: dict[str, Any] = {}
    monkeypatch.setattr("paribus.train.trial.Trainer", lambda **arguments: options.update(arguments))
    context = TrialContext("x", Path(), rank=ProcessRank(0, count))
    _trainer(spec(devices="auto", strategy="ddp"), 1, [], context)
    assert options["devices"] == devices


@pytest.fixture(scope="module")
def spec(trial: Callable[..., Trial]) -> MakeSpec:
    def make(**trainer: Any) -> dict[str, Any]:
        specs = {**trial(steps=6).spec, "dropout": 0.0}
        return {**specs, "trainer": {**specs["trainer"], "accelerator": "cpu", "ema_decay": 0.9, **trainer}}

    return make


@pytest.fixture(scope="module")
def alone(spec: MakeSpec, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a trial that one process ran."""
    folder = tmp_path_factory.mktemp("alone")
    run_trial(spec(), registry, TrialContext("x", folder, TrialOptions(checkpoint_steps=2)))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("both", [BOTH, PIECES], ids=["whole", "pieces"])
def test_two_processes_leave_one_record_with_the_loss_of_one(
    spec: MakeSpec, registry: Registry, alone: Path, tmp_path: Path, both: dict[str, Any]
) -> None:
    two = run_trial(spec(**both), registry, TrialContext("x", tmp_path, TrialOptions(checkpoint_steps=2)))["result"]
    one = read_json(alone / RECORD)["result"]
    assert two["losses"] == pytest.approx(one["losses"], rel=2e-6)
    assert two["metrics"] == pytest.approx(one["metrics"], rel=2e-6)
    assert two["steps"] == 6
    for name in ("batches", "order", "batch_digests", "outputs", "validation", "tensors", "no_gradient"):
        assert two["certificate"][name] == one["certificate"][name], name  # all of each batch, whoever saw which rows
    assert files(tmp_path) == files(alone)
    (record, said), (reference_record, expected) = (read_tensors(folder / WEIGHTS) for folder in (tmp_path, alone))
    assert said == expected
    assert {name: tensor.shape for name, tensor in record.items()} == {
        name: each.shape for name, each in reference_record.items()
    }
    assert all(torch.allclose(record[name], reference_record[name], rtol=0, atol=1e-5) for name in record)


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [entry.name for entry in installed().index.entries["optimizer"].values() if entry.traits.get("sharded")],
)
def test_an_optimizer_steps_on_shards_as_on_whole_tensors(
    spec: MakeSpec, registry: Registry, tmp_path: Path, optimizer: str
) -> None:
    steps = {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2, "ema_decay": None}
    result: dict[str, dict[str, torch.Tensor]] = {}
    for name, both in (("whole", BOTH), ("pieces", PIECES)):
        (tmp_path / name).mkdir()
        specs = resolved_with(spec(**both, **steps), optimizer)
        run_trial(specs, registry, TrialContext("x", tmp_path / name, TrialOptions(checkpoint_steps=2)))
        checkpoint, _ = read_tensors(tmp_path / name / "checkpoints/step-00000004.safetensors")
        saved, _ = read_tensors(tmp_path / name / WEIGHTS)
        result[name] = {**checkpoint, **{f"model/saved/{path}": tensor for path, tensor in saved.items()}}
    assert result["pieces"].keys() == result["whole"].keys()
    for name, tensor in result["whole"].items():
        if name.startswith(("model/", "optimizer/")):
            assert torch.allclose(result["pieces"][name], tensor, rtol=1e-4, atol=1e-5), name


def resolved_with(spec: dict[str, Any], optimizer: str) -> dict[str, Any]:
    optimizer_spec = resolved("encoder-tiny", f"optimizer={optimizer}")["optimizer"]
    return {**spec, "optimizer": optimizer_spec, "dropout": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "both", [BOTH, PIECES, {**PIECES, "ema_decay": None}], ids=["whole", "pieces", "pieces-without-averages"]
)
def test_two_processes_stop_together_and_resume_bitwise(
    spec: MakeSpec, registry: Registry, tmp_path: Path, both: dict[str, Any]
) -> None:
    uncut, cut = tmp_path / "uncut", tmp_path / "cut"
    uncut.mkdir()
    cut.mkdir()
    expected = run_trial(spec(**both), registry, TrialContext("x", uncut))["result"]
    steps: list[int] = []
    terms = TrialContext("x", cut, on_step=lambda step, loss: steps.append(step), should_stop=lambda: steps[-1] == 3)
    with pytest.raises(InterruptedTrialError, match="the checkpoint is written"):
        run_trial(spec(**both), registry, terms)
    assert sorted(set(steps)) == [1, 2, 3]
    assert [path.name for path in (cut / "checkpoints").iterdir()] == ["step-00000003.safetensors"]
    result = run_trial(spec(**both), registry, replace(terms, should_stop=lambda: False))["result"]
    assert sorted(set(steps)) == [1, 2, 3, 4, 5, 6]
    assert canonical_json(result) == canonical_json(expected)


@pytest.mark.slow
@pytest.mark.parametrize("both", [BOTH, PIECES], ids=["whole", "pieces"])
def test_the_clock_of_the_first_process_decides_when_a_checkpoint_is_due(
    spec: MakeSpec, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, both: dict[str, Any]
) -> None:
    calls = count()

    def seconds() -> float:  # of rank 0, 100 at each call; that of rank 1 stands still
        return 100.0 * next(calls) if os.environ["LOCAL_RANK"] == "0" else 0.0

    monkeypatch.setattr("paribus.train.trial.time", SimpleNamespace(monotonic=seconds, time=time.time))
    options = TrialOptions(checkpoint_seconds=300.0)
    assert run_trial(spec(**both), registry, TrialContext("x", tmp_path, options))["result"]["steps"] == 6
    assert files(tmp_path / "checkpoints") == ["step-00000003.safetensors"]


@pytest.mark.parametrize(
    ("trainer", "values"),
    [
        ("trainer={strategy: deepspeed, devices: 4}", ("trainer.strategy", "deepspeed")),
        ("trainer={strategy: deepspeed}", ("deepspeed",)),
        ("trainer={devices: 2, max_time: {seconds: 5}}", ("trainer.max_time",)),
        ("trainer={num_nodes: 2}", ("trainer.num_nodes",)),
    ],
)
def test_a_spec_with_sharding_is_refused_before_any_work(trainer: str, values: tuple[str, ...]) -> None:
    with raises_problem(SpecError, "trainer-error", *values):
        resolved("encoder-tiny", trainer)


def test_an_optimizer_without_support_of_shards_is_refused() -> None:
    overrides = ("trainer={strategy: fsdp, devices: 2}", "optimizer=adafactor")
    with raises_problem(SpecError, "does-not-fit", "optimizer", "fsdp", "adafactor", "adamw"):
        resolved("encoder-tiny", *overrides)


def test_a_spec_may_use_several_devices() -> None:
    assert resolved("encoder-tiny", "trainer={strategy: fsdp, devices: 2}")["trainer"]["strategy"] == "fsdp"
    assert resolved("encoder-tiny", "trainer={strategy: ddp, devices: 2}")["trainer"]["devices"] == 2
    assert resolved("encoder-tiny", "trainer={max_time: {seconds: 5}}")["trainer"]["max_time"]
