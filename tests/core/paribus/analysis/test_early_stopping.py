"""Tables of studies that stop early: seeds used, trials not needed, and pending looks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paribus.analysis.always_valid import always_valid_t
from paribus.analysis.compare import compare, compare_settings
from paribus.analysis.early_stopping import seeds_by_variant, variant_states
from paribus.analysis.p_values import critical_t
from paribus.analysis.select_trials import select
from paribus.analysis.trials import ComparisonSpec, TrialEntry

Study = Callable[..., list[TrialEntry]]
Ask = Callable[..., ComparisonSpec]

BASELINE = [2.0, 2.03, 1.98, 2.01, 2.05, 2.02, 1.99, 2.04]
WORSE = [value + 1 + 0.001 * place for place, value in enumerate(BASELINE)]
UNSURE = [2.1, 1.9, 2.08, 1.95, 2.11, 1.93, 2.07, 1.96]


def test_a_row_uses_the_seeds_of_the_deciding_look(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=[*WORSE[:3], *["pending"] * 5], gqa=UNSURE)
    table = compare(entries, ask(entries, seeds=range(8), look_seeds=(3, 5, 8)))
    mqa, gqa = table.rows
    assert (mqa.kind, mqa.n, mqa.planned, mqa.done) == ("worse", 3, 3, 3)
    assert (gqa.kind, gqa.n, gqa.planned) == ("inconclusive", 8, 8)
    assert (table.baseline.n, table.baseline.planned) == (8, 8)
    assert table.ok
    assert table.notes == ("Not needed: 5 trials of 24 (mqa after 3 seeds)",)
    assert "Holm over 2 variants, its error rate of 5 % divided among looks that were fixed in advance" in " ".join(
        table.caption
    )
    assert "(0.7 % after 3, 1.25 % after 5, 3.05 % after 8 seeds)" in " ".join(table.caption)


def test_records_beyond_the_deciding_look_are_not_used(study: Study, ask: Ask) -> None:
    few = study(baseline=BASELINE, mqa=[*WORSE[:3], *["pending"] * 5], gqa=UNSURE)
    all_of_them = study(baseline=BASELINE, mqa=[*WORSE[:3], *[0.1] * 5], gqa=UNSURE)
    comparison = ask(few, seeds=range(8), look_seeds=(3, 5, 8))
    assert compare(few, comparison).to_json() == compare(all_of_them, comparison).to_json()


def test_once_every_pair_is_decided_the_baseline_stops_too(study: Study, ask: Ask) -> None:
    entries = study(baseline=[*BASELINE[:3], *["pending"] * 5], mqa=[*WORSE[:3], *["pending"] * 5])
    comparison = ask(entries, seeds=range(8), look_seeds=(3, 5, 8))
    table = compare(entries, comparison)
    assert (table.ok, table.baseline.planned) == (True, 3)
    assert table.notes == ("Not needed: 10 trials of 16 (baseline after 3 seeds, mqa after 3 seeds)",)


def test_an_incomplete_look_shows_no_numbers(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE[:2] + ["pending"] * 6, mqa=WORSE[:2] + ["pending"] * 6)
    table = compare(entries, ask(entries, seeds=range(8), look_seeds=(3, 8)))
    (row,) = table.rows
    assert (row.kind, row.n, row.planned, row.low) == ("inconclusive", 0, 3, None)
    assert row.verdict == "inconclusive as yet (next look at 3 seeds)"
    assert not table.ok


def test_a_failed_trial_keeps_only_its_variant_open_until_the_last_look(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=["failed", *WORSE[1:]], gqa=WORSE)
    comparison = ask(entries, seeds=range(8), look_seeds=(3, 5, 8))
    (states,) = variant_states([(select(entries, comparison).trials, comparison)])
    assert {name: (state.n, state.verdict.kind) for name, state in states.items()} == {
        "mqa": (8, "worse"),
        "gqa": (3, "worse"),
    }
    assert seeds_by_variant(states, comparison) == {"baseline": 8, "mqa": 8, "gqa": 3}


def test_a_variant_whose_certificate_fails_stops_at_its_first_look(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=WORSE, gqa=UNSURE)
    for entry in entries:
        if entry.variant == "mqa" and entry.record is not None:
            entry.record["result"]["certificate"]["batches"] = "others"
    table = compare(entries, ask(entries, seeds=range(8), look_seeds=(3, 5, 8)))
    assert (table.rows[0].kind, table.rows[0].planned) == ("withheld", 3)
    assert (table.rows[1].n, table.rows[1].kind) == (8, "inconclusive")


def test_the_order_of_seeds_is_that_of_the_study(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=[*UNSURE[:5], *WORSE[5:]])
    comparison = ask(entries, seeds=(7, 6, 5, 0, 1, 2, 3, 4), look_seeds=(3, 8))
    (row,) = compare(entries, comparison).rows
    assert (row.kind, row.n) == ("worse", 3)


def test_changed_looks_cause_a_warning(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=WORSE)
    warnings = compare(entries, ask(entries, look_seeds=(3, 8), replanned=True)).warnings
    assert any(line.startswith("The looks of the study were changed after a verdict") for line in warnings)


@pytest.mark.parametrize("stops", [(), (3, 8)])
def test_a_study_without_looks_does_not_mention_them(study: Study, ask: Ask, stops: tuple[int, ...]) -> None:
    entries = study(baseline=BASELINE, mqa=UNSURE)
    assert ("looks" in " ".join(compare(entries, ask(entries, look_seeds=stops)).caption)) == bool(stops)


def test_variants_of_several_settings_are_one_family_over_all_looks(study: Study, ask: Ask) -> None:
    clear = study(baseline=BASELINE, mqa=[*WORSE[:3], *["pending"] * 5])
    open_still = study(baseline=BASELINE, mqa=UNSURE)
    comparisons = [
        ask(item, seeds=range(8), look_seeds=(3, 5, 8), setting=name)
        for name, item in zip("ab", (clear, open_still), strict=True)
    ]
    table = compare_settings(list(zip((clear, open_still), comparisons, strict=True)))
    clear_row, open_row = (item.rows[0] for item in table.settings)
    assert (clear_row.kind, clear_row.n) == ("worse", 3)
    assert clear_row.level == pytest.approx(1 - 0.05 * 9 / 64 / 2)  # two verdicts were open then
    assert (open_row.kind, open_row.n) == ("inconclusive", 8)
    assert open_row.level == pytest.approx(1 - 0.05 * 39 / 64)  # and one of them is settled since
    assert table.ok
    assert any(
        note.startswith("Not needed here: 10 trials of 16 (baseline after 3 seeds, mqa")
        for note in table.settings[0].notes
    )
    alone = compare(open_still, comparisons[1])
    assert alone.rows[0].level == open_row.level


def test_no_setting_has_its_next_look_before_all_have_had_theirs(study: Study, ask: Ask) -> None:
    ready, waiting = study(baseline=BASELINE, mqa=UNSURE), study(baseline=BASELINE, mqa=[*UNSURE[:2], *["pending"] * 6])
    settings = [
        (select(entries, comparison := ask(entries, seeds=range(8), look_seeds=(3, 8))).trials, comparison)
        for entries in (ready, waiting)
    ]
    ready_states, waiting_states = variant_states(settings)
    assert (ready_states["mqa"].n, ready_states["mqa"].seeds_needed) == (3, 3)
    assert (waiting_states["mqa"].n, waiting_states["mqa"].seeds_needed) == (0, 3)


def test_seeds_added_to_an_open_ended_study_keep_earlier_verdicts_and_need_no_warning(study: Study, ask: Ask) -> None:
    worse = [value + 1 + 0.01 * place for place, value in enumerate(BASELINE)]
    entries = study(baseline=BASELINE, mqa=[*worse[:5], *["pending"] * 3], gqa=UNSURE)
    shared = {"open_ended": True, "previous_looks": [(0, 1, 2, 3, 4)], "replanned": True}
    first = compare(
        [entry for entry in entries if entry.seed < 5], ask(entries, seeds=range(5), look_seeds=(5,), **shared)
    )
    second = compare(entries, ask(entries, seeds=range(8), look_seeds=(5, 8), **shared))
    assert [(row.variant, row.kind, row.n) for row in second.rows] == [("mqa", "worse", 5), ("gqa", "inconclusive", 8)]
    assert first.rows[0].low == second.rows[0].low
    assert not any("after a verdict" in line for line in second.warnings)
    assert "at every number of seeds" in " ".join(second.caption)
    assert second.to_json()["open_ended"] is True


def test_each_look_of_an_open_ended_study_has_all_of_alpha(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=UNSURE)
    looks = compare(entries, ask(entries, seeds=range(8), look_seeds=(5, 8), open_ended=True))
    single = compare(entries, ask(entries, seeds=range(8), look_seeds=(8,), open_ended=True))
    fixed = compare(entries, ask(entries, seeds=range(8)))
    assert looks.rows[0].claim() == single.rows[0].claim()
    widths = [(row.high or 0) - (row.low or 0) for row in (looks.rows[0], fixed.rows[0])]
    assert widths[0] / widths[1] == pytest.approx(always_valid_t(0.05, 8) / critical_t(0.05, 8))
