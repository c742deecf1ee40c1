"""Comparison of trials: verdicts, warnings and refusals of the table."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus.analysis.compare import compare, compare_settings
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.analysis.verdicts import PairedDifferences, decide
from paribus.errors import NotComparableError

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

BASE = [2.00, 2.10, 1.90, 2.05, 1.95]
WORSE = [2.50, 2.61, 2.39, 2.56, 2.44]  # by 0.5, give or take 0.01
LEAK = {"result/certificate/tensors/body.layers.0.attention.heads.q.weight/value": "x"}
MIRRORED = {"better": "worse", "worse": "better"}


def table_of(study: Study, ask: Ask, **losses: Any) -> Table:
    entries = study(**losses)
    return compare(entries, ask(entries))


def only(table: Table) -> Any:
    (row,) = table.rows
    return row


# ------------------------------------------------------------------------------------------------ verdicts
def test_a_clear_difference_gets_its_verdict_and_its_interval(study: Study, ask: Ask) -> None:
    row = only(table_of(study, ask, baseline=BASE, mqa=WORSE))
    assert row.verdict == row.kind == "worse"
    assert row.difference == pytest.approx(0.5)
    assert row.low < row.difference < row.high
    assert (row.n, row.planned, row.level) == (5, 5, pytest.approx(0.95))
    assert row.mean == pytest.approx(2.5)
    assert row.variance_reduction > 10


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize("margin", [None, 0.1, 1.0])
def test_rows_show_the_verdicts_of_the_whole_family(study: Study, ask: Ask, better: Any, margin: float | None) -> None:
    losses = {"baseline": BASE, "mqa": WORSE, "gqa": [2.02, 2.09, 1.93, 2.01, 1.99], "rmsnorm": BASE[::-1]}
    entries = study(**losses)
    rows = compare(entries, ask(entries, better=better, margin=margin)).rows
    family = {
        name: PairedDifferences(
            differences=tuple(b - a for a, b in zip(BASE, values, strict=True)), diverged=0, planned=5
        )
        for name, values in losses.items()
        if name != "baseline"
    }
    expected = decide(family, better=better, margin=margin)
    assert [row.variant for row in rows] == list(expected)
    for row in rows:
        verdict = expected[row.variant]
        assert (row.verdict, row.n, row.p, row.needs) == (verdict.text, verdict.n, verdict.p, verdict.needs)
        assert (row.difference, row.low, row.high) == (verdict.difference, verdict.low, verdict.high)


losses_of = st.lists(st.floats(1, 3).map(lambda value: round(value, 2)) | st.just("diverged"), min_size=2, max_size=4)


@pytest.mark.thorough
@given(data=st.data())
@settings(max_examples=25)
def test_exchanging_baseline_and_variant_mirrors_the_table(data: st.DataObject, study: Study, ask: Ask) -> None:
    base = data.draw(losses_of)
    changed = data.draw(st.lists(st.sampled_from([1.0, 1.5, 2.25, "diverged"]), min_size=len(base), max_size=len(base)))
    entries = study(baseline=base, mqa=changed)
    forward = only(compare(entries, ask(entries, margin=0.5)))
    exchanged = only(compare(entries, ask(entries, margin=0.5, baseline="mqa")))
    assert exchanged.kind == MIRRORED.get(forward.kind, forward.kind)
    assert (exchanged.n, exchanged.needs, exchanged.p) == (forward.n, forward.needs, forward.p)
    if forward.difference is not None:
        assert exchanged.difference == pytest.approx(-forward.difference)


@pytest.mark.thorough
@given(seed=st.integers(0, 1000))
@settings(max_examples=10)
def test_the_order_of_the_trials_does_not_matter(seed: int, study: Study, ask: Ask) -> None:
    entries = study(baseline=BASE, mqa=WORSE, gqa=[*BASE[:4], "diverged"], lr=[2.0, "failed", 2.0, "pending", 2.2])
    shuffled = random.Random(seed).sample(entries, len(entries))
    assert compare(shuffled, ask(entries)).to_json() == compare(entries, ask(entries)).to_json()


def test_a_variant_that_has_not_run_yet_counts_in_the_family(study: Study, ask: Ask) -> None:
    alone = table_of(study, ask, baseline=BASE, mqa=WORSE).rows[0]
    table = table_of(study, ask, baseline=BASE, mqa=WORSE, gqa=["pending"] * 5)
    assert alone.level == pytest.approx(0.95)
    assert table.rows[0].level == pytest.approx(0.975)
    assert table.rows[1].verdict == "inconclusive (too few seeds: n = 0)"
    assert (table.rows[1].n, table.rows[1].mean, table.rows[1].difference) == (0, None, None)
    assert "gqa" not in table.certificates


def test_a_baseline_that_is_no_variant_is_refused(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASE, mqa=WORSE)
    with pytest.raises(ValueError, match="`baseline` must be one of the variants, but is `mha`; valid: baseline, mqa"):
        compare(entries, ask(entries, baseline="mha"))


# ---------------------------------------------------------------------------------------------- planted faults
FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a leaked seed": ({"attention": "mqa"}, LEAK, "withheld (leaked seed)"),
    "an ignored option": ({"dims.layers": 1}, {"spec/dims/layers": 2}, "withheld (another spec; ignored option; "),
    "a dead swap": ({"attention": {"name": "restricted", "window": 16}}, {}, "withheld (changed nothing)"),
    "another difference": ({"attention": "mqa"}, {"spec/norm/eps": 1.0}, "withheld (another spec; another difference)"),
    "other batches": ({"attention": "mqa"}, {"result/certificate/batches": "x"}, "withheld (other batches)"),
}


@pytest.mark.parametrize(("varied", "edits", "verdict"), FAULTS.values(), ids=list(FAULTS))
def test_a_planted_fault_withholds_the_verdict_and_its_numbers(
    make: Make, ask: Ask, study: Study, varied: dict[str, Any], edits: dict[str, Any], verdict: str
) -> None:
    faulty = [make("it", seed, varied=varied, loss=loss, edits=edits) for seed, loss in enumerate(WORSE)]
    entries = [*study(baseline=BASE, gqa=WORSE), *faulty]
    table = compare(entries, ask(entries))
    sound, row = table.rows
    assert row.kind == "withheld"
    assert row.verdict.startswith(verdict)
    assert (row.difference, row.low, row.high, row.p, row.level) == (None, None, None, None, None)
    assert sound.verdict == "worse"
    assert sound.level == pytest.approx(0.975)  # the withheld one frees no alpha
    assert not table.certificates["it"].ok
    assert not table.ok


@pytest.mark.parametrize(
    ("value", "better", "words"),
    [(1.0, "higher", "saturated"), (0.0, "lower", "saturated"), (1.0, "lower", "in all 3 pairs")],
)
def test_equal_results_are_identical_and_a_metric_at_its_best_value_is_saturated(
    study: Study, ask: Ask, value: float, better: str, words: str
) -> None:
    entries = study(baseline=[value] * 3, mqa=[value] * 3)
    row = compare(entries, ask(entries, better=better, allow_unlearned=True)).rows[0]
    assert row.kind == "identical"
    assert words in row.verdict


def test_a_fault_in_one_seed_withholds_the_whole_verdict(make: Make, ask: Ask, study: Study) -> None:
    entries = study(baseline=BASE)
    for seed, loss in enumerate(WORSE):
        entries.append(make("mqa", seed, varied={"attention": "mqa"}, loss=loss, edits=LEAK if seed == 3 else {}))
    table = compare(entries, ask(entries))
    assert only(table).verdict == "withheld (leaked seed)"
    assert "(seed 3 only)" in table.certificates["mqa"].text


# ------------------------------------------------------------------------------------------------ E1 to E11, D1, D2
def elsewhere(make: Make, provenance: Mapping[str, Any], baseline_too: bool = True) -> list[TrialEntry]:
    edits = {f"provenance/{key}": value for key, value in provenance.items()}
    base = [make(seed=seed, loss=2.0 + seed / 10, edits=edits if baseline_too else {}) for seed in (0, 1)]
    return [*base, *(make("it", seed, varied={"attention": "mqa"}, loss=2.5, edits=edits) for seed in (0, 1))]


def test_only_common_seeds_are_compared(study: Study, ask: Ask) -> None:
    table = table_of(study, ask, baseline=[*BASE, "pending"], mqa=["failed", *WORSE[1:], 9.0])
    row = only(table)
    assert (row.n, row.planned) == (4, 6)
    assert row.mean == pytest.approx(sum(WORSE[1:]) / 4)
    assert "mqa: 4 common seeds; unpaired: seed 5 of mqa, seed 0 of baseline" in table.notes


def test_a_single_seed_proves_nothing(study: Study, ask: Ask) -> None:
    row = only(table_of(study, ask, baseline=[2.0], mqa=[9.0]))
    assert row.verdict == "inconclusive (too few seeds: n = 1)"
    assert (row.low, row.high, row.p, row.level, row.variance_reduction) == (None, None, None, None, None)
    assert row.difference == 7.0


def test_a_pair_with_two_versions_of_torch_is_skipped(make: Make, ask: Ask, study: Study) -> None:
    entries = study(baseline=BASE)
    for seed, loss in enumerate(WORSE):
        torch = "2.12.1" if seed == 2 else "2.13.0+cu128"  # a build of the same version is the same version
        edits = {"provenance/versions": {"torch": torch}}
        entries.append(make("it", seed, varied={"attention": "mqa"}, loss=loss, edits=edits))
    table = compare(entries, ask(entries))
    assert (only(table).n, only(table).verdict) == (4, "worse")
    assert "it: skipped seed 2: torch 2.13.0 against 2.12.1" in table.notes
    assert any(warning.startswith("Mixed versions: torch 2.13.0+cpu and ") for warning in table.warnings)


def test_a_variant_with_other_versions_only_gets_no_verdict(make: Make, ask: Ask) -> None:
    entries = elsewhere(make, {"machine": {"device": "cuda", "name": "a card", "threads": "1"}}, baseline_too=False)
    table = compare(entries, ask(entries))
    assert only(table).verdict == "withheld (versions or devices differ from the baseline's)"
    assert "it: skipped seed 0: device cpu against cuda" in table.notes


@pytest.mark.parametrize(
    ("machine", "difference"),
    [
        ({"name": "another"}, "processor a processor against another"),
        ({"threads": "4"}, "threads 1 against 4"),
        ({"name": "another", "threads": "4"}, "processor a processor against another, threads 1 against 4"),
    ],
)
def test_a_pair_of_two_processors_or_thread_counts_is_marked_and_refused_if_strict(
    make: Make, ask: Ask, study: Study, machine: Mapping[str, str], difference: str
) -> None:
    entries = study(baseline=BASE)
    other = {"device": "cpu", "name": "a processor", "threads": "1", **machine}
    for seed, loss in enumerate(WORSE):
        edits = {"provenance/machine": other} if seed == 2 else {}
        entries.append(make("it", seed, varied={"attention": "mqa"}, loss=loss, edits=edits))
    table = compare(entries, ask(entries))
    assert (only(table).kind, only(table).n) == ("worse", 5)
    assert only(table).summary == "worse, 1/5 across machines"
    assert table.to_json()["rows"][0]["across"] == [2]
    assert any(f"it seed 2 ({difference})" in warning for warning in table.warnings)
    with raises_problem(NotComparableError, "mixed-machines", difference):
        compare_settings([(entries, ask(entries))], strict=True)


def test_strict_accepts_pairs_of_one_machine(make: Make, ask: Ask) -> None:
    entries = elsewhere(make, {"machine": {"device": "cpu", "name": "another", "threads": "4"}})
    assert not only(compare_settings([(entries, ask(entries))], strict=True)).across


def test_an_outlier_is_in_the_verdict_the_warnings_and_json(study: Study, ask: Ask) -> None:
    table = table_of(study, ask, baseline=BASE, mqa=[*WORSE[:4], 9.0])
    assert only(table).verdict == "inconclusive (outlier: seed 4)"
    assert table.to_json()["rows"][0]["outliers"] == [4]
    assert any(warning.startswith("Outliers among the differences: mqa seed 4.") for warning in table.warnings)
    assert table.caption[1].startswith("All verdicts together would hold without outliers with 95 % confidence")


def test_the_assumption_is_in_the_caption(study: Study, ask: Ask) -> None:
    table = table_of(study, ask, baseline=BASE, mqa=WORSE)
    assert any("5 seeds without one are compatible with a failure rate of up to 45 %" in line for line in table.caption)


def test_mixed_versions_in_a_study_cause_a_warning(make: Make, ask: Ask) -> None:
    entries = elsewhere(make, {})
    later = {"provenance/versions": {"torch": "2.12.0", "numpy": "2.4.6"}}
    entries += [make(seed=2, loss=2.1, edits=later), make("it", 2, varied={"attention": "mqa"}, loss=2.5, edits=later)]
    table = compare(entries, ask(entries))
    assert only(table).n == 3
    assert "Mixed versions: torch 2.13.0+cpu and 2.12.0; no pair mixes versions of torch." in table.warnings


def test_a_failed_trial_is_counted_and_not_averaged(study: Study, ask: Ask) -> None:
    table = table_of(study, ask, baseline=BASE, mqa=[*WORSE[:3], "failed", "out-of-memory"])
    row = only(table)
    assert (row.n, row.failed, row.diverged) == (3, 2, 0)
    assert row.flags == ("2/5 failed",)
    assert row.verdict == "worse"
    assert sum(": failed: " in note or ": out-of-memory: " in note for note in table.notes) == 2
    assert not table.ok


def test_a_diverged_seed_is_shown_and_never_averaged(study: Study, ask: Ask) -> None:
    row = only(table_of(study, ask, baseline=BASE, mqa=[*WORSE[:4], "diverged"]))
    assert row.verdict == "diverged 1/5"
    assert (row.n, row.diverged) == (4, 1)
    assert row.difference == pytest.approx(0.5, abs=0.01)


def test_a_metric_that_is_not_a_number_counts_as_diverged(make: Make, ask: Ask) -> None:
    entries = [make(), make(seed=1), make("it", varied={"attention": "mqa"})]
    entries.append(make("it", 1, varied={"attention": "mqa"}, edits={"result/metrics": {"val/mlm/loss": "inf"}}))
    assert only(compare(entries, ask(entries))).verdict == "diverged 1/2"


def test_a_variant_that_always_diverged_has_a_verdict_and_is_never_better(study: Study, ask: Ask) -> None:
    row = only(table_of(study, ask, baseline=BASE, mqa=["diverged"] * 5))
    assert row.verdict == "diverged 5/5"
    assert (row.n, row.mean, row.difference) == (0, None, None)
    table = table_of(study, ask, baseline=["diverged"] * 5, mqa=WORSE)
    assert only(table).verdict == "baseline diverged 5/5"
    assert table.baseline.flags == ("5/5 diverged",)


def test_stale_records_are_skipped_and_named(make: Make, ask: Ask, study: Study) -> None:
    old = [
        make("mqa", seed, varied={"attention": "mqa"}, loss=loss, changed=("the engine",))
        for seed, loss in enumerate(WORSE)
    ]
    entries = [*study(baseline=BASE), *old]
    table = compare(entries, ask(entries))
    assert only(table).n == 0
    assert any("changes since: the engine; `paribus verify`" in note for note in table.notes)


# ------------------------------------------------------------------------------------------------ what is ok
@pytest.mark.parametrize(
    ("endings", "ok"),
    [
        (WORSE, True),
        ([*WORSE[:4], "pending"], False),
        ([*WORSE[:4], "interrupted"], False),
        ([*WORSE[:4], "running"], False),
        ([*WORSE[:4], "failed"], False),
        ([*WORSE[:4], "diverged"], False),
    ],
)
@pytest.mark.parametrize("side", ["baseline", "mqa"])
def test_a_table_is_ok_where_every_planned_trial_has_a_result(
    endings: Any, ok: bool, side: str, study: Study, ask: Ask
) -> None:
    assert table_of(study, ask, **{"baseline": BASE, "mqa": WORSE, side: endings}).ok == ok


def test_a_seed_without_any_trial_is_not_finished(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASE, mqa=WORSE)
    assert not compare(entries, ask(entries, seeds=range(6))).ok


# ------------------------------------------------------------------------------------------------ what knows nothing
@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize(
    ("baseline", "variant", "kind", "has_verdict"),
    [
        (3.5, 3.5, "equivalent", False),
        (3.5, 3.0, "better", True),  # that it learned and the baseline did not is a finding
        (3.0, 3.5, "worse", True),
        (3.9, 3.5, "better", False),
        (3.5, 3.9, "worse", False),
        (3.2, 3.28, "equivalent", False),
        (3.24, 3.05, "better", True),  # within the tolerance of the unigram baseline, 3.25
        (3.36, 3.24, "better", False),
        (3.245, 3.235, "equivalent", False),
        (2.5, 2.5, "equivalent", True),
    ],
)
def test_models_below_the_unigram_baseline_get_no_verdict_unless_the_study_allows_it(
    baseline: float, variant: float, kind: str, has_verdict: bool, stated: bool, study: Study, ask: Ask
) -> None:
    noise = (0.0, 0.001, -0.001, 0.002, -0.002)
    entries = study(baseline=[baseline] * 5, mqa=[variant + deviation for deviation in noise])
    table = compare(entries, ask(entries, margin=0.1, allow_unlearned=stated))
    row = only(table)
    assert row.kind == (kind if has_verdict or stated else "withheld")
    assert table.ok == (has_verdict or stated)
    if row.kind == "withheld":
        assert (row.verdict, row.difference, row.low) == ("withheld (did not learn: no verdict)", None, None)


# ------------------------------------------------------------------------------------------------ as JSON
ENDINGS = st.lists(st.floats(0.5, 4) | st.sampled_from(["diverged", "failed", "pending"]), min_size=4, max_size=4)


@pytest.mark.thorough
@given(baseline=ENDINGS, mqa=ENDINGS, rmsnorm=ENDINGS, margin=st.none() | st.just(0.1))
@settings(max_examples=25)
def test_a_table_is_valid_json_with_a_row_for_each_variant(
    baseline: Any, mqa: Any, rmsnorm: Any, margin: float | None, study: Study, ask: Ask
) -> None:
    entries = study(baseline=[2.0, *baseline], mqa=["diverged", *mqa], rmsnorm=[1e150, *rmsnorm])
    table = compare(entries, ask(entries, margin=margin))
    document = json.loads(json.dumps(table.to_json(), allow_nan=False))
    assert [row["variant"] for row in document["rows"]] == ["mqa", "rmsnorm"]
    assert set(document["rows"][0]) >= {"variant", "metric", "n", "difference", "low", "high", "verdict"}
    assert document["rows"][0] == document["rows"][0] | {"metric": "val/mlm/loss", "verdict": table.rows[0].verdict}
    assert document["metric"] == {"name": "val/mlm/loss", "better": "lower", "margin": margin}
    assert set(document["certificates"]) == set(table.certificates)
    assert document["baseline"]["verdict"] == "baseline"


@pytest.mark.thorough
def test_neither_torch_nor_scipy_is_needed_for_a_table() -> None:
    modules = ("api", "report.terminal", "report.markdown", "report.html", "analysis.compare", "analysis.trials")
    code = f"""
import sys, importlib
for module in {modules!r}:
    importlib.import_module("paribus." + module)
heavy = {{"torch", "lightning", "scipy", "numpy", "omegaconf", "rich"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_trials_that_did_not_learn_are_counted_one_by_one(study: Study, ask: Ask) -> None:
    entries = study(baseline=[2.0, 2.1, 2.05, 2.02], mqa=[2.2, 3.245, 2.1, 2.15])  # frequencies alone: 3.25
    table = compare(entries, ask(entries))
    (row,) = table.rows
    assert (row.unlearned, row.learned, row.n) == (1, True, 4)
    assert "1/4 did not learn" in row.flags
    assert (table.baseline.unlearned, table.baseline.flags) == (0, ())
    assert any("include trials that did not beat" in line and "mqa 1/4" in line for line in table.warnings)
    assert row.to_json("it")["unlearned"] == 1


def test_no_count_is_shown_where_the_mean_did_not_learn(study: Study, ask: Ask) -> None:
    entries = study(baseline=[2.0, 2.1, 2.05], mqa=[3.3, 3.4, 3.1])
    (row,) = compare(entries, ask(entries)).rows
    assert (row.unlearned, row.flags) == (2, ("did not learn",))


@pytest.mark.parametrize(
    ("baseline", "variant", "verdict"),
    [
        ([2.0, 2.1], ["failed", "failed"], "failed 2/2"),
        (["failed", "failed"], [2.0, 2.1], "baseline failed 2/2"),
        ([2.0, 2.1], ["failed", "pending"], "inconclusive (too few seeds: n = 0), 1/2 failed"),
    ],
)
def test_trials_that_all_failed_are_reported_as_failed(
    study: Study, ask: Ask, baseline: list[Any], variant: list[Any], verdict: str
) -> None:
    entries = study(baseline=baseline, mqa=variant)
    (row,) = compare(entries, ask(entries)).rows
    assert row.summary == verdict
    assert row.kind == ("inconclusive" if verdict.startswith("inconclusive") else "failed")


def test_the_baseline_is_shown_with_its_values_of_what_is_varied(study: Study, ask: Ask) -> None:
    entries = study(baseline=[2.0, 2.1], mqa=[2.0, 2.1], rmsnorm=[2.0, 2.1], lr=[2.0, 2.1])
    table = compare(entries, ask(entries))
    assert table.baseline.name == "baseline (attention=mha, norm=layernorm, optimizer.lr=0.002)"
    assert table.baseline.to_json(table.metric)["variant"] == "baseline"


def test_the_baseline_is_shown_with_the_default_of_a_trainer_argument(make: Make, ask: Ask) -> None:
    entries = [make(), make("bf16", varied={"trainer.precision": "bf16-mixed", "attention.window": 4})]
    assert compare(entries, ask(entries)).baseline.name == "baseline (trainer.precision=default)"
