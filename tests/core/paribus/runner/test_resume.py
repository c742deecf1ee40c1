"""A trial that was cut, wherever it was cut, comes to the record of the trial that was not."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from paribus.errors import StoreError
from paribus.registry import Registry
from paribus.storage.atomic import FILES, Files, canonical_json, read_json
from paribus.storage.saved_model import RECORD
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_callback import DivergedError, InterruptedTrialError, TrialCallback, UnreadStep
from paribus.train.trial_options import TrialOptions

STEPS = 8
EVERY = 4  # so that one could fall on the last step
OPTIONS = TrialOptions(checkpoint_steps=EVERY)
Spec = dict[str, Any]


@pytest.fixture
def spec(tiny: Callable[..., Spec]) -> Spec:
    return tiny(steps=STEPS)


@pytest.fixture(scope="session")
def uncut(tiny: Callable[..., Spec], registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return result(run_trial(tiny(steps=STEPS), registry, TrialContext("trial", tmp_path_factory.mktemp("uncut"))))


def result(record: Spec) -> bytes:
    return canonical_json(record["result"])


class Cut(BaseException):
    """Error that stands for a power cut."""


def cut_at(k: int, interrupt: Callable[[], None]) -> Files:
    """Files whose k-th call, counted from 0, does not come about."""
    calls = iter(range(10_000))

    def before(name: str) -> None:
        if next(calls) == k:
            interrupt()

    return FILES.with_callback(before)


def power_cut() -> None:
    raise Cut


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def disk_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def asked_at(*steps: int) -> Callable[[], bool]:
    """Somebody who asks to stop after so many steps, counted anew after every resumption."""
    numbers = iter(range(1, 1_000))
    return lambda: next(numbers) in steps


def interrupted(spec: Spec, registry: Registry, terms: TrialContext) -> bool:
    try:
        run_trial(spec, registry, terms)
    except InterruptedTrialError:
        return True
    return False


@pytest.mark.few(1)
@pytest.mark.parametrize("step", range(1, STEPS))
def test_an_interruption_after_any_step_changes_nothing(
    spec: Spec, registry: Registry, uncut: bytes, tmp_path: Path, step: int
) -> None:
    assert interrupted(spec, registry, TrialContext("trial", tmp_path, should_stop=asked_at(step)))
    torch.manual_seed(12345)  # a new process has another state
    assert result(run_trial(spec, registry, TrialContext("trial", tmp_path))) == uncut


def test_an_interruption_after_every_step_changes_nothing(
    spec: Spec, registry: Registry, uncut: bytes, tmp_path: Path
) -> None:
    cuts = 0
    while interrupted(spec, registry, TrialContext("trial", tmp_path, should_stop=asked_at(1))):
        cuts += 1
    assert cuts == STEPS - 1
    assert result(read_json(tmp_path / RECORD)) == uncut


def test_the_checkpoints_of_a_run_change_nothing(spec: Spec, registry: Registry, uncut: bytes, tmp_path: Path) -> None:
    assert result(run_trial(spec, registry, TrialContext("trial", tmp_path, TrialOptions(checkpoint_steps=1)))) == uncut


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "over",
    [
        {"trainer": {"max_steps": 5, "accumulate_grad_batches": 2}},
        {"data": {"batch": 4, "workers": 1, "validation": 8, "documents": "mixed"}},
        {"seed": 2**40 + 7},
    ],
    ids=["accumulated", "workers", "seed"],
)
def test_an_interruption_changes_no_other_result(
    tiny: Callable[..., Spec], registry: Registry, tmp_path: Path, over: dict[str, Any]
) -> None:
    spec = {**tiny(steps=5), **over}
    expected = result(run_trial(spec, registry, TrialContext("trial", made(tmp_path / "uncut"))))
    assert interrupted(spec, registry, TrialContext("trial", made(tmp_path / "cut"), should_stop=asked_at(3)))
    assert result(run_trial(spec, registry, TrialContext("trial", tmp_path / "cut"))) == expected


def test_an_interruption_before_a_divergence_changes_nothing(
    tiny: Callable[..., Spec], registry: Registry, tmp_path: Path
) -> None:
    spec = tiny(steps=STEPS)
    spec["optimizer"]["lr"] = 1e12
    spec["schedule"] = {"name": "constant", "warmup": 0.0}
    expected = run_trial(spec, registry, TrialContext("trial", made(tmp_path / "uncut")))
    assert expected["result"]["state"] == "diverged"
    step = expected["result"]["diverged"]["step"]
    assert 1 < step < STEPS
    assert interrupted(spec, registry, TrialContext("trial", made(tmp_path / "cut"), should_stop=asked_at(step - 1)))
    assert result(run_trial(spec, registry, TrialContext("trial", tmp_path / "cut"))) == result(expected)


def test_steps_after_a_divergence_are_not_in_the_record() -> None:
    nothing: Any = None
    keeper = TrialCallback(
        nothing,
        nothing,
        steps=9,
        evaluation_steps=[],
        save_checkpoint=nothing,
        is_checkpoint_due=nothing,
        should_stop=nothing,
        on_step=lambda step, loss: None,
    )
    keeper.step, keeper.batches, keeper.order = 4, "b4", "o4"
    keeper.curve = [{"step": 1}, {"step": 3}]
    losses = (2.0, 1.5, float("inf"), float("nan"))
    keeper._unread = [
        UnreadStep(torch.tensor(loss), {"mlm/loss": torch.tensor(7)}, at, f"b{at}", f"o{at}", False)
        for at, loss in enumerate(losses, start=1)
    ]
    with pytest.raises(DivergedError, match=r"not finite at step 3; the last finite value was 1\.5"):
        keeper.read_losses()
    assert (keeper.step, keeper.batches, keeper.order, keeper.curve) == (3, "b3", "o3", [{"step": 1}])
    assert keeper.checks.training == {"1": {"mlm/loss": 7}, "2": {"mlm/loss": 14}}


def calls_of(spec: Spec, registry: Registry, folder: Path) -> int:
    """Return the number of writing calls of a run."""
    batches: list[str] = []
    terms = TrialContext("trial", folder, OPTIONS, files=FILES.with_callback(batches.append))
    run_trial(spec, registry, terms)
    return len(batches)


def cut_and_resumed(spec: Spec, registry: Registry, folder: Path, k: int, interrupt: Callable[[], None]) -> bytes:
    """The result of a trial that was cut in its k-th call, and run again."""
    terms = TrialContext("trial", folder, OPTIONS, files=cut_at(k, interrupt))
    with suppress(Cut, StoreError):
        run_trial(spec, registry, terms)
    return result(run_trial(spec, registry, TrialContext("trial", folder, OPTIONS)))


@pytest.mark.thorough
def test_a_full_disk_and_a_power_cut_in_some_writes_change_nothing(
    spec: Spec, registry: Registry, uncut: bytes, tmp_path: Path
) -> None:
    count = calls_of(spec, registry, made(tmp_path / "counted"))
    for k in (count // 2, count - 5):
        for interrupt in (disk_full, power_cut):
            assert cut_and_resumed(spec, registry, made(tmp_path / f"{k} {interrupt.__name__}"), k, interrupt) == uncut


@pytest.mark.faults
@pytest.mark.parametrize("interrupt", [disk_full, power_cut], ids=lambda interrupt: interrupt.__name__)
def test_a_full_disk_and_a_power_cut_in_any_write_change_nothing(
    spec: Spec, registry: Registry, uncut: bytes, tmp_path: Path, interrupt: Callable[[], None]
) -> None:
    for k in range(calls_of(spec, registry, made(tmp_path / "counted"))):
        assert cut_and_resumed(spec, registry, made(tmp_path / str(k)), k, interrupt) == uncut, k


@pytest.mark.faults
def test_a_kill_ahead_of_any_write_changes_nothing(
    spec: Spec, registry: Registry, uncut: bytes, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    calls = calls_of(spec, registry, made(tmp_path / "counted"))
    for k in range(calls):
        folder = made(tmp_path / str(k))
        child = os.fork()
        if child == 0:
            try:
                files = cut_at(k, kill)
                run_trial(spec, registry, TrialContext("trial", folder, OPTIONS, files=files))
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), k
        assert result(run_trial(spec, registry, TrialContext("trial", folder, OPTIONS))) == uncut, k
    record_property("kill -9 survived", calls)
