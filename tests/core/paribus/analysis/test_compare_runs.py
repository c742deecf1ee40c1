"""Comparison of two sets of trials and of two single trials: matching, header, refusals."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.analysis.compare_runs import IDENTICAL, RunComparison, compare_runs, compare_trials
from paribus.analysis.gates import check_table, parse_gates
from paribus.analysis.runs import TrialSet, load_trial_set
from paribus.analysis.trials import TrialEntry
from paribus.errors import NotComparableError, SpecError, StoreError
from paribus.report.terminal import grid_text
from paribus.storage.atomic import write_json

Make = Callable[..., TrialEntry]
Keep = Callable[..., Path]

BASE = [2.00, 2.10, 1.90, 2.05, 1.95]
CODES = {"old": "a" * 24, "new": "b" * 24}


@pytest.fixture(name="keep")
def _keep(make: Make, tmp_path: Path) -> Keep:
    """Write trials into a store as a run does, and return the folder of the study."""

    def save_trials(
        store: str,
        losses: Mapping[str, Sequence[float | str]],
        varied: Mapping[str, Any],
        *,
        code: str = CODES["old"],
        ended: float = 1.0,
        **edits: Any,
    ) -> Path:
        for variant, variant_losses in losses.items():
            for seed, outcome in enumerate(variant_losses):
                ending: dict[str, Any] = {"state": outcome} if isinstance(outcome, str) else {"loss": outcome}
                places = {"provenance/ended": ended, **{key.replace("__", "/"): value for key, value in edits.items()}}
                entry = make(variant, seed, varied=varied[variant], edits=places, **ending)
                identity = f"{len(list((tmp_path / store).glob('study/*'))):024x}"
                folder = tmp_path / store / "study" / identity
                folder.mkdir(parents=True)
                assert entry.record is not None
                write_json(folder / "record.json", {**entry.record, "identity": identity})
                write_json(folder / "trial.json", {**entry.trial, "identity": identity, "code": code})
        return tmp_path / store / "study"

    return save_trials


VARIED: dict[str, dict[str, Any]] = {"baseline": {}, "mqa": {"attention": "mqa"}, "rmsnorm": {"norm": "rmsnorm"}}


def side(path: Path | str, store: Path | None = None) -> TrialSet:
    trial_set = load_trial_set(str(path), store or Path("runs"))
    assert trial_set is not None
    return trial_set


def table(baseline: Path, variant: Path, **options: Any) -> RunComparison:
    return compare_runs(side(baseline), side(variant), **options)


def test_trials_are_matched_by_spec_and_seeds_are_paired(keep: Keep) -> None:
    old = keep("old", {"baseline": BASE, "mqa": BASE}, VARIED)
    worse = [value + 0.5 + seed / 100 for seed, value in enumerate(BASE)]
    new = keep("new", {"mqa": worse, "baseline": BASE}, VARIED, code=CODES["new"])
    comparison = table(old, new)
    assert [(row.variant, row.kind, row.n) for row in comparison.rows] == [
        ("baseline", "identical", 5),
        ("mqa", "worse", 5),
    ]
    assert comparison.rows[1].difference == pytest.approx(0.52)
    assert comparison.baseline_means["mqa"] == pytest.approx(2.0)
    assert json.loads(json.dumps(comparison.to_json(), allow_nan=False))["rows"][1]["low"] > 0.4
    assert check_table(parse_gates(["worse:0.1"]), comparison)[0].tripped[0].startswith("mqa: ")


def test_the_header_lists_what_changed(keep: Keep) -> None:
    old = keep("old", {"baseline": BASE}, VARIED)
    versions = {"python": "3.11.7", "torch": "2.13.0", "numpy": "2.5.0"}
    new = keep("new", {"baseline": BASE}, VARIED, code=CODES["new"], provenance__versions=versions)
    header = table(old, new).header
    assert [line.partition(":")[0] for line in header] == ["before", "after", "code", "data", "versions", "machine"]
    assert header[2] == f"code:     baseline {'a' * 12} → {'b' * 12}"
    assert header[3].startswith("data:     the same")
    assert header[4] == "versions: numpy 2.4.6 → 2.5.0, torch 2.13.0+cpu → 2.13.0"
    assert table(old, old).header[2] == f"code:     the same ({'a' * 12})"


def test_bitwise_equal_results_are_reported_as_the_same(keep: Keep) -> None:
    digests = {"parameters": "p"}
    old = keep("old", {"baseline": BASE}, VARIED, result__digests=digests)
    new = keep("new", {"baseline": BASE}, VARIED, code=CODES["new"], result__digests=digests)
    (row,) = table(old, new).rows
    assert (row.verdict, row.difference) == (IDENTICAL, 0.0)
    assert check_table(parse_gates(["worse:0"]), table(old, new))[0].lines == ["gate worse:0 held"]


def test_unpaired_trials_are_listed(keep: Keep) -> None:
    old = keep("old", {"baseline": BASE, "rmsnorm": BASE[:2]}, VARIED)
    new = keep("new", {"baseline": BASE[:3], "mqa": BASE[:1]}, VARIED)
    comparison = table(old, new)
    assert comparison.notes == ("Only before: baseline (seed 3, 4), rmsnorm (seed 0, 1)", "Only after: mqa (seed 0)")
    assert comparison.rows[0].n == 3


def test_two_sides_without_common_items_are_refused(keep: Keep) -> None:
    old, new = keep("old", {"baseline": BASE}, VARIED), keep("new", {"mqa": BASE}, VARIED)
    with raises_problem(NotComparableError, "nothing-in-common", "baseline"):
        table(old, new)


@pytest.mark.parametrize(
    ("edits", "code", "values"),
    [
        ({"result__data": {"corpus": "elsewhere", "tokenizer": "t"}}, "other-corpus", ("elsewhere",)),
        ({"result__steps": 50}, "other-steps", ("100", "50")),
        ({"provenance__versions": {"torch": "2.14"}}, "other-versions", ("2.13.0", "2.14")),
        ({"provenance__machine": {"device": "cuda"}}, "other-machine", ("cpu", "cuda")),
        ({"result__certificate": {"validation": "v"}}, "other-validation", ("v",)),
    ],
)
def test_differing_conditions_are_refused_or_shown_with_a_warning(
    keep: Keep, edits: dict[str, Any], code: str, values: tuple[str, ...]
) -> None:
    old, new = keep("old", {"baseline": BASE}, VARIED), keep("new", {"baseline": BASE}, VARIED, **edits)
    with raises_problem(NotComparableError, code, *values):
        table(old, new)
    assert table(old, new, across=True).warnings[0].startswith("ACROSS MACHINES")


def test_two_codes_in_one_store_are_two_sides(keep: Keep) -> None:
    folder = keep("runs", {"baseline": BASE, "mqa": BASE}, VARIED)
    keep("runs", {"baseline": [value + 0.1 for value in BASE]}, VARIED, code=CODES["new"], ended=2.0)
    store = folder.parent
    comparison = compare_runs(side("study@previous", store), side("study", store))
    (row,) = comparison.rows
    assert row.variant == "baseline"
    assert row.difference == pytest.approx(0.1)
    assert any("records of several codes" in note for note in comparison.notes)
    assert len(side(f"study@{'a' * 12}", store).trials) == 10
    with raises_problem(NotComparableError, "no-records", "cccccc", "a" * 12):
        side("study@cccccc", store)


def test_a_damaged_record_is_reported_and_kept(keep: Keep) -> None:
    folder = keep("old", {"baseline": BASE}, VARIED)
    broken = sorted(folder.iterdir())[0] / "record.json"
    broken.write_text(broken.read_text()[:-9])
    trial_set = side(folder)
    assert len(trial_set.trials) == 4
    assert trial_set.notes[0].startswith("Skipped: ")
    assert broken.exists()
    with raises_problem(StoreError, "damaged", "record.json"):
        side(broken.parent)


def test_a_path_without_trials_has_no_trial_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert [load_trial_set(name, tmp_path) for name in ("nothing", str(tmp_path / "file"), "a\0b", "x@y")] == [None] * 4


def test_another_metric_needs_a_direction(keep: Keep) -> None:
    old, new = keep("old", {"baseline": BASE}, VARIED), keep("new", {"baseline": BASE}, VARIED)
    assert table(old, new).metric == "val/mlm/loss"
    assert table(old, new, metric="val/mlm/accuracy:higher").better == "higher"
    with raises_problem(SpecError, "unknown-metric", "val/mlm/accuracy"):
        table(old, new, metric="val/mlm/accuracy")
    with raises_problem(SpecError, "unknown-metric", "val/mlm/los", "val/mlm/loss"):
        table(old, new, metric="val/mlm/los")


def test_one_seed_a_side_has_no_interval_and_no_verdict(keep: Keep) -> None:
    old, new = keep("old", {"baseline": [2.0]}, VARIED), keep("new", {"baseline": [3.0]}, VARIED)
    (row,) = table(old, new).rows
    assert (row.low, row.verdict) == (None, "inconclusive (too few seeds: n = 1)")


def test_a_diverged_trial_has_no_result(keep: Keep) -> None:
    old, new = keep("old", {"baseline": BASE}, VARIED), keep("new", {"baseline": [2.0, "diverged", *BASE[2:]]}, VARIED)
    comparison = table(old, new, across=True)
    assert comparison.rows[0].verdict == "diverged 1/5"
    assert not comparison.ok


def test_two_trials_have_a_difference_a_certificate_and_no_verdict(keep: Keep) -> None:
    folders = sorted(keep("runs", {"baseline": [2.0], "mqa": [2.5]}, VARIED).iterdir())
    comparison = compare_trials(side(folders[0]), side(folders[1]))
    assert ("val/mlm/loss", 2.0, 2.5) in comparison.rows
    assert comparison.certificate is not None
    assert comparison.certificate.ok
    assert any("attention.name mha → mqa" in line for line in comparison.header)
    text = grid_text(comparison.grid(), 80)
    assert "+0.5000" in text
    assert "✓ 13/21 tensors equal at step 0" in text
    assert "there is no interval and no verdict" in text
    assert not any(word in text for word in ("±", "better", "worse"))


def test_two_trials_of_one_spec_have_no_certificate(keep: Keep) -> None:
    old = keep("old", {"baseline": [2.0]}, VARIED)
    new = keep("new", {"baseline": [2.0]}, VARIED, code=CODES["new"])
    comparison = compare_trials(*(side(next(folder.iterdir())) for folder in (old, new)))
    assert comparison.certificate is None
    assert comparison.header[-1] == "spec:     the same"
