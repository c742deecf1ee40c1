"""Trials of classes that only this process has."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus import Norm
from paribus.errors import StoreError
from paribus.registry import Registry
from paribus.runner import scheduler
from paribus.runner.in_process import InProcessLauncher
from paribus.runner.jobs import RunOptions
from paribus.runner.progress import Event
from paribus.runner.scheduler import run_trials
from paribus.runner.signals import InterruptedStudyError, StopRequest, catch_signals
from paribus.storage.atomic import canonical_json
from paribus.storage.store import Store, Trial
from paribus.train.trial import TrialContext, run_trial

MakeTrial = Callable[..., Trial]
MINE = {"norm": {"name": "mine"}}


@final
class Mine(Norm):
    """A norm of a notebook."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x / x.square().sum(dim=-1, keepdim=True).clamp(min=1e-6).sqrt()


@final
class Broken(Norm):
    """One that was not finished."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        raise ZeroDivisionError("not finished")


METRIC = {"name": "val/mlm/loss", "better": "lower"}


@pytest.fixture
def notebook(registry: Registry) -> Registry:
    return registry.with_components(norm={"mine": Mine, "broken": Broken})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, "study")


def run(store: Store, registry: Registry, *trials: Trial, **over: Any) -> list[Event]:
    events: list[Event] = []
    watch = over.pop("watch", lambda event: None)

    def take(event: Event) -> None:
        events.append(event)
        watch(event)

    stop = StopRequest()
    launcher = InProcessLauncher(registry, stop)
    with catch_signals(stop, launcher.on_signal):
        run_trials(
            trials, store, launcher=launcher, options=RunOptions(**over), on_event=take, stop=stop, resume="run(study)"
        )
    return events


def test_local_classes_run_in_this_process_with_a_note(
    store: Store, notebook: Registry, trial: MakeTrial, tmp_path: Path
) -> None:
    trials = [trial("mine", seed, **MINE) for seed in (0, 1)]
    events = run(store, notebook, *trials)
    assert events[0].text.startswith(
        "norm.broken, norm.mine exist in this process only: trials run in it, one at a tim"
    )
    assert [(event.kind, event.trial) for event in events if event.kind not in ("note", "progress")] == [
        ("rehearsed", trials[0]),
        *((kind, each) for each in trials for kind in ("started", "ended")),
    ]
    assert [event.step for event in events if event.kind == "progress"][-1] == 8
    (tmp_path / "twin").mkdir()
    twin = run_trial(trials[1].spec, notebook, TrialContext("twin", tmp_path / "twin"))
    record = store.record("mine-1")
    assert record is not None
    assert canonical_json(record["result"]) == canonical_json(twin["result"])
    assert run(store, notebook, *trials) == []


@pytest.mark.parametrize("uses_gpu", [False, True])
def test_each_trial_frees_the_memory_of_a_gpu(
    store: Store, notebook: Registry, trial: MakeTrial, monkeypatch: pytest.MonkeyPatch, uses_gpu: bool
) -> None:
    calls: list[str] = []
    monkeypatch.setattr("paribus.runner.in_process.run_request", lambda *_, **options: 1)
    monkeypatch.setattr("paribus.runner.in_process.gc.collect", lambda: calls.append("collect"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: uses_gpu)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty"))
    run(store, notebook, trial("mine", **MINE), rehearse=False)
    assert calls == (["collect", "empty"] if uses_gpu else [])


@pytest.mark.thorough
def test_a_study_runs_with_the_registry_that_it_was_planned_with(notebook: Registry, tmp_path: Path) -> None:
    base = {"preset": "encoder-tiny", "dims.layers": 1, "dims.width": 16}
    tree = {"base": base, "vary": {"norm": ["mine"]}, "seeds": 1, "budget": {"steps": 2}, "metric": METRIC}
    planned = paribus.run(paribus.study(tree, registry=notebook, store=tmp_path))
    assert {planned.store.state(trial.identity) for trial in planned.plan.trials} == {"done"}


def test_a_failure_does_not_affect_other_trials(store: Store, notebook: Registry, trial: MakeTrial) -> None:
    trials = [trial(name, seed, norm={"name": name}) for seed in (0, 1) for name in ("broken", "mine")]
    events = run(store, notebook, *trials)
    assert [store.state(each.identity) for each in trials] == ["failed", "done"] * 2
    assert [event.state for event in events if event.kind == "rehearsed"] == ["failed", None]
    events = run(store, notebook, trials[0], rehearse=False)
    assert events[-1].text.startswith(f"ZeroDivisionError: not finished ({__file__}:")
    failure = store.failure("broken-0")
    assert failure is not None
    assert failure["frame"].startswith(f"{__file__}:")


def test_an_interrupted_trial_has_a_checkpoint(store: Store, notebook: Registry, trial: MakeTrial) -> None:
    def interrupt(event: Event) -> None:
        if event.step > 1:
            signal.raise_signal(signal.SIGINT)

    trials = [trial("mine", 0, steps=5_000, **MINE)]
    with raises_problem(InterruptedStudyError, "interrupted", "Ctrl-C"):
        run(store, notebook, *trials, watch=interrupt)
    assert store.state("mine-0") == "interrupted"
    assert list((store.folder("mine-0") / "checkpoints").iterdir())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.thorough
def test_a_trial_that_takes_too_long_ends_with_a_checkpoint(store: Store, notebook: Registry, trial: MakeTrial) -> None:
    events = run(store, notebook, trial("mine", 0, steps=5_000, **MINE), timeout_seconds=0.3)
    assert (events[-1].state, store.state("mine-0")) == ("timeout", "timeout")
    assert list((store.folder("mine-0") / "checkpoints").iterdir())


def test_a_trial_that_another_process_runs_is_left_to_it(
    store: Store, notebook: Registry, trial: MakeTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LOCKED_SECONDS", 0.1)
    trials = [trial("mine", 0, **MINE)]
    store.create_folder(trials[0])
    with store.lock("mine-0"), raises_problem(StoreError, "locked"):
        run(store, notebook, *trials)
    assert store.record("mine-0") is None


def test_threads_and_random_state_of_the_caller_are_restored(
    store: Store, notebook: Registry, trial: MakeTrial
) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    torch.set_num_threads(2)
    try:
        run(store, notebook, trial("mine", 0, **MINE))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert torch.equal(torch.rand(3), expected)
    record = store.record("mine-0")
    assert record is not None
    assert record["provenance"]["machine"]["threads"] == "1"


CELL = """
from paribus import Norm

class Cell(Norm):
    '''A norm of a notebook.'''

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x):
        return x * 1.0
"""


def test_a_class_of_a_notebook_has_other_trials_once_its_code_changed(registry: Registry, tmp_path: Path) -> None:
    def identities(text: str) -> dict[str, str]:
        namespace: dict[str, Any] = {}
        exec(compile(text, "<cell>", "exec"), namespace)
        cells = registry.with_components(norm={"cell": namespace["Cell"]})
        base = {"preset": "encoder-tiny", "norm": "layernorm"}
        document = {"base": base, "vary": {"norm": ["cell"]}, "seeds": 1, "metric": METRIC}
        study = paribus.study(document, registry=cells, store=tmp_path)
        return {trial.variant: trial.identity for trial in study.plan.trials}

    trials = identities(CELL)
    assert identities(CELL.replace("A norm of", "A cell of")) == trials
    new_trials = identities(CELL.replace("1.0", "2.0"))
    assert trials.pop("baseline") == new_trials.pop("baseline")
    assert set(trials.values()).isdisjoint(new_trials.values())


@pytest.mark.thorough
def test_a_class_that_was_changed_after_the_plan_does_not_run(registry: Registry, tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(CELL.replace("1.0", "SCALE") + "\nSCALE = 1.0\n", "<cell>", "exec"), namespace)
    cells = registry.with_components(norm={"cell": namespace["Cell"]})
    base = {"preset": "encoder-tiny", "norm": "layernorm"}
    document = {"base": base, "vary": {"norm": ["cell"]}, "seeds": 1, "metric": METRIC, "budget": {"steps": 1}}
    study = paribus.study(document, registry=cells, store=tmp_path)
    namespace["SCALE"] = 2.0
    paribus.run(study)
    changed = study.plan.trials_of("norm=cell")[0]
    failure = study.store.failure(changed.identity)
    assert failure is not None
    assert failure["reason"].startswith("error[component-differs] norm.cell: the value of `<cell>: SCALE` is not")
    assert study.store.record(study.plan.trials_of("baseline")[0].identity) is not None
    again = paribus.run(paribus.study(document, registry=cells, store=tmp_path))
    (trial,) = again.plan.trials_of("norm=cell")
    assert trial.identity != changed.identity
    assert again.store.record(trial.identity) is not None
    assert trial.document()["components"]["norm.cell"] == trial.components["norm.cell"]
