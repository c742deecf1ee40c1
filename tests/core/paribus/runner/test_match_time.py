"""Matches on time are measured once, by one runner, and plans use the saved result."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.analysis.api import comparison_spec
from paribus.analysis.matching_notes import matching_note, mismatch_note
from paribus.errors import ParibusError, SpecError
from paribus.planning.api import PlannedStudy, study
from paribus.planning.identity import identity_of
from paribus.planning.match_budget import FOLDER
from paribus.planning.paired_ratio import TWIN
from paribus.registry import Registry
from paribus.runner.in_process import InProcessLauncher
from paribus.runner.match_time import (
    PASS_FILE,
    earlier_measurements,
    match_on_time,
    measure_in_job,
    unsolved_matches,
)
from paribus.runner.progress import Event, ignore_event
from paribus.runner.signals import InterruptedStudyError, StopRequest
from paribus.slots.launcher import Plugins
from paribus.storage.lease import HostIdentity
from paribus.storage.store import Store
from paribus.studies.designs import BASELINE

MakeSpec = Callable[..., dict[str, Any]]
Document = dict[str, Any]


class Clock:
    """Passes of steps whose time is that of their attention, and of the width of their feed-forward."""

    def __init__(self, *, wide: bool = False) -> None:
        self.passes: list[list[str]] = []
        self.wide = wide  # whether it is the model's width that takes time
        self.widths: set[int] = set()

    def __call__(self, specs: Mapping[str, Any], groups: Sequence[Sequence[str]], seconds: float) -> Document:
        self.passes.append(list(specs))
        return {
            "groups": [self._group(specs, list(group)) for group in groups],
            "machine": {"device": "cpu", "name": "Abacus", "threads": "1"},
            "host": "here",
            "versions": {},
            "clock": "cpu",
            "started": 1.0,
            "ended": 86_400.0,
        }

    def _group(self, specs: Mapping[str, Any], group: list[str]) -> Document:
        rounds = {name: [self._takes(specs[name])] * 8 for name in group}
        return {"baseline": group[0], "rounds": {**rounds, TWIN: rounds[group[0]]}}

    def _takes(self, spec: Mapping[str, Any]) -> float:
        if self.wide:
            self.widths.add(spec["dims"]["width"])
            return float(spec["dims"]["width"]) / (1.0 if spec["attention"]["name"] == "mha" else 1.3)
        heads = {"mha": 4, "mqa": 1, "gqa": 2}[spec["attention"]["name"]]
        return float(heads + spec["feedforward"]["expand"])  # mqa comes to 7, and gqa(1) to 6


@pytest.fixture
def tree(tiny: MakeSpec) -> Document:
    base = {key: value for key, value in tiny().items() if key != "seed"}
    document = {
        "name": "study",
        "base": base,
        "vary": {"attention": ["mqa", {"name": "gqa", "kv_heads": 1}]},
        "match": {"on": "time", "by": "feedforward.expand"},
        "seeds": 2,
        "budget": {"steps": 4},
        "metric": "val/clm/loss",
    }
    copied: Document = json.loads(json.dumps(document))
    return copied


@pytest.fixture
def read(registry: Registry, tmp_path: Path, tree: Document) -> Callable[..., PlannedStudy]:
    def made(**changes: Any) -> PlannedStudy:
        return study({**tree, **changes}, registry=registry, store=tmp_path)

    return made


def solved(planned: PlannedStudy, clock: Clock, **options: Any) -> PlannedStudy:
    return match_on_time(planned, clock, ignore_event, StopRequest(), **options)


def documents(planned: PlannedStudy) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (planned.store.root / FOLDER).glob("*.json") if path.name != PASS_FILE}


@pytest.mark.thorough
def test_only_the_baseline_has_trials_before_the_match_is_measured(read: Any) -> None:
    planned = read()
    assert {trial.variant for trial in planned.plan.trials} == {BASELINE}
    assert not planned.plan.is_complete
    (line,) = unsolved_matches(planned)
    assert line.startswith("not known yet: the trials of attention=mqa, attention=gqa(kv_heads=1), whose ")
    assert "`paribus run` measures it first" in line
    assert str(planned.store.root / FOLDER) in line
    assert not planned.store.root.exists()


def test_a_measured_match_is_saved_and_reused(read: Any) -> None:
    clock = Clock()
    planned = solved(read(), clock)
    assert planned.plan.is_complete
    assert len(planned.plan.trials) == 3 * 2
    matches = planned.plan.matched
    assert matches["attention=mqa"].value == pytest.approx(7.0, rel=0.01)
    assert matches["attention=gqa(kv_heads=1)"].value == pytest.approx(6.0, rel=0.01)
    assert all(abs(solution.residual) <= 0.01 for solution in matches.values())
    count = len(clock.passes)
    replanned = read()
    assert replanned.plan.is_complete
    assert [trial.identity for trial in replanned.plan.trials] == [trial.identity for trial in planned.plan.trials]
    assert solved(replanned, clock) is replanned
    assert len(clock.passes) == count
    assert list(unsolved_matches(replanned)) == []


@pytest.mark.thorough
def test_a_matched_trial_equals_one_with_the_value_written_out(read: Any) -> None:
    planned = solved(read(), Clock())
    trial = planned.plan.trials_of("attention=mqa")[0]
    assert trial.spec["feedforward"]["expand"] == planned.plan.matched["attention=mqa"].value
    assert trial.identity == identity_of(trial.spec, trial.code, trial.corpus)
    assert trial.matched_values == {"feedforward.expand": trial.spec["feedforward"]["expand"]}
    changes = {"attention": "mqa", "feedforward.expand": trial.spec["feedforward"]["expand"]}
    same = read(match=None, design="list", vary={}, variants=[changes])
    assert [each.identity for each in same.plan.trials_of(same.plan.variants[1].name)] == [
        each.identity for each in planned.plan.trials_of("attention=mqa")
    ]


@pytest.mark.thorough
def test_only_values_with_a_valid_model_are_tried(read: Any, tree: Document) -> None:
    """Four heads halve a width that rope turns in pairs: values that only the position refuses are not tried."""
    clock = Clock(wide=True)
    base: Document = {**tree["base"], "position": "rope"}
    planned = solved(read(base=base, vary={"attention": ["mqa"]}, match={"on": "time", "by": "dims.width"}), clock)
    assert len(clock.widths) > 2
    assert {width % (2 * base["dims"]["heads"]) for width in clock.widths} == {0}
    width = planned.plan.matched["attention=mqa"].value
    assert width == pytest.approx(1.3 * base["dims"]["width"], abs=base["dims"]["heads"])


@pytest.mark.thorough
def test_more_seeds_and_steps_keep_a_match_and_only_new_variants_are_measured(read: Any) -> None:
    clock = Clock()
    solutions_before = solved(read(vary={"attention": ["mqa"]}), clock)
    longer = read(vary={"attention": ["mqa"]}, seeds=3, budget={"steps": 9}, evaluate=["clm"])
    assert longer.plan.matched == solutions_before.plan.matched
    clock.passes.clear()
    solutions_kept = documents(solutions_before)
    options = solved(read(), clock)
    assert options.plan.matched["attention=mqa"] == solutions_before.plan.matched["attention=mqa"]
    assert {len(names) for names in clock.passes} == {2}  # the baseline, and one variant
    assert {path: documents(options)[path] for path in solutions_kept} == solutions_kept


@pytest.mark.thorough
def test_changes_of_machine_and_code_are_reported_without_a_new_measurement(
    read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = solved(read(), Clock())
    setting = planned.plan.settings[0]
    assert "Matched on time by feedforward.expand: attention=mqa 7 (" in matching_note(setting)
    assert "A/A ±0.0%); measured in turns on Abacus, 1970-01-02." in matching_note(setting)
    assert "this machine is another" in mismatch_note(setting)  # no machine of ours is an abacus
    assert "the code has changed" not in mismatch_note(setting)
    monkeypatch.setattr("paribus.storage.engine.engine_hash", lambda: "other")
    changed = read().plan
    assert changed.is_complete
    assert changed.matched["attention=mqa"].value == planned.plan.matched["attention=mqa"].value
    assert "the code has changed" in mismatch_note(changed.settings[0])
    (line,) = dict.fromkeys(earlier_measurements(read()))
    assert line.startswith("matched on time on Abacus, 1970-01-02, and since then this machine is another: ")
    assert line.endswith(", the code has changed")


@pytest.mark.thorough
def test_the_certificate_shows_the_matched_value_with_its_interval(read: Any) -> None:
    comparison = comparison_spec(solved(read(), Clock()))
    assert comparison.matched_option_notes["attention=mqa"].startswith(
        "matched on time by feedforward.expand=7: +0.0% ["
    )
    assert BASELINE not in comparison.matched_option_notes


@pytest.mark.thorough
def test_a_damaged_match_is_measured_again(read: Any) -> None:
    planned = solved(read(), Clock())
    document_path = sorted(documents(planned))[0]
    document_path.write_bytes(document_path.read_bytes()[:-9])
    replanned = read()
    assert len(replanned.plan.settings[0].untimed) == 1
    assert any("set aside" in note for note in replanned.store.messages)
    assert solved(replanned, Clock()).plan.matched == planned.plan.matched


@pytest.mark.thorough
@pytest.mark.parametrize("locks", [True, False])
def test_one_of_two_runners_measures_and_the_other_uses_its_result(read: Any, locks: bool) -> None:
    clock, inside, go = Clock(), threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> Document:
        inside.set()
        assert go.wait(20)
        return clock(*arguments)

    def runner(host: str) -> PlannedStudy:
        host_identity = HostIdentity(
            host, "one" if locks else host, has_flock=locks, heartbeat_seconds=0.05, lease_seconds=5.0
        )
        planned: PlannedStudy = read()
        return replace(planned, store=Store(planned.store.root.parent, planned.name, host=host_identity))

    events: list[Event] = []
    results: list[PlannedStudy] = []
    first_thread = threading.Thread(
        target=lambda: results.append(match_on_time(runner("a"), slowly, ignore_event, StopRequest()))
    )
    first_thread.start()
    assert inside.wait(20)
    second = threading.Thread(
        target=lambda: results.append(match_on_time(runner("b"), slowly, events.append, StopRequest(), patience=0.02))
    )
    second.start()
    while not events:
        second.join(0.01)
    count = len(clock.passes)
    assert "matches this study on time" in events[0].text
    assert count == 0
    go.set()
    first_thread.join()
    second.join()
    assert [result.plan.matched for result in results] == [read().plan.matched] * 2
    assert len({tuple(names) for names in clock.passes}) <= 3  # one runner's: each pass has fewer to look for, or all
    assert len(documents(read())) == 2


@pytest.mark.thorough
def test_a_waiting_runner_can_be_stopped_and_leaves_nothing(read: Any) -> None:
    planned = read()
    stop = StopRequest()

    def take(*arguments: Any) -> Document:
        stop.request(2)
        with raises_problem(InterruptedStudyError, "interrupted"):
            match_on_time(read(), Clock(), ignore_event, stop)
        raise InterruptedStudyError(2, "again")

    with raises_problem(InterruptedStudyError, "interrupted"):
        match_on_time(planned, take, ignore_event, StopRequest())
    assert documents(planned) == {}
    assert solved(read(), Clock()).plan.is_complete  # and the claim is free


@pytest.mark.thorough
def test_a_variant_that_cannot_be_matched_is_named_in_the_error(read: Any) -> None:
    class Slow(Clock):
        def _takes(self, spec: Mapping[str, Any]) -> float:
            return 9.0 if spec["attention"]["name"] == "mqa" else super()._takes(spec)

    with raises_problem(SpecError, "cannot-match", "attention=mqa", "1.125"):
        solved(read(), Slow())
    assert list(read().plan.settings[0].untimed) == ["attention=mqa"]  # what could be matched is kept


@pytest.mark.thorough
def test_time_is_matched_at_every_scale_and_before_tuning(read: Any) -> None:
    matches = ["none", {"on": "time", "by": "feedforward.expand"}]
    scales = {"s": {"dims.width": 16}, "m": {"dims.width": 32}}
    tune = {"optimizer.lr": [1e-3, 2e-3], "seeds": 1}
    planned = read(match=matches, scales=scales, tune=tune, vary={"attention": ["mqa"]})
    timed = [setting.name for setting in planned.plan.settings if setting.untimed]
    assert timed == ["s, time, same", "s, time, each at its best", "m, time, same", "m, time, each at its best"]
    assert [line.partition(":")[0] for line in unsolved_matches(planned)] == [
        "not known yet (s, time)",
        "not known yet (m, time)",
    ]
    assert {tuned.setting for tuned in planned.plan.tuned if tuned.variant == "attention=mqa"} == {
        f"{scale}, unmatched, same" for scale in "sm"
    }
    solved_study = solved(planned, Clock())
    assert not any(setting.untimed for setting in solved_study.plan.settings)
    assert solved_study.plan.setting("s, time, same").matched["attention=mqa"].timing is not None
    assert solved_study.plan.setting("s, unmatched, same").matched == {}
    assert len([tuned for tuned in solved_study.plan.tuned if tuned.variant == "attention=mqa"]) == 4


def test_a_failed_measurement_is_reported(read: Any, tmp_path: Path, registry: Registry) -> None:
    planned = read()
    planned.store.root.mkdir(parents=True)
    spec = {**planned.plan.trials[0].spec, "trainer": {"precision": "64-true"}}
    measure = measure_in_job(
        planned.store, InProcessLauncher(registry, StopRequest()), Plugins(), StopRequest(), "again"
    )
    with raises_problem(ParibusError, "timing-failed", "64-true"):
        measure({"base": spec}, [["base"]], 0.1)
    with raises_problem(SpecError, "not-numeric", "match.by"):
        read(match={"on": "time", "by": "attention"})


@pytest.mark.slow
def test_matched_steps_take_equally_long_in_a_real_run(tree: Document, registry: Registry, tmp_path: Path) -> None:
    tree["base"]["dims"] = {**tree["base"]["dims"], "length": 64, "width": 64}
    tree["base"]["data"] = {**tree["base"]["data"], "batch": 8}
    tree["vary"] = {"dims.layers": [2]}
    tree["base"]["feedforward"] = {"name": "mlp", "activation": "gelu", "expand": 16.0}
    notes: list[str] = []
    planned = paribus.study(tree, registry=registry, store=tmp_path)
    done = paribus.run(planned, on_event=lambda event: notes.append(event.text), timing=None)
    assert done.plan.is_complete
    assert any("matching on time, pass 1: dims.layers=2 at 16 takes" in text for text in notes)
    solution = done.plan.matched["dims.layers=2"]
    assert solution.timing is not None
    assert 1 < solution.value < 15  # two layers of less width take as long as one
    assert solution.timing.low <= 1.1
    assert solution.timing.high >= 0.9
    assert solution.timing.rounds >= 8
    assert all(done.store.record(trial.identity) is not None for trial in done.plan.trials)
    table = paribus.compare(done)
    assert any("Matched on time by feedforward.expand" in line for line in table.caption)
    assert any("matched on time by" in line for line in table.certificates["dims.layers=2"].confirmed)
