"""Trials with their records, and the trials of a study loaded from a store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.records import stored_record, varied_spec

from paribus.analysis.trials import TrialEntry, load_entries
from paribus.planning.identity import identity_of
from paribus.registry import index
from paribus.specs.components import with_new_options
from paribus.storage.atomic import write_json
from paribus.storage.saved_model import RECORD
from paribus.storage.store import Store, Trial

Make = Callable[..., TrialEntry]

METRIC = "val/mlm/loss"


@pytest.mark.parametrize(
    ("recorded", "value", "diverged"),
    [
        (2.5, 2.5, False),
        (3, 3.0, False),
        (0.0, 0.0, False),
        ("nan", None, True),
        ("inf", None, True),
        (1e300, None, True),
    ],
)
def test_a_metric_that_is_not_a_number_is_a_divergence(
    make: Make, recorded: Any, value: float | None, diverged: bool
) -> None:
    entry = make(edits={"result/metrics": {METRIC: recorded}})
    assert entry.value(METRIC) == value
    assert entry.diverged(METRIC) == diverged


def test_a_missing_metric_is_not_a_divergence(make: Make) -> None:
    assert make().value("val/clm/loss") is None
    assert not make().diverged("val/clm/loss")


def test_the_value_is_from_the_last_step_and_not_the_best(make: Make) -> None:
    best = [{"step": 50, METRIC: 0.5}, {"step": 100, METRIC: 2.5}]
    assert make(edits={"result/metrics": {METRIC: 2.5}, "result/curve": best}).value(METRIC) == 2.5


def test_a_diverged_trial_has_no_value(make: Make) -> None:
    entry = make(state="diverged")
    assert entry.value(METRIC) is None
    assert entry.diverged(METRIC)
    assert not entry.done


def test_a_trial_without_a_record_has_no_result(make: Make) -> None:
    entry = make(state="failed")
    assert (entry.result, entry.provenance, entry.value(METRIC), entry.diverged(METRIC)) == ({}, {}, None, False)
    assert entry.spec == entry.trial["spec"]


def test_varied_and_matched_options_may_differ(make: Make) -> None:
    assert make("it", varied={"attention": "mqa"}, matched={"feedforward.expand": 5.0}).overrides == {
        "attention": "mqa",
        "feedforward.expand": 5.0,
    }
    assert make().overrides == {}


# ---------------------------------------------------------------------------------------------- out of a store
def trial_of(seed: int, code: str = "new", corpus: str = "data", attention: str = "mqa") -> Trial:
    spec = with_new_options(varied_spec({"attention": attention}, seed), index())
    return Trial(
        identity_of(spec, code, corpus), f"attention={attention}", seed, spec, {"attention": attention}, code, corpus
    )


def keep(store: Store, trial: Trial, state: str = "done") -> None:
    write_json(store.create_folder(trial) / RECORD, stored_record(trial.identity, state, spec=dict(trial.spec)))


def test_trials_are_loaded_with_their_state_in_the_store(tmp_path: Path) -> None:
    store, trials = Store(tmp_path, "s"), [trial_of(seed) for seed in range(4)]
    keep(store, trials[0])
    keep(store, trials[1], "diverged")
    store.create_folder(trials[2])
    store.write_failure(trials[2].identity, "failed", "it fell")
    entries = load_entries(store, trials, index())
    assert [entry.state for entry in entries] == ["done", "diverged", "failed", "pending"]
    assert [entry.seed for entry in entries] == [0, 1, 2, 3]
    assert [entry.record is not None for entry in entries] == [True, True, False, False]
    assert entries[2].failure is not None
    assert entries[2].failure["reason"] == "it fell"
    assert all(entry.changed == () and entry.overrides == {"attention": "mqa"} for entry in entries)


@pytest.mark.parametrize(
    ("code", "corpus", "changed"),
    [
        ("old", "data", ("the code",)),
        ("new", "other", ("the data",)),
        ("old", "other", ("the data", "the code")),
    ],
)
def test_a_record_of_the_same_spec_and_other_code_is_stale(
    tmp_path: Path, code: str, corpus: str, changed: tuple[str, ...]
) -> None:
    store = Store(tmp_path, "s")
    keep(store, trial_of(0, code, corpus))
    fresh, old = load_entries(store, [trial_of(0)], index())
    assert (fresh.state, fresh.changed) == ("pending", ())
    assert (old.state, old.changed, old.trial["code"], old.variant) == ("done", changed, code, "attention=mqa")


def test_a_record_of_another_spec_is_not_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path, "s")
    keep(store, trial_of(0, attention="gqa"))
    keep(store, trial_of(7))
    assert [entry.state for entry in load_entries(store, [trial_of(0)], index())] == ["pending"]


def test_a_study_may_read_the_mean_of_the_last_evaluations(tmp_path: Path) -> None:
    store, trial = Store(tmp_path, "s"), trial_of(0)
    keep(store, trial)
    record = {**stored_record(trial.identity, spec=dict(trial.spec))}
    record["result"] |= {"curve": [{"step": 50, METRIC: 3.0}, {"step": 100, METRIC: 2.0}]}
    write_json(store.folder(trial.identity) / RECORD, record)
    assert [
        entry.value(METRIC)
        for last in (1, 2, 3)
        for entry in load_entries(store, [trial], index(), metric=METRIC, last=last)
    ] == [2.0, 2.5, None]
