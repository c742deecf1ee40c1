"""Tables of several settings: layout, one family of tests, transfer across scales, tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.analysis.api import UNRECORDED, table_trials
from paribus.analysis.compare import compare, compare_settings
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import NotComparableError
from paribus.planning.api import PlannedStudy
from paribus.planning.plan import plan
from paribus.planning.settings import BEST, SAME
from paribus.planning.tuning import score_of
from paribus.registry import index
from paribus.report.html import html_page
from paribus.report.markdown import markdown
from paribus.report.table_views import study_grid
from paribus.report.terminal import table_text
from paribus.specs.tree import plain_tree
from paribus.storage.atomic import make_folder, write_json
from paribus.storage.saved_model import RECORD
from paribus.storage.store import LOOKS, Store, Trial
from paribus.studies.designs import BASELINE
from paribus.studies.parse_options import FIRST_TUNING_SEED
from paribus.studies.study import parse_study

Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

CLEAR: Mapping[str, Any] = {"baseline": [2.0, 2.1, 2.2], "mqa": [2.5, 2.61, 2.69]}
HAZY: Mapping[str, Any] = {"baseline": [2.0, 2.1, 2.2], "mqa": [2.3, 2.0, 2.5]}


@pytest.fixture(scope="module")
def two(study: Study, ask: Ask) -> Table:
    """A clear difference in one setting, a hazy one in the other."""
    clear, hazy = study(**CLEAR), study(**HAZY)
    return compare_settings([(clear, ask(clear, setting="params")), (hazy, ask(hazy, setting="flops"))])


def test_a_study_without_settings_does_not_mention_them(study: Study, ask: Ask) -> None:
    entries = study(**CLEAR)
    document = compare(entries, ask(entries)).to_json()
    assert not {"settings", "transfer", "tuning"} & set(document)
    assert all("setting" not in row for row in (document["baseline"], *document["rows"]))
    assert "Holm over 1 variant" in " ".join(document["caption"])


def test_all_settings_are_one_family(two: Table, study: Study, ask: Ask) -> None:
    clear = study(**CLEAR)
    alone = compare(clear, ask(clear)).rows[0]
    assert two.rows[0].kind == alone.kind == "worse"
    assert two.rows[0].p == pytest.approx(2 * (alone.p or 0.0))
    assert two.rows[0].level == pytest.approx(0.975)
    assert all(
        "Holm over 2 verdicts, in all settings" in " ".join(setting_table.caption) for setting_table in two.settings
    )


def test_a_setting_that_has_not_run_counts_in_the_family_and_is_named(study: Study, ask: Ask) -> None:
    clear = study(**CLEAR)
    comparison = ask(clear, setting="same")
    table = compare_settings([(clear, comparison), ([], replace(comparison, setting="each at its best"))])
    assert not table.other_settings
    assert table.rows[0].level == pytest.approx(0.975)
    assert any("No trial has run yet of: each at its best" in note for note in table.notes)
    with raises_problem(NotComparableError, "no-records", "attention"):
        compare_settings([([], comparison), ([], comparison)])


def test_an_unfinished_setting_makes_the_table_not_ok(study: Study, ask: Ask) -> None:
    whole, late = study(**CLEAR), study(**{**CLEAR, "mqa": [2.5, "pending", 2.7]})
    table = compare_settings([(whole, ask(whole, setting="a")), (late, ask(late, setting="b"))])
    assert not table.ok
    assert replace(table, other_settings=()).ok


def test_json_has_a_row_for_each_variant_in_each_setting(two: Table) -> None:
    document = two.to_json()
    assert [(row["setting"], row["variant"], row["verdict"]) for row in document["rows"]] == [
        ("params", "mqa", "worse"),
        ("flops", "mqa", two.other_settings[0].rows[0].verdict),
    ]
    assert [setting["setting"] for setting in document["settings"]] == ["params", "flops"]
    assert {"baseline", "caption", "warnings", "notes", "certificates"} <= set(document["settings"][1])


@pytest.mark.parametrize("width", [80, 40, 30])
def test_settings_are_side_by_side_in_wide_terminals(two: Table, width: int) -> None:
    lines = table_text(two, width).splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    glance = ["mqa", "+0.500", "worse", "+0.17", "inconclusive"]
    side_by_side = [line for line in lines if all(word in line for word in glance)]
    assert len(side_by_side) == (1 if width == 80 else 0)
    assert text.count("All verdicts") == 1  # what is said of both is said once
    assert text.index("params") < text.index("flops")


def test_markdown_shows_both_settings_and_each_in_full(two: Table) -> None:
    text = markdown(two)
    assert "| variant | params | flops |" in text
    assert "### params" in text
    assert "### flops" in text
    assert text.count("All verdicts") == 1


def test_the_csv_has_a_row_for_each_variant_in_each_setting(two: Table) -> None:
    grid = study_grid(two)
    assert [head.name for head in grid.columns[:2]] == ["setting", "variant"]
    assert [[cell.text for cell in row[:2]] for row in grid.rows] == [
        ["params", "baseline (attention=mha)"],
        ["params", "mqa"],
        ["flops", "baseline (attention=mha)"],
        ["flops", "mqa"],
    ]
    assert [record["setting"] for record in grid.records] == ["params", "params", "flops", "flops"]
    assert sum("All verdicts" in line for _, lines in grid.remarks for line in lines) == 1
    assert study_grid(two.other_settings[0]).columns[0].name == "variant"


# -------------------------------------------------------------------------------- through the public API, from a store
STUDY: Mapping[str, Any] = {
    "base": {"preset": "encoder-tiny", "optimizer.lr": 2e-3, "evaluate": "mlm"},
    "vary": {"attention": ["mqa"], "norm": ["rmsnorm"]},
    "seeds": 3,
    "budget": {"steps": 10},
    "metric": {"name": "val/mlm/loss", "margin": 0.5},
}
Loss = Callable[[Trial], float | None]
Record = Callable[..., dict[str, Any]]


def plan_of(document: Mapping[str, Any], root: Path) -> PlannedStudy:
    """Plan a study as `paribus.study` does, over a corpus that is never read."""
    registry_index, store = index(), Store(root, "study")
    parsed = parse_study("study", plain_tree(document, "study"), registry_index)

    def replan() -> PlannedStudy:
        study_plan = plan(
            parsed,
            registry_index,
            fingerprint=lambda spec: "text",
            score=lambda trial: score_of(store.record(trial.identity), "val/mlm/loss", store.failure(trial.identity)),
        )
        return PlannedStudy(study_plan, store, registry_index, replan)

    return replan()


def fill(planned: PlannedStudy, record: Record, loss: Loss) -> None:
    """Write a record with this loss for each trial; no record where the loss is None."""
    for trial in planned.plan.trials:
        trial_loss = loss(trial)
        if trial_loss is not None:
            spec = {**trial.spec, "evaluate": trial.spec.get("evaluate") or None}
            document = record(spec, trial.seed, "done", trial_loss)
            document |= {"identity": trial.identity, "spec": dict(trial.spec)}
            document["result"]["total_flops"] = 1e6
            make_folder(planned.store.folder(trial.identity))
            write_json(planned.store.folder(trial.identity) / RECORD, document)


def jitter(trial: Trial) -> float:
    """Return noise that differs for every pair of seed and variant."""
    return 0.001 * ((trial.seed * 7 + len(trial.variant) * trial.seed**2 * 3) % 11)


def test_transfer_across_scales_is_reported_with_numbers(tmp_path: Path, record: Record) -> None:
    scales = {"s": {"dims.width": 32}, "m": {"dims.width": 64}}
    planned = plan_of({**STUDY, "scales": scales, "seeds": 5}, tmp_path)

    def loss(trial: Trial) -> float:
        mqa = 1.0 if trial.variant == "attention=mqa" else 0.0
        norm = (1.5 if trial.setting == "s" else -1.5) if trial.variant == "norm=rmsnorm" else 0.0
        return 1.6 + mqa + norm + jitter(trial)

    fill(planned, record, loss)
    table = paribus.compare(planned)
    (section,) = table.sections
    by_variant = {item.get("variant"): item for item in section.document["comparisons"]}
    assert by_variant["attention=mqa"]["transfer"] == "transfers"
    assert by_variant["norm=rmsnorm"]["transfer"] == "reverses"
    text = "\n".join(section.lines)
    assert "attention=mqa transfers: worse at s (+0.9998), m (+0.9998)" in text
    assert "norm=rmsnorm reverses: worse at s (+1.5" in text
    assert "order of 2 variants, s to m reverses: Kendall's tau -1.00 [-1.00, -1.00], n = 5" in text
    assert table.to_json()["transfer"] == section.document


def test_undecided_scales_never_agree(tmp_path: Path, record: Record) -> None:
    scales = {"s": {"dims.width": 32}, "m": {"dims.width": 64}}
    planned = plan_of({**STUDY, "scales": scales, "seeds": 5}, tmp_path)

    def loss(trial: Trial) -> float:
        sign = 1 if (trial.seed + len(trial.variant) + len(trial.setting)) % 2 else -1
        return 2.9 + (0.0 if trial.variant == BASELINE else sign * (0.6 + 0.1 * trial.seed))

    fill(planned, record, loss)
    section = paribus.compare(planned).sections[0]
    assert {item.get("transfer", item.get("verdict")) for item in section.document["comparisons"]} == {"undecided"}
    assert "attention=mqa is undecided: inconclusive at " in section.lines[0]


@pytest.mark.thorough
def test_a_tuned_study_shows_both_settings_and_the_choice(tmp_path: Path, record: Record) -> None:
    """In this store mqa is best at 4e-3, the others at the base value; rmsnorm diverges at 8e-3."""
    study = {**STUDY, "tune": {"optimizer.lr": [2e-3, 4e-3, 8e-3]}}
    planned = plan_of(study, tmp_path)
    best = {"attention=mqa": 4e-3}

    def loss(trial: Trial) -> float:
        rate = trial.spec["optimizer"]["lr"]
        if (trial.variant, rate, trial.seed) == ("norm=rmsnorm", 8e-3, FIRST_TUNING_SEED):
            return 1e250
        worse = 0.0 if rate == best.get(trial.variant, 2e-3) else 0.6
        return 2.0 + worse + jitter(trial)

    fill(planned, record, loss)
    early_table = paribus.compare(plan_of(study, tmp_path))
    assert [[row.n for row in item.rows] for item in early_table.settings] == [[3, 3], [0, 3]]  # what is shared has run
    assert not early_table.ok
    planned = plan_of(study, tmp_path)
    assert planned.plan.is_complete
    assert len(planned.plan.trials) == 3 * 3 * 2 + 3 * 3 + 3
    fill(planned, record, loss)
    final_table = paribus.compare(planned)
    assert final_table.ok
    same, tuned = final_table.settings
    assert (same.setting, tuned.setting) == (SAME, BEST)
    assert [row.kind for row in same.rows] == ["worse", "equivalent"]
    assert [row.kind for row in tuned.rows] == ["equivalent", "equivalent"]
    assert all(item.ok for table in final_table.settings for item in table.certificates.values())
    (section,) = final_table.sections
    text = "\n".join(section.lines)
    assert "attention=mqa: best at optimizer.lr=0.004 (0.002: 2.6" in text
    assert "norm=rmsnorm: best at optimizer.lr=0.002, the default (0.002: 2.0" in text
    assert "0.008: diverged 1/2); best at the edge of the tried values: optimizer.lr" in text
    assert "Tuning took 18 trials on 2 seeds of their own (1000000, 1000001), 1.8e+07 FLOPs" in text
    choices = {item["variant"]: item["chosen"] for item in final_table.to_json()["tuning"]["choices"]}
    assert choices == {
        BASELINE: {"optimizer.lr": 2e-3},
        "attention=mqa": {"optimizer.lr": 4e-3},
        "norm=rmsnorm": {"optimizer.lr": 2e-3},
    }
    assert all(len(line) <= 80 for line in str(final_table).splitlines())


@pytest.mark.thorough
def test_a_tuning_value_with_a_failed_trial_is_not_eligible(tmp_path: Path, record: Record) -> None:
    study = {**STUDY, "tune": {"optimizer.lr": [2e-3, 4e-3]}}

    def is_lost(trial: Trial) -> bool:
        return (trial.variant, trial.spec["optimizer"]["lr"], trial.seed) == ("attention=mqa", 4e-3, FIRST_TUNING_SEED)

    planned = plan_of(study, tmp_path)
    for trial in filter(is_lost, planned.plan.trials):
        planned.store.create_folder(trial)
        planned.store.write_failure(trial.identity, "out-of-memory", "8 GB were too few")
    fill(planned, record, lambda trial: None if is_lost(trial) else 2.0 + jitter(trial))
    planned = plan_of(study, tmp_path)
    assert planned.plan.is_complete
    fill(planned, record, lambda trial: None if is_lost(trial) else 2.0 + jitter(trial))
    table = paribus.compare(planned)
    text = "\n".join(table.sections[0].lines)
    assert "attention=mqa: best at optimizer.lr=0.002, the default (0.002: 2" in text
    assert "0.004: failed 1/2, not eligible)" in text
    assert not table.ok  # a trial failed
    assert [[row.n for row in item.rows] for item in table.settings] == [[3, 3], [3, 3]]
    fill(planned, record, lambda item: 1.0 if is_lost(item) else None)  # mended: the choice is made anew
    new_plan = planned.replan().plan
    assert {item.variant: dict(item.chosen or ()) for item in new_plan.tuned}["attention=mqa"] == {"optimizer.lr": 4e-3}


def test_a_comparison_during_tuning_is_marked_as_such(tmp_path: Path, record: Record) -> None:
    study = {**STUDY, "tune": {"optimizer.lr": [2e-3, 4e-3]}}
    planned = plan_of(study, tmp_path)
    fill(planned, record, lambda trial: None if trial.seed == FIRST_TUNING_SEED + 1 else 2.0 + jitter(trial))
    table = paribus.compare(planned)
    assert not table.ok
    text = "\n".join(table.sections[0].lines)
    assert "baseline: not chosen yet (0.002: 1 of 2 without a record, 0.004: 1 of 2 without a record)" in text
    assert "each at its best: 6 tuning trials have no record, and at most 9 follow" in text


def seed_warnings(study: Mapping[str, Any], root: Path, record: Record) -> list[str]:
    planned = plan_of(study, root)
    fill(planned, record, lambda trial: 2.0 + jitter(trial))
    return [line for line in paribus.compare(planned).warnings if "after a verdict" in line]


@pytest.mark.thorough
def test_added_seeds_are_reported_for_the_variants_that_were_shown(tmp_path: Path, record: Record) -> None:
    three_seeds, five_seeds = {**STUDY, "seeds": 3}, {**STUDY, "seeds": 5}
    assert seed_warnings(three_seeds, tmp_path, record) == []
    assert (
        seed_warnings({**five_seeds, "vary": {"attention": [{"name": "gqa", "kv_heads": 2}]}}, tmp_path, record) == []
    )
    assert (
        seed_warnings({**five_seeds, "metric": {"name": "val/mlm/accuracy", "better": "higher"}}, tmp_path, record)
        == []
    )
    assert seed_warnings({**five_seeds, "budget": {"steps": 20}}, tmp_path, record) == []
    assert len(seed_warnings({**five_seeds, "vary": {"attention": ["mqa"]}}, tmp_path, record)) == 1


def test_a_look_that_could_not_be_recorded_is_noted(
    tmp_path: Path, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan_of(STUDY, tmp_path)
    fill(planned, record, lambda trial: 2.0 + jitter(trial))
    assert UNRECORDED not in paribus.compare(planned).notes
    (planned.store.root / LOOKS).unlink()
    monkeypatch.setattr(Store, "add_look", lambda *_: False)
    assert UNRECORDED in paribus.compare(planned).notes


def add_stale_record(planned: PlannedStudy) -> None:
    """Copy a record as one of an older code."""
    store, trial = planned.store, next(trial for trial in planned.plan.trials if trial.seed == 0)
    stale = replace(trial, identity="0" * len(trial.identity), code="old")
    document = dict(store.record(trial.identity) or {}) | {"identity": stale.identity}
    write_json(store.create_folder(stale) / RECORD, document)


def test_a_page_has_the_trials_of_every_setting_and_no_stale_record(tmp_path: Path, record: Record) -> None:
    study = {**STUDY, "tune": {"optimizer.lr": [2e-3, 4e-3]}}
    for _ in range(2):  # the trials at the chosen values follow those of the tuning
        planned = plan_of(study, tmp_path)
        fill(planned, record, lambda trial: 2.0 + jitter(trial))
    add_stale_record(planned)
    trials = table_trials(planned)
    assert list(trials) == [SAME, BEST]
    for entries in trials.values():
        assert sorted((entry.variant, entry.seed) for entry in entries) == [
            (variant, seed) for variant in ("attention=mqa", BASELINE, "norm=rmsnorm") for seed in range(3)
        ]
    text = html_page(paribus.compare(planned), trials, {})
    count = len({entry.identity for entries in trials.values() for entry in entries})
    assert f"trials: {count} of {count}," in text
    assert [text.count(f'<figure id="{place}-curves"') for place in range(3)] == [1, 1, 0]


def test_rows_of_a_shared_trial_are_in_each_of_its_settings(tmp_path: Path, record: Record) -> None:
    planned = plan_of({**STUDY, "tune": {"optimizer.lr": [2e-3, 4e-3]}}, tmp_path)
    fill(planned, record, lambda trial: 2.0 + jitter(trial))
    rows = paribus.records(planned.replan())
    for setting in (SAME, BEST):  # the values of the base are the best, so that all trials are shared
        names = [(row["variant"], row["seed"], row["step"]) for row in rows if row["setting"] == setting]
        assert len(names) == len(set(names)) == 3 * 3 * 2
