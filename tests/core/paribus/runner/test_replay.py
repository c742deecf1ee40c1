"""Verification of older records: equal ones count again, others are refused with the first difference."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paribus
from paribus.planning.api import PlannedStudy
from paribus.planning.api import study as plan_study
from paribus.registry import Registry
from paribus.runner import replay
from paribus.runner.replay import REPLAY_PREFIX, stale_records
from paribus.runner.result_differences import first_difference
from paribus.storage import engine
from paribus.storage.atomic import write_json
from paribus.storage.engine import Epoch, engine_hash
from paribus.storage.saved_model import RECORD, TRIAL
from paribus.train.trial_options import TrialOptions

Study = dict[str, Any]


@pytest.fixture
def local(components: Registry) -> Registry:
    """A registry whose trials run in this process, within milliseconds."""

    class Mine(components.get("attention", "mqa")):  # type: ignore[misc]  # a class of a plugin has no type here
        """Multi-query attention under another name."""

    return components.with_components(attention={"mine": Mine})


@pytest.fixture
def planned(local: Registry, swap: Mapping[str, Any], tmp_path: Path) -> Callable[..., PlannedStudy]:
    """Plan a study with the engine of now."""

    def planned(**changes: Any) -> PlannedStudy:
        study = {**copy.deepcopy(dict(swap)), "name": "swap", "vary": {"attention": ["mine"]}, **changes}
        return plan_study(study, registry=local, store=tmp_path)

    return planned


@pytest.fixture
def edit_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Pretend that the engine was edited."""

    def edit(name: str) -> None:
        for module in ("storage.engine", "runner.replay", "runner.kept_records", "evidence.provenance"):
            monkeypatch.setattr(f"paribus.{module}.engine_hash", lambda: name)

    return edit


def losses(planned: PlannedStudy) -> dict[tuple[str, int], list[float]]:
    records = [(trial, planned.store.record(trial.identity)) for trial in planned.plan.trials]
    return {(trial.variant, trial.seed): record["result"]["losses"] for trial, record in records if record is not None}


def change_record(planned: PlannedStudy, variant: str, change: Callable[[dict[str, Any]], object]) -> None:
    for trial in planned.plan.trials:
        record = planned.store.record(trial.identity)
        if trial.variant == variant and record is not None:
            change(record)
            write_json(planned.store.folder(trial.identity) / RECORD, record)


@pytest.mark.thorough
def test_records_of_an_engine_that_computes_the_same_are_kept_and_nothing_is_trained_again(
    planned: Callable[..., PlannedStudy], edit_engine: Callable[[str], None]
) -> None:
    before = paribus.run(planned())
    expected = losses(before)
    edit_engine("edited")
    stale = planned()
    assert not losses(stale)
    assert {older.changed for older in stale_records(stale)} == {("the engine",)}
    results = paribus.verify(stale)
    assert [(result.older.trial.seed, len(result.records), result.steps) for result in results] == [(0, 2, 3)] * 2
    assert all(result.is_equal for result in results)
    after = planned()
    assert losses(after) == expected
    events: list[str] = []
    paribus.run(after, on_event=lambda event: events.append(event.kind))
    assert "started" not in events
    assert not stale_records(after)
    for trial in after.plan.trials:
        record = after.store.record(trial.identity)
        assert record is not None
        assert record["provenance"]["verified"]["identity"] in {trial.identity for trial in before.plan.trials}
        assert (after.store.folder(trial.identity) / "weights.safetensors").is_file()
    assert losses(before) == expected  # the old ones stay


@pytest.mark.thorough
def test_one_more_variant_after_an_upgrade_trains_only_that_one(
    planned: Callable[..., PlannedStudy], edit_engine: Callable[[str], None]
) -> None:
    paribus.run(planned())
    edit_engine("edited")
    grown = {"vary": {"attention": ["mine", "mqa"]}}
    paribus.verify(planned(**grown))
    started: list[str] = []
    paribus.run(
        planned(**grown),
        on_event=lambda event: started.append(event.trial.variant) if event.kind == "started" and event.trial else None,
    )
    assert started == ["attention=mqa"] * 2


def test_a_difference_refuses_the_records_of_its_variant_by_name(
    planned: Callable[..., PlannedStudy], edit_engine: Callable[[str], None]
) -> None:
    before = paribus.run(planned())

    def change(record: dict[str, Any]) -> None:
        record["result"]["losses"][1] *= 1 + 1e-15

    change_record(before, "attention=mine", change)
    edit_engine("edited")
    results = {result.label: result for result in paribus.verify(planned())}
    assert results["baseline"].is_equal
    assert results["attention=mine"].difference.startswith("differs first in the loss of step 2: ")
    assert set(losses(planned())) == {("baseline", 0), ("baseline", 1)}


LOCKING = """
import sys
from pathlib import Path
from paribus.storage.store import Store
with Store(Path(sys.argv[1]), sys.argv[2]).lock(sys.argv[3]):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.thorough
def test_the_folder_of_a_killed_verification_is_deleted_and_that_of_a_running_one_is_kept(
    planned: Callable[..., PlannedStudy], edit_engine: Callable[[str], None], tmp_path: Path
) -> None:
    study = paribus.run(planned())
    folders = [study.store.root / f"{REPLAY_PREFIX}{name}" for name in ("killed", "running")]
    processes = []
    for folder in folders:
        (folder / "ends" / "trial").mkdir(parents=True)
        words = [sys.executable, "-c", LOCKING, str(tmp_path), study.name, folder.name]
        processes.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    with processes[0], processes[1]:
        assert [process.stdout.readline() for process in processes if process.stdout is not None] == [b"locked\n"] * 2
        processes[0].kill()
        processes[0].wait()
        edit_engine("edited")
        assert all(result.is_equal for result in paribus.verify(planned()))
        assert [folder.exists() for folder in folders] == [False, True]
        assert [*study.store.root.glob(f"{REPLAY_PREFIX}*")] == folders[1:]


@pytest.mark.thorough
def test_records_of_an_earlier_version_are_kept_by_a_replay(planned: Callable[..., PlannedStudy]) -> None:
    before = paribus.run(planned())
    expected = losses(before)
    for trial in before.plan.trials:  # as version 2 wrote them
        folder = before.store.folder(trial.identity)
        document, record = trial.document(), before.store.record(trial.identity)
        assert record is not None
        older = {key: value for key, value in document.items() if key not in ("components", "engine")}
        identity = f"0{trial.identity[1:]}" if trial.identity[0] != "0" else f"1{trial.identity[1:]}"
        folder.rename(folder.with_name(identity))
        del record["provenance"]["engine"]
        write_json(folder.with_name(identity) / TRIAL, {**older, "identity": identity, "code": "version 2"})
        write_json(folder.with_name(identity) / RECORD, {**record, "identity": identity})
    assert not losses(planned())
    assert {older.changed for older in stale_records(planned())} == {("the code",)}
    assert all(result.is_equal and result.steps == 3 for result in paribus.verify(planned()))
    assert losses(planned()) == expected


@pytest.mark.thorough
def test_records_from_before_a_new_option_are_kept_by_a_replay(planned: Callable[..., PlannedStudy]) -> None:
    before = paribus.run(planned())
    expected = losses(before)
    for trial in before.plan.trials:  # as if `eps` of the norm, and `bucket` of the data, were new
        folder, record = before.store.folder(trial.identity), before.store.record(trial.identity)
        assert record is not None
        spec = copy.deepcopy(record["spec"])
        del spec["norm"]["eps"], spec["data"]["bucket"]
        identity = f"0{trial.identity[1:]}" if trial.identity[0] != "0" else f"1{trial.identity[1:]}"
        folder.rename(folder.with_name(identity))
        document = {**trial.document(), "identity": identity, "code": "older", "spec": spec}
        write_json(folder.with_name(identity) / TRIAL, document)
        write_json(folder.with_name(identity) / RECORD, {**record, "identity": identity, "spec": spec})
    assert not losses(planned())
    assert all(result.is_equal and result.steps == 3 for result in paribus.verify(planned()))
    after = planned()
    assert losses(after) == expected
    assert all(certificate.ok for certificate in paribus.compare(after).certificates.values())
    other = planned(base={**after.plan.study.base.data, "norm": {"name": "layernorm", "eps": 1e-3}})
    assert not stale_records(other)  # the records have the default


@pytest.mark.thorough
def test_an_engine_that_was_proven_needs_no_replay(
    planned: Callable[..., PlannedStudy], edit_engine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    present = engine_hash()
    paribus.run(planned())
    edit_engine("proven")
    monkeypatch.setattr(engine, "epochs", lambda: (Epoch(7, "", frozenset({present, "proven"})),))
    results = paribus.verify(planned())
    assert [result.steps for result in results] == [0, 0]
    assert len(losses(planned())) == 4


@pytest.mark.thorough
def test_records_of_other_data_are_never_kept(
    planned: Callable[..., PlannedStudy], monkeypatch: pytest.MonkeyPatch
) -> None:
    paribus.run(planned())
    monkeypatch.setattr("paribus.planning.api.fingerprint", lambda spec, index: "other data")
    results = paribus.verify(planned())
    assert [result.difference for result in results] == ["the data has changed, so that another trial would run"] * 2
    assert not losses(planned())


@pytest.mark.thorough
def test_a_long_trial_is_replayed_from_both_ends(
    planned: Callable[..., PlannedStudy], edit_engine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SHORT_SECONDS", 0.0)
    monkeypatch.setattr("paribus.api.TrialOptions", lambda **options: TrialOptions(checkpoint_steps=10, **options))
    long = {"budget": {"steps": 25}, "seeds": 1}
    paribus.run(planned(**long))
    edit_engine("edited")
    results = paribus.verify(planned(**long))
    assert [(result.steps, result.total_steps, result.difference) for result in results] == [(8, 25, "")] * 2


@pytest.mark.thorough
def test_a_difference_at_either_end_of_a_long_trial_is_found(
    planned: Callable[..., PlannedStudy], edit_engine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SHORT_SECONDS", 0.0)
    monkeypatch.setattr("paribus.api.TrialOptions", lambda **options: TrialOptions(checkpoint_steps=10, **options))
    long = {"budget": {"steps": 25}, "seeds": 1}
    before = paribus.run(planned(**long))

    def change(record: dict[str, Any]) -> None:
        step = 3 if record["identity"] == before.plan.trials[0].identity else 23
        record["result"]["losses"][step - 1] += 1e-6

    change_record(before, "baseline", change)
    change_record(before, "attention=mine", change)
    edit_engine("edited")
    differences = [result.difference for result in paribus.verify(planned(**long))]
    assert [text.partition(":")[0] for text in differences] == [
        "differs first in the loss of step 3",
        "differs first in the loss of step 23",
    ]
    assert not losses(planned(**long))


@pytest.mark.thorough
def test_a_long_trial_without_checkpoints_is_replayed_whole_on_request_only(
    planned: Callable[..., PlannedStudy], edit_engine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "SHORT_SECONDS", 0.0)
    long = {"budget": {"steps": 12}, "seeds": 1}
    paribus.run(planned(**long))
    edit_engine("edited")
    for result in paribus.verify(planned(**long)):
        assert "only `--whole` can replay its end" in result.difference
    assert not losses(planned(**long))
    assert all(result.steps == 12 for result in paribus.verify(planned(**long), whole=True))
    assert len(losses(planned(**long))) == 2


@pytest.mark.thorough
def test_stages_are_kept_with_the_trials_that_they_begin_from(
    planned: Callable[..., PlannedStudy], edit_engine: Callable[[str], None]
) -> None:
    stages = {"stages": {"pretrain": {}, "finetune": {"optimizer": {"lr": 1e-4}}}}
    before = paribus.run(planned(**stages))
    assert len(losses(before)) == 4
    edit_engine("edited")
    results = paribus.verify(planned(**stages))
    assert all(result.is_equal for result in results), results
    after = planned(**stages)
    assert all(after.store.record(trial.identity) is not None for trial in after.plan.trials)
    assert not stale_records(after)


RESULT = {
    "state": "done",
    "steps": 3,
    "losses": [3.0, 2.0, 1.0],
    "curve": [{"step": 2, "val/loss": 2.5}, {"step": 3, "val/loss": 2.25}],
    "metrics": {"val/loss": 2.25},
    "digests": {"parameters": "a", "optimizer": "b"},
    "certificate": {
        "tensors": {"w": {"value": "a", "shape": [2]}, "b": {"value": "b", "shape": [1]}},
        "outputs": "o",
        "validation": "v",
        "batch_digests": {"1": "x", "2": "y"},
        "losses": "l",
        "no_gradient": ["w"],
    },
}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in leaves(item, (*path, index))]
    return [path]


@given(path=st.sampled_from(leaves(RESULT)), removed=st.booleans())
def test_every_change_of_a_result_is_found(path: tuple[Any, ...], removed: bool) -> None:
    other = copy.deepcopy(RESULT)
    node: Any = other
    for key in path[:-1]:
        node = node[key]
    if removed:
        del node[path[-1]]
    else:
        value = node[path[-1]]
        node[path[-1]] = value * (1 + 1e-15) if isinstance(value, float) else f"{value}'"
    assert first_difference(RESULT, other)
    assert not first_difference(RESULT, copy.deepcopy(RESULT))


def test_what_only_a_newer_engine_records_is_no_difference() -> None:
    assert not first_difference(RESULT, {**RESULT, "another": 1})
    newer = {**RESULT["certificate"], "another": "digest"}  # type: ignore[dict-item]  # it is a dictionary
    assert not first_difference(RESULT, {**RESULT, "certificate": newer})


def test_the_first_difference_in_the_order_of_a_training_is_named() -> None:
    other = copy.deepcopy(RESULT)
    other["metrics"]["val/loss"] = 1.0  # type: ignore[index]  # it is a dictionary
    assert first_difference(RESULT, other) == "`metrics` of the result"
    other["losses"][2] = 1.5  # type: ignore[index]  # it is a list
    assert first_difference(RESULT, other) == "the loss of step 3: 1.0 in the record, 1.5 here"
    other["certificate"]["tensors"]["b"]["value"] = "c"  # type: ignore[index]  # it is a dictionary
    assert first_difference(RESULT, other) == "the initial values of `b`"
