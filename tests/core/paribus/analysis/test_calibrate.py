"""Calibration: detectable effects and seeds needed, from the spread in the records."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from tests.fixtures.problems import raises_problem

from paribus.analysis.calibrate import INDEPENDENT, calibrate_entries, calibrate_settings
from paribus.analysis.p_values import summarise
from paribus.analysis.power import power_of_equivalence, power_to_detect, spread_interval
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import NotComparableError

Study = Callable[..., list[TrialEntry]]
Ask = Callable[..., ComparisonSpec]
Make = Callable[..., TrialEntry]

BASELINE = [2.00, 2.03, 1.98, 2.01, 2.05]
CLOSE = [2.011, 2.039, 1.992, 2.021, 2.058]
WILD = [2.05, 1.97, 2.06, 1.95, 2.07]


def lasting(entries: Sequence[TrialEntry], seconds: float) -> list[TrialEntry]:
    for entry in entries:
        if entry.record is not None:
            entry.record["provenance"].update(started=100.0, ended=100.0 + seconds)
    return list(entries)


@pytest.mark.thorough
def test_every_variant_has_a_standard_deviation_with_an_interval(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=CLOSE, gqa=WILD)
    calibration = calibrate_entries(entries, ask(entries, margin=0.02))
    assert [row.variant for row in calibration.rows] == ["mqa", "gqa"]
    mqa, gqa = calibration.rows
    sd = summarise([b - a for a, b in zip(BASELINE, CLOSE, strict=True)]).sd
    assert sd is not None
    assert mqa.n == 5
    assert mqa.sd == pytest.approx(sd)
    assert mqa.interval == pytest.approx(spread_interval(sd, 5))
    assert calibration.baseline.sd == pytest.approx(summarise(BASELINE).sd)
    assert calibration.independent.sd == pytest.approx(2**0.5 * calibration.baseline.sd)
    assert mqa.reduction is not None
    assert gqa.reduction is not None
    assert mqa.reduction > 10
    assert gqa.reduction < 2


@pytest.mark.thorough
def test_the_seeds_and_the_smallest_effect_are_at_the_level_of_holms_first_step(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=CLOSE, gqa=WILD)
    calibration = calibrate_entries(entries, ask(entries, margin=0.02), effect=0.01, power=0.9)
    assert (calibration.alpha, calibration.effect, calibration.margin) == (0.025, 0.01, 0.02)
    mqa = calibration.rows[0]
    assert mqa.smallest_effect is not None
    assert mqa.detect_seeds is not None
    assert mqa.equivalence_seeds is not None
    assert power_to_detect(mqa.smallest_effect, mqa.sd, 5, 0.025) == pytest.approx(0.9, abs=1e-3)
    assert (
        power_to_detect(0.01, mqa.sd, mqa.detect_seeds, 0.025)
        >= 0.9
        > power_to_detect(0.01, mqa.sd, mqa.detect_seeds - 1, 0.025)
    )
    assert power_of_equivalence(0.02, mqa.sd, mqa.equivalence_seeds, 0.025) >= 0.9
    assert mqa.detect_seeds_range[0] is not None
    assert mqa.detect_seeds_range[1] is not None
    assert mqa.detect_seeds_range[0] <= mqa.detect_seeds <= mqa.detect_seeds_range[1]
    assert calibration.seeds == max(row.detect_seeds or 0 for row in calibration.rows)


@pytest.mark.thorough
def test_missing_trials_are_counted_and_timed_from_the_records(study: Study, ask: Ask) -> None:
    entries = lasting(study(baseline=BASELINE, mqa=CLOSE), 30.0)
    calibration = calibrate_entries(entries, ask(entries), effect=0.002)
    assert calibration.seeds is not None
    assert calibration.missing_trials == 2 * (calibration.seeds - 5)
    assert calibration.seconds == pytest.approx(30.0 * calibration.missing_trials)
    assert f"needs {calibration.seeds} seeds, {calibration.missing_trials} trials more" in str(calibration)
    large_effect = calibrate_entries(entries, ask(entries), effect=1.0)
    assert (large_effect.missing_trials, large_effect.seconds) == (0, 0.0)
    assert "no trial more" in str(large_effect)


def test_a_baseline_alone_gives_the_spread_of_unpaired_seeds(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=["pending"] * 5)
    calibration = calibrate_entries(entries, ask(entries, margin=0.05))
    assert calibration.rows == ()
    assert (calibration.independent.variant, calibration.independent.n) == (INDEPENDENT, 5)
    assert calibration.seeds == calibration.independent.detect_seeds
    assert any("no standard deviation: mqa" in note for note in calibration.notes)


def test_calibration_shows_no_difference(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=[value + 0.4444 for value in BASELINE[:4]] + [2.5])
    calibration = calibrate_entries(entries, ask(entries, margin=0.02))
    assert "0.44" not in str(calibration)
    assert "0.44" not in json.dumps(calibration.to_json())


def test_equal_differences_need_no_power(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=[value + 0.5 for value in BASELINE])
    (row,) = calibrate_entries(entries, ask(entries, margin=0.02)).rows
    assert (row.sd, row.smallest_effect, row.detect_seeds, row.equivalence_seeds) == (0.0, None, None, None)


def test_a_withheld_variant_has_no_spread(study: Study, ask: Ask, make: Make) -> None:
    entries = study(baseline=BASELINE, mqa=CLOSE)
    for entry in entries:
        if entry.variant == "mqa" and entry.record is not None:
            entry.record["result"]["certificate"]["batches"] = "others"
    calibration = calibrate_entries(entries, ask(entries))
    assert calibration.rows == ()


@pytest.mark.thorough
def test_a_calibration_is_valid_json_and_prints(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=CLOSE, gqa=WILD)
    calibration = calibrate_entries(entries, ask(entries, margin=1e-4))
    document = json.loads(json.dumps(calibration.to_json(), allow_nan=False))
    assert document["rows"][1]["variant"] == "gqa"
    assert document["rows"][1]["detect_seeds"] is None  # nobody would run so many
    assert "needs more than 1,000 seeds in some variant" in str(calibration)
    assert repr(calibration) == "<calibration of attention on val/mlm/loss: 2 spreads>"
    without_margin = str(calibrate_entries(entries, ask(entries)))
    assert "No effect is set" in without_margin


def test_calibration_without_a_spread_is_refused(study: Study, ask: Ask) -> None:
    entries = study(baseline=[2.0, "pending"], mqa=[2.1, 2.0])
    with raises_problem(NotComparableError, "too-few", "attention", "1"):
        calibrate_entries(entries, ask(entries))
    nothing = study(baseline=["pending"], mqa=["pending"])
    with raises_problem(NotComparableError, "no-records", "attention"):
        calibrate_entries(nothing, ask(nothing))


@pytest.mark.parametrize(("effect", "power", "words"), [(-1.0, 0.8, "`effect` must be"), (None, 1.0, "`power` must")])
def test_an_invalid_effect_or_power_is_refused(
    study: Study, ask: Ask, effect: float | None, power: float, words: str
) -> None:
    entries = study(baseline=BASELINE, mqa=CLOSE)
    with pytest.raises(ValueError, match=words):
        calibrate_entries(entries, ask(entries), effect=effect, power=power)


@pytest.mark.thorough
def test_each_setting_has_a_table_at_the_confidence_of_all_verdicts_together(study: Study, ask: Ask) -> None:
    near = study(baseline=BASELINE, mqa=CLOSE, gqa=WILD)
    far = study(baseline=BASELINE, mqa=WILD)
    pending = study(baseline=["pending"] * 5, mqa=["pending"] * 5)
    setting_entries = [
        (item, ask(item, margin=0.02, setting=name)) for name, item in (("s", near), ("m", far), ("l", pending))
    ]
    calibration = calibrate_settings(setting_entries)
    assert [(item.setting, len(item.rows)) for item in calibration.settings] == [("s", 2), ("m", 1)]
    assert {item.alpha for item in calibration.settings} == {0.05 / 4}  # what has not run yet counts too
    alone = calibrate_entries(near, ask(near, margin=0.02))
    assert alone.alpha == 0.05 / 2
    assert calibration.rows[0].sd == alone.rows[0].sd
    joint_effect, single_effect = calibration.rows[0].smallest_effect, alone.rows[0].smallest_effect
    assert joint_effect is not None
    assert single_effect is not None
    assert joint_effect > single_effect
    assert "Fewer than two pairs, and so no standard deviation: l" in calibration.notes
    text = str(calibration)
    assert text.index("\ns\n") < text.index("\nm\n")
    assert text.count("requires of the first of 4 verdicts, in all settings") == 1
    assert "counted as missing in each" in text
    document = json.loads(json.dumps(calibration.to_json()))
    assert (document["setting"], [item["setting"] for item in document["other_settings"]]) == ("s", ["m"])
    assert "setting" not in alone.to_json()


def test_settings_without_any_spread_are_refused(study: Study, ask: Ask) -> None:
    few = study(baseline=BASELINE[:1], mqa=CLOSE[:1])
    with raises_problem(NotComparableError, "too-few", "attention"):
        calibrate_settings([(few, ask(few, setting="s")), (few, ask(few, setting="m"))])


def test_an_open_ended_study_needs_more_seeds_for_the_same_effect(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASELINE, mqa=CLOSE)
    fixed, growing = (
        calibrate_entries(entries, ask(entries, margin=0.02, look_seeds=looks, open_ended=bool(looks)), effect=0.004)
        for looks in ((), (5,))
    )
    assert growing.alpha == fixed.alpha
    assert (fixed.rows[0].detect_seeds or 0) < (growing.rows[0].detect_seeds or 0)
    assert (fixed.rows[0].smallest_effect or 0) < (growing.rows[0].smallest_effect or 0)
    assert "add them as needed" in str(growing)
