"""A trial in several processes: one record, of the same loss."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paribus.durable import canonical
from paribus.errors import SpecError
from paribus.registry import Registry
from paribus.specs.resolve import resolved
from paribus.studies.store import Trial
from paribus.train.keeper import InterruptedTrialError
from paribus.train.ranks import Ranks, in_ranks, refuse, wanted
from paribus.train.trial import Terms, run_trial

BOTH = {"accelerator": "cpu", "devices": 2, "strategy": "ddp"}


@pytest.mark.parametrize(("devices", "count"), [(None, 1), (2, 2), ([0, 3, 5], 3), ("auto", 1), ("4", 4), ("0,1", 2)])
def test_a_process_for_each_device(devices: Any, count: int) -> None:
    assert wanted({} if devices is None else {"devices": devices}) == count


@pytest.mark.parametrize(
    ("trainer", "says"),
    [
        ({"strategy": "fsdp"}, r"trainer.strategy: `fsdp` is not supported.*each process to hold the whole model.*ddp"),
        ({"strategy": "ddp_spawn"}, "`ddp_spawn` is not supported"),
        ({"num_nodes": 2}, "a trial on several machines is not supported.*launcher"),
        ({"max_time": "00:00:01:00"}, "a budget in seconds is held against the clock of one process"),
    ],
)
def test_what_a_trial_cannot_be_cut_into_is_refused(trainer: Mapping[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=f"trainer-refused.*{says}"):
        refuse({"devices": 2, **trainer})


@pytest.mark.usefixtures("one_thread")
def test_the_first_process_returns_what_it_found_and_the_others_end(tmp_path: Path) -> None:
    def run(ranks: Ranks) -> int:
        (tmp_path / f"{ranks.rank} of {ranks.of}, {os.environ['LOCAL_RANK']}").touch()
        return os.getpid()

    assert in_ranks(BOTH, run) == os.getpid()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0 of 2, 0", "1 of 2, 1"]
    assert "LOCAL_RANK" not in os.environ
    assert in_ranks({}, lambda ranks: ranks) == Ranks(0, 1)


@pytest.mark.usefixtures("one_thread")
def test_where_another_process_failed_first_that_is_what_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    def run(ranks: Ranks) -> None:
        raise ValueError("broken there" if ranks.rank else "connection closed by peer")

    with pytest.raises(RuntimeError, match="process 1 of the trial's failed first, see the log; here: connection"):
        in_ranks(BOTH, run)
    assert "ValueError: broken there" in capfd.readouterr().err


def test_a_process_with_threads_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["paribus.train.ranks"], "may_fork", lambda: False)
    with pytest.raises(SpecError, match=r"2 devices take a process each, and this one has threads.*or a study"):
        in_ranks(BOTH, lambda ranks: ranks)


@pytest.fixture
def spec(trial: Callable[..., Trial]) -> Callable[..., dict[str, Any]]:
    def make(**trainer: Any) -> dict[str, Any]:
        made = {**trial(steps=6).spec, "dropout": 0.0}
        return {**made, "trainer": {**made["trainer"], "accelerator": "cpu", **trainer}}

    return make


@pytest.mark.slow
def test_two_processes_leave_one_record_with_the_loss_of_one(
    spec: Callable[..., dict[str, Any]], registry: Registry, tmp_path: Path
) -> None:
    found = {}
    for name, more in (("one", {}), ("two", BOTH)):
        folder = tmp_path / name
        folder.mkdir()
        found[name] = run_trial(spec(**more), registry, Terms("x", folder, checkpoint_steps=2))["result"]
    one, two = found["one"], found["two"]
    assert two["losses"] == pytest.approx(one["losses"], rel=2e-6)
    assert two["metrics"] == pytest.approx(one["metrics"], rel=2e-6)
    assert two["steps"] == 6
    for name in ("batches", "order", "along", "outputs", "validation", "no_gradient"):
        assert two["certificate"][name] == one["certificate"][name], name  # all of each batch, whoever saw which rows
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == sorted(
        path.name for path in (tmp_path / "one").iterdir()
    )


@pytest.mark.slow
def test_two_processes_stop_together_and_go_on_bitwise(
    spec: Callable[..., dict[str, Any]], registry: Registry, tmp_path: Path
) -> None:
    uncut, cut = tmp_path / "uncut", tmp_path / "cut"
    uncut.mkdir()
    cut.mkdir()
    expected = run_trial(spec(**BOTH), registry, Terms("x", uncut))["result"]
    told: list[int] = []
    terms = Terms("x", cut, tell=lambda step, loss: told.append(step), asked_to_stop=lambda: told[-1] == 3)
    with pytest.raises(InterruptedTrialError, match="the checkpoint is written"):
        run_trial(spec(**BOTH), registry, terms)
    assert sorted(set(told)) == [1, 2, 3]
    assert [path.name for path in (cut / "checkpoints").iterdir()] == ["step-00000003.safetensors"]
    found = run_trial(spec(**BOTH), registry, replace(terms, asked_to_stop=lambda: False))["result"]
    assert sorted(set(told)) == [1, 2, 3, 4, 5, 6]
    assert canonical(found) == canonical(expected)


@pytest.mark.parametrize(
    ("trainer", "says"),
    [
        ("trainer={strategy: fsdp, devices: 4}", r"\[trainer-refused\] trainer.strategy.*`fsdp` is not supported"),
        ("trainer={strategy: fsdp}", "`fsdp` is not supported"),
        ("trainer={devices: 2, max_time: {seconds: 5}}", r"trainer.max_time.*the clock of one process"),
        ("trainer={num_nodes: 2}", "trainer.num_nodes.*several machines"),
    ],
)
def test_a_spec_that_asks_for_it_is_refused_before_anything_is_made(trainer: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        resolved("encoder-tiny", trainer)


def test_a_spec_over_several_devices_is_a_spec() -> None:
    assert resolved("encoder-tiny", "trainer={strategy: ddp, devices: 2}")["trainer"]["devices"] == 2
    assert resolved("encoder-tiny", "trainer={max_time: {seconds: 5}}")["trainer"]["max_time"]
