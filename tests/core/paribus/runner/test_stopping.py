"""`stop: when-decided`: which looks it means, what it refuses, and that only what is needed runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import pytest
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus.analysis.api import stopping_decision
from paribus.errors import SpecError
from paribus.planning.api import study
from paribus.registry import Registry
from paribus.runner.progress import Event
from paribus.slots.norm import Norm
from paribus.storage.store import Store

SMALL = {"dims.width": 8, "dims.layers": 1, "dims.heads": 2, "dims.length": 16, "data.batch": 4, "data.validation": 8}
STUDY: dict[str, Any] = {
    "base": {"preset": "encoder-tiny", **SMALL},
    "vary": {"attention": ["mqa"]},
    "seeds": 5,
    "budget": {"steps": 2},
    "metric": {"name": "val/mlm/loss", "margin": 100, "unlearned": True},  # so that two seeds are enough
}


@final
class Mine(Norm):
    """A norm of a notebook."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


def stops(**changes: Any) -> tuple[int, ...]:
    return study({**STUDY, **changes}).plan.study.looks


@pytest.mark.parametrize(
    ("seeds", "looks"), [(4, (3, 4)), (5, (3, 5)), (8, (3, 5, 8)), (12, (3, 5, 8, 12)), (20, (3, 5, 8, 12, 20))]
)
def test_default_looks_are_further_and_further_apart(seeds: int, looks: tuple[int, ...]) -> None:
    assert stops(seeds=seeds, stop="when-decided") == looks


def test_looks_may_be_listed(tmp_path: Path) -> None:
    assert stops(stop={"when": "decided", "looks": [2, 4, 5]}) == (2, 4, 5)
    assert stops(stop={"looks": [2, 5]}) == (2, 5)
    assert stops(stop={"when": "decided"}) == (3, 5)
    assert stops() == ()


@pytest.mark.parametrize(
    ("seeds", "stop", "looks"),
    [
        (2, {"open": True}, (2,)),
        (5, {"open": True}, (5,)),
        (8, {"open": True}, (5, 8)),
        (8, {"open": True, "looks": [4]}, (4, 8)),
        (8, {"open": True, "looks": [8, 12]}, (8,)),
    ],
)
def test_an_open_ended_study_looks_at_any_seeds_and_at_all(seeds: int, stop: Any, looks: tuple[int, ...]) -> None:
    assert stops(seeds=seeds, stop=stop) == looks


@pytest.mark.parametrize(
    ("changes", "code", "values"),
    [
        ({"stop": "early"}, "wrong-type", ("stop.when", "early", "when-decided")),
        ({"stop": 3}, "wrong-type", ("stop", "when, looks, open")),
        ({"stop": {"when": "bored"}}, "wrong-type", ("stop.when", "bored", "decided")),
        ({"stop": {"look": [3, 5]}}, "unknown-key", ("stop.look", "look", "looks")),
        ({"stop": {"looks": [3, 8]}}, "wrong-type", ("8", "5", "[3, 5]")),
        ({"stop": {"looks": [1, 5]}}, "wrong-type", ("stop.looks", "2", "5")),
        ({"stop": {"looks": [4, 4, 5]}}, "wrong-type", ("stop.looks",)),
        ({"stop": {"looks": 3}}, "wrong-type", ("stop.looks", "3")),
        ({"stop": {"open": True, "looks": [4, 3]}}, "wrong-type", ("stop.looks", "[4, 3]")),
        ({"stop": {"open": True, "looks": [1]}}, "wrong-type", ("stop.looks",)),
        ({"stop": {"open": True}, "seeds": 1}, "unused-option", ("stop", "seeds: 8")),
        ({"stop": {"looks": [3]}, "seeds": 3}, "wrong-type", ("stop.looks", "[2, 3]")),
        ({"stop": {"looks": [2]}, "seeds": 2}, "unused-option", ("stop", "2", "seeds: 4")),
        ({"stop": "when-decided", "seeds": 3}, "unused-option", ("stop", "3", "seeds: 4")),
        ({"stop": "when-decided", "design": "ladder"}, "incompatible-options", ("ladder",)),
        (
            {"stop": "when-decided", "tune": {"optimizer.lr": [1e-3, 2e-3]}},
            "incompatible-options",
            ("stop", "tune"),
        ),
    ],
)
def test_an_invalid_stop_is_refused(changes: Mapping[str, Any], code: str, values: tuple[str, ...]) -> None:
    with raises_problem(SpecError, code, *values):
        study({**STUDY, **changes})


def test_seeds_that_cannot_be_read_are_one_error() -> None:
    with raises_problem(SpecError, "wrong-type", "seeds", "two") as raised:
        study({**STUDY, "stop": "when-decided", "seeds": "two"})
    assert len(raised.value.problems) == 1


def ended(heard: list[Event]) -> int:
    return sum(event.kind == "ended" for event in heard)


@pytest.mark.thorough
def test_only_trials_of_the_next_look_run_also_after_a_resume(registry: Registry, tmp_path: Path) -> None:
    local_registry = registry.with_components(norm={"mine": Mine})  # so that trials run in this process
    planned = paribus.study({**STUDY, "stop": {"looks": [2, 5]}}, store=tmp_path, registry=local_registry)
    heard: list[Event] = []
    paribus.run(planned, registry=local_registry, on_event=heard.append)
    assert (ended(heard), len(list(planned.store.records()))) == (4, 4)  # of 10
    assert [len(event.removed) for event in heard if event.kind == "planned"] == [6]
    assert any(event.text == "attention=mqa: equivalent after 2 seeds" for event in heard)
    (row,) = paribus.compare(planned).rows
    assert (row.kind, row.n, row.planned) == ("equivalent", 2, 2)

    next(planned.store.root.glob("*/record.json")).unlink()
    events: list[Event] = []
    paribus.run(planned, registry=local_registry, on_event=events.append)
    assert ended(events) == 1  # the lost one, and none that is not needed
    assert paribus.compare(planned).rows[0].difference == row.difference
    assert len(stopping_decision(planned).skipped) == 6
    rest: list[Event] = []
    paribus.run(planned, registry=local_registry, on_event=rest.append)
    assert ended(rest) == 0


@pytest.mark.thorough
def test_a_message_of_trials_is_reported_once_in_all_looks(tmp_path: Path) -> None:
    labelled = {"corpus": "sections", "objective": {"name": "classify", "classes": 6}, "dims.length": 8}
    base = {**STUDY["base"], "preset": "bert-tiny", **labelled}
    metric = {"name": "val/classify/loss", "unlearned": True}
    events: list[Event] = []
    tree = {**STUDY, "base": base, "metric": metric, "stop": {"looks": [2, 3]}, "seeds": 3}
    paribus.run(paribus.study(tree, store=tmp_path), on_event=events.append)
    assert sum("truncated" in event.text for event in events) == 1


@pytest.mark.slow
@pytest.mark.parametrize("looks", [[2, 5], [2, 3, 5]])
def test_verdicts_are_the_same_whatever_the_number_of_jobs(tmp_path: Path, looks: list[int]) -> None:
    columns = ("variant", "kind", "verdict", "n", "planned", "difference", "low", "high", "level", "p")
    tables = []
    vary = {"attention": ["mqa"], "position": ["none"]}
    for jobs in (1, 2, 4):
        document = {
            **STUDY,
            "vary": vary,
            "stop": {"looks": looks},
            "metric": {"name": "val/mlm/loss", "unlearned": True},
        }
        planned = paribus.study(document, store=tmp_path / str(jobs))
        paribus.run(planned, jobs=jobs)
        rows = [row.to_json("it") for row in paribus.compare(planned).rows]
        tables.append([{key: row[key] for key in columns} for row in rows])
    assert tables[0] == tables[1] == tables[2]


def test_a_store_records_that_verdicts_stopped_before(tmp_path: Path) -> None:
    store = Store(tmp_path, "it")
    store.root.mkdir()
    store.add_look("b", (0, 1, 2), (2, 3))
    store.add_look("b", (0, 1, 2), (2, 3))
    assert len((store.root / "looks.jsonl").read_text().splitlines()) == 1
    assert not store.has_other_stops("b", (0, 1, 2), (2, 3))
    assert store.has_other_stops("b", (0, 1, 2), ())
    assert not store.has_other_stops("b", (5, 6, 7), ())
    store.add_look("b", (0, 1, 2))
    assert store.has_other_stops("b", (0, 1, 2), (2, 3))
    assert list(store.looks("b")) == [(0, 1, 2)]
    latest = json.loads((store.root / "looks.jsonl").read_text().splitlines()[1])
    assert latest == {"comparison": "b", "seeds": [0, 1, 2]}


SEVERAL: Mapping[str, Any] = {"scales": {"s": {"dims.width": 16}, "m": {"dims.width": 32}}}


def test_every_setting_starts_with_its_first_seeds(tmp_path: Path) -> None:
    planned = paribus.study({**STUDY, **SEVERAL, "stop": {"looks": [2, 5]}}, store=tmp_path)
    decision = stopping_decision(planned)
    assert {(trial.setting, trial.seed) for trial in decision.trials_to_run} == {
        (name, seed) for name in "sm" for seed in (0, 1)
    }
    assert len(decision.trials_to_run) == 2 * 2 * 2
    assert not decision.skipped


@pytest.mark.slow
def test_a_setting_that_is_decided_stops_and_another_goes_on(tmp_path: Path) -> None:
    matches = ["none", {"on": "params", "by": "feedforward.expand"}]
    metric = {"name": "val/mlm/loss", "unlearned": True, "margin": 0.02}
    document = {**STUDY, **SEVERAL, "match": matches, "stop": {"looks": [2, 5]}, "metric": metric}
    planned = paribus.study(document, store=tmp_path)
    paribus.run(planned, jobs=2)
    table = paribus.compare(planned)
    assert table.ok
    rows = {setting.setting: setting.rows[0] for setting in table.settings}
    assert len(rows) == 4
    skipped = stopping_decision(planned).skipped
    assert len(list(planned.store.records())) == len(planned.plan.trials) - len(skipped)
    for name, row in rows.items():
        assert row.n in (2, 5)
        assert (row.n == 5) or row.kind != "inconclusive", name
    share = (2 / 5) ** 2
    assert {row.level for row in rows.values() if row.n == 2} <= {1 - 0.05 * share / k for k in (1, 2, 3, 4)}
