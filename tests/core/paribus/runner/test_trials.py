"""Trials in real processes, of which each does something else that a plugin may do."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.registry import Registry
from paribus.runner.jobs import RunOptions
from paribus.runner.processes import ForkServer
from paribus.runner.progress import Event
from paribus.runner.scheduler import run_trials
from paribus.runner.signals import InterruptedStudyError, StopRequest
from paribus.slots.launcher import Plugins
from paribus.storage.atomic import canonical_json
from paribus.storage.store import LOG, Store, Trial
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_options import TrialOptions

pytestmark = pytest.mark.thorough  # the fork server takes seconds to start

SABOTEUR = Path(__file__).with_name("saboteur.py")
STEPS = 12
MakeTrial = Callable[..., Trial]


@pytest.fixture(scope="module")
def sabotage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that says which seed is to be sabotaged, and how."""
    path = tmp_path_factory.mktemp("sabotage") / "plan.json"
    path.write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARIBUS_SABOTAGE", str(path))
        yield path


@pytest.fixture(scope="module")
def server(sabotage: Path) -> Iterator[ForkServer]:
    """One for all of these tests: it takes seconds to start."""
    server = ForkServer()
    server.open(Plugins(files=(str(SABOTEUR),)))
    yield server
    server.close()


@pytest.fixture(scope="module")
def uncut(trial: MakeTrial, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], bytes]:
    """The result of the trial with this seed, in one go and in this process."""

    def run(seed: int) -> bytes:
        return result(
            run_trial(trial(seed=seed, steps=STEPS).spec, registry, TrialContext("x", tmp_path_factory.mktemp("x")))
        )

    return run


def result(record: dict[str, Any] | None) -> bytes:
    assert record is not None
    return canonical_json(record["result"])


def supervised(
    store: Store, server: ForkServer, *trials: Trial, on_event: Callable[[Event], None] | None = None, **rules: Any
) -> list[Event]:
    events: list[Event] = []

    def take(event: Event) -> None:
        events.append(event)
        if on_event is not None:
            on_event(event)

    stop = rules.pop("stop", None)
    trial_options = TrialOptions(checkpoint_steps=rules.pop("checkpoint_steps", 2))
    options = RunOptions(**{"rehearse": False, "trial": trial_options, **rules})
    run_trials(trials, store, launcher=server, options=options, on_event=take, stop=stop, resume="again")  # type: ignore[arg-type]  # it does what a launcher does
    return events


class Ran:
    """Outcome of the trials, by the injected failure: state, reason, log and record."""

    def __init__(self, store: Store, seeds: dict[str, int], events: list[Event]) -> None:
        self.store = store
        self.seeds = seeds
        self.events = events

    def state(self, deed: str) -> str:
        return self.store.state(self.identity(deed))

    def why(self, deed: str) -> dict[str, Any]:
        failure = self.store.failure(self.identity(deed))
        assert failure is not None
        return failure

    def log(self, deed: str) -> str:
        return (self.store.folder(self.identity(deed)) / LOG).read_text()

    def attempts(self, deed: str) -> int:
        return sum(event.kind == "started" for event in self.of(deed))

    def of(self, deed: str) -> list[Event]:
        return [event for event in self.events if event.trial and event.trial.identity == self.identity(deed)]

    def identity(self, deed: str) -> str:
        return f"base-{self.seeds[deed]}"


@pytest.fixture(scope="module")
def ran(sabotage: Path, server: ForkServer, trial: MakeTrial, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("ran")
    deeds: dict[str, dict[str, Any]] = {
        name: {"do": name, "step": 5} for name in ("raise", "exit", "sysexit", "crash", "memory", "chat")
    }
    deeds["kill once"] = {"do": "kill", "step": 5, "once": str(folder / "kill once")}
    deeds["nothing"] = {"do": "nothing", "step": 10**9}
    seeds = {deed: seed for seed, deed in enumerate(deeds)}
    sabotage.write_text(json.dumps({str(seeds[name]): deed for name, deed in deeds.items()}))
    store = Store(folder, "study")
    trials = [trial(seed=seed, steps=STEPS) for seed in seeds.values()]
    events = supervised(store, server, *trials, jobs=2)
    sabotage.write_text("{}")
    return Ran(store, seeds, events)


def test_every_kind_of_failure_has_its_state(ran: Ran) -> None:
    assert {deed: ran.state(deed) for deed in ran.seeds} == {
        "raise": "failed",
        "exit": "failed",
        "sysexit": "failed",
        "crash": "failed",
        "memory": "out-of-memory",
        "chat": "done",
        "kill once": "done",
        "nothing": "done",
    }
    ended = [event for event in ran.events if event.kind == "ended" and event.trial]
    assert len(ended) == len(ran.seeds)


def test_only_transient_failures_are_retried(ran: Ran) -> None:
    twice = {"crash", "memory", "kill once"}
    assert {deed: ran.attempts(deed) for deed in ran.seeds} == {deed: 1 + (deed in twice) for deed in ran.seeds}


def test_an_exception_is_reported_in_one_line_and_its_traceback_is_in_the_log(ran: Ran) -> None:
    failure = ran.why("raise")
    assert failure["reason"] == f"ValueError: this is what a plugin's mistake looks like ({failure['frame']})"
    assert failure["frame"].startswith(f"{SABOTEUR}:")
    assert failure["frame"].endswith(", in fail")
    log = ran.log("raise")
    assert "Traceback (most recent call last):" in log
    assert "and this is its second line" in log
    assert ran.of("raise")[-1].text == failure["reason"]


def test_a_plugin_that_exits_is_reported(ran: Ran) -> None:
    assert ran.why("sysexit")["reason"].startswith("SystemExit: leaving (")
    assert "exit code 0" in ran.why("exit")["reason"]


def test_a_signal_is_named_with_the_line_that_it_interrupted(ran: Ran) -> None:
    assert "signal 11 (SIGSEGV)" in ran.why("crash")["reason"]
    assert "Fatal Python error: Segmentation fault" in ran.log("crash")
    assert "in on_train_batch_start" in ran.log("crash")


def test_an_error_of_memory_names_the_size_and_a_remedy(ran: Ran) -> None:
    reason = ran.why("memory")["reason"]
    assert reason.startswith("out of memory when 1152921504606846976 bytes more were requested: make `data.batch`")


def test_a_trial_that_hangs_is_killed_when_its_time_is_over(
    sabotage: Path, server: ForkServer, trial: MakeTrial, tmp_path: Path
) -> None:
    sabotage.write_text(json.dumps({"8": {"do": "hang", "step": 1}}))
    store = Store(tmp_path, "study")
    supervised(store, server, trial(seed=8), timeout_seconds=1.5, grace_seconds=0.3)
    failure = store.failure("base-8")
    assert failure is not None
    assert failure["state"] == "timeout"
    assert failure["reason"] == "it was stopped after 1.5 s; run again, it goes on from its checkpoint"


def test_a_chatty_plugin_fills_no_disk(ran: Ran) -> None:
    assert len(ran.log("chat")) < 10_100_000
    assert ran.log("chat").endswith("that was all\n")


@pytest.mark.parametrize("deed", ["nothing", "kill once"])
def test_a_killed_and_resumed_trial_has_the_same_record(ran: Ran, uncut: Callable[[int], bytes], deed: str) -> None:
    assert result(ran.store.record(ran.identity(deed))) == uncut(ran.seeds[deed])


def test_a_trial_that_failed_runs_when_it_is_run_again(
    ran: Ran, server: ForkServer, trial: MakeTrial, uncut: Callable[[int], bytes]
) -> None:
    events = supervised(ran.store, server, *(trial(seed=ran.seeds[deed], steps=STEPS) for deed in ("raise", "nothing")))
    assert {event.trial.seed for event in events if event.trial} == {ran.seeds["raise"]}
    assert result(ran.store.record(ran.identity("raise"))) == uncut(ran.seeds["raise"])
    assert ran.store.failure(ran.identity("raise")) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_run_that_is_interrupted_leaves_checkpoints(
    server: ForkServer, trial: MakeTrial, tmp_path: Path, number: signal.Signals
) -> None:
    stop = StopRequest()
    store = Store(tmp_path, "study")
    trials = [trial(seed=seed, steps=2_000) for seed in (1, 2)]

    def ask(event: Event) -> None:
        if event.step > 1:
            stop.request(number)

    with raises_problem(InterruptedStudyError, "interrupted", "again"):
        supervised(store, server, *trials, on_event=ask, jobs=2, stop=stop, checkpoint_steps=None)
    assert {store.state(each.identity) for each in trials} <= {"interrupted", "pending"}
    assert list(store.root.glob("base-*/checkpoints/step-*"))


def test_a_stopped_and_resumed_trial_has_the_same_record(
    sabotage: Path, server: ForkServer, trial: MakeTrial, uncut: Callable[[int], bytes], tmp_path: Path
) -> None:
    sabotage.write_text(json.dumps({"3": {"do": "slow", "step": 4, "once": str(tmp_path / "slow")}}))
    store = Store(tmp_path, "study")

    def terminate(event: Event) -> None:
        if event.kind == "started":
            threading.Timer(0.0, kill_when, [tmp_path / "slow", int(event.text.removeprefix("process "))]).start()

    def kill_when(mark: Path, pid: int) -> None:
        while not mark.exists():
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(pid, signal.SIGTERM)

    trials = [trial(seed=3, steps=STEPS)]
    supervised(store, server, *trials, on_event=terminate, checkpoint_steps=None)
    assert store.state("base-3") == "interrupted"
    assert [path.name for path in (store.folder("base-3") / "checkpoints").iterdir()] == ["step-00000005.safetensors"]
    supervised(store, server, *trials)
    assert result(store.record("base-3")) == uncut(3)


def test_a_trial_that_another_process_has_locked_is_skipped(
    server: ForkServer, trial: MakeTrial, tmp_path: Path
) -> None:
    store = Store(tmp_path, "study")
    store.create_folder(trial(seed=4))
    lock = store.lock("base-4")
    lock.acquire()
    released: list[str] = []

    def release(event: Event) -> None:
        if event.kind == "ended" and event.trial and event.trial.seed == 5:
            released.append(store.state("base-4"))
            lock.release()

    supervised(store, server, trial(seed=4), trial(seed=5), on_event=release)
    assert released == ["running"]
    assert [store.state("base-4"), store.state("base-5")] == ["done", "done"]


def test_a_rehearsal_leaves_no_files_and_calls_no_hooks(
    sabotage: Path, server: ForkServer, trial: MakeTrial, tmp_path: Path
) -> None:
    sabotage.write_text(json.dumps({"6": {"do": "raise", "step": 0, "once": str(tmp_path / "told")}}))
    store = Store(tmp_path, "study")
    answers: list[bool] = []

    def look(event: Event) -> None:
        if event.kind == "rehearsed":
            assert event.state is None
            answers.append((tmp_path / "told").exists())

    trials = [trial(variant, seed) for variant in ("a", "b") for seed in (6, 7)]
    supervised(store, server, *trials[:3], on_event=look, rehearse=True)
    assert answers == [False, False]


def test_a_variant_that_cannot_be_built_fails_before_any_trial_runs(
    server: ForkServer, trial: MakeTrial, tmp_path: Path
) -> None:
    broken = [trial("broken", seed, attention={"name": "nobody"}) for seed in (0, 1)]
    fine = [trial("fine", seed) for seed in (0, 1)]
    store = Store(tmp_path, "study")
    events = supervised(store, server, *broken, *fine, rehearse=True)
    assert [store.state(each.identity) for each in (*broken, *fine)] == ["failed"] * 2 + ["done"] * 2
    assert [event.trial.variant for event in events if event.kind == "started" and event.trial] == ["fine", "fine"]
    failure = store.failure("broken-1")
    assert failure is not None
    assert "nobody" in failure["reason"]
    assert "Traceback" in (store.folder("broken-1") / LOG).read_text()
