"""Early stopping: verdicts at each look, reuse of alpha, and the error rate over all looks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat

import pytest

from paribus.analysis.early_stopping import FINAL_KINDS, LookData, VariantState, alpha_shares, decide_sequentially
from paribus.analysis.p_values import interval, summarise
from paribus.analysis.verdicts import PairedDifferences, Verdict, decide

LOOKS = (3, 5, 8)
STUDIES = 200  # of each simulation
Family = Mapping[str, Sequence[float]]


def seeing(
    family: Family, *, missing: Sequence[tuple[str, int]] = (), pending: Mapping[str, int] | None = None
) -> Callable[[str, int], LookData]:
    """Return the data of each look.

    `missing` are pairs of variant and seed without a record; `pending` has the number of seeds that have ended.
    """

    def look(name: str, n: int) -> LookData:
        ended_seeds = min(n, (pending or {}).get(name, n))
        values = [value for seed, value in enumerate(family[name][:ended_seeds]) if (name, seed) not in missing]
        is_complete = len(values) == n
        return LookData(
            paired=PairedDifferences(differences=tuple(values), diverged=0, planned=n),
            ended=ended_seeds == n,
            has_all_records=is_complete,
        )

    return look


def states_of(
    family: Family, *, margin: float | None = None, looks: Sequence[int] = LOOKS, **options: object
) -> Mapping[str, VariantState]:
    look = seeing(family, **options)  # type: ignore[arg-type]  # passed on as they came
    return decide_sequentially(list(family), look, looks=looks, better="lower", margin=margin)


WAVES = (0.9, -1.1, 0.3, 1.2, -0.4, -1.0, 0.8, -0.7)


def around(mean: float, sd: float, n: int = 8) -> list[float]:
    return [mean + sd * wave for wave in WAVES[:n]]


def test_the_looks_spend_all_of_alpha_and_the_first_the_least() -> None:
    assert alpha_shares(LOOKS) == pytest.approx((9 / 64, 16 / 64, 39 / 64))
    assert sum(alpha_shares((2, 7, 9, 40))) == pytest.approx(1)


def test_a_clear_effect_is_decided_at_the_first_look() -> None:
    state = states_of({"it": around(-100, 1)})["it"]
    assert (state.verdict.kind, state.n, state.seeds_needed, state.decided) == ("better", 3, 3, True)
    assert state.verdict.level == pytest.approx(1 - 0.05 * 9 / 64)


def test_the_interval_has_the_level_of_the_deciding_look() -> None:
    states = states_of({"clear": around(-100, 1), "later": around(3, 1), "never": around(0.1, 1)})
    later = states["later"]
    assert (later.verdict.kind, later.n) == ("worse", 5)
    level = 0.05 * 16 / 64 / 2  # the clear one was settled before, and two are left
    assert later.verdict.level == pytest.approx(1 - level)
    assert (later.verdict.low, later.verdict.high) == pytest.approx(interval(summarise(around(3, 1, 5)), level))
    never = states["never"]
    assert (never.verdict.kind, never.n, never.decided) == ("inconclusive", 8, True)
    assert never.verdict.level == pytest.approx(1 - 0.05 * 39 / 64)
    assert never.verdict.text.startswith("inconclusive (needs n ≥")


def test_the_p_value_is_at_most_alpha_exactly_where_the_interval_excludes_0() -> None:
    for state in states_of({"clear": around(-100, 1), "later": around(3, 1), "never": around(0.1, 1)}).values():
        verdict = state.verdict
        assert verdict.p is not None
        assert verdict.low is not None
        assert verdict.high is not None
        assert (verdict.p <= 0.05) == (not verdict.low <= 0 <= verdict.high)


def test_a_variant_equivalent_around_0_frees_no_alpha() -> None:
    family = {"same": around(0, 0.001), "open": around(0.1, 1)}
    states = states_of(family, margin=1.0)
    assert (states["same"].verdict.kind, states["same"].n) == ("equivalent", 3)
    assert states["open"].verdict.level == pytest.approx(1 - 0.05 * 39 / 64 / 2)
    settled = states_of({"other": around(0.5, 0.001), "open": around(0.1, 1)}, margin=1.0)
    assert settled["other"].verdict.kind == "equivalent"  # and clear of 0
    assert settled["open"].verdict.level == pytest.approx(1 - 0.05 * 39 / 64)


def test_a_single_look_equals_decide() -> None:
    family = {"clear": around(-9, 1), "same": around(0, 0.1), "open": around(0.5, 1)}
    paired = {
        name: PairedDifferences(differences=tuple(values), diverged=0, planned=8) for name, values in family.items()
    }
    expected = decide(paired, better="lower", margin=2.0)
    assert {name: state.verdict for name, state in states_of(family, margin=2.0, looks=(8,)).items()} == expected


@pytest.mark.parametrize("beyond", [0.0, 1e6])
def test_seeds_beyond_the_deciding_look_change_nothing(beyond: float) -> None:
    family = {"clear": [*around(-100, 1, 3), *repeat(beyond, 5)], "open": around(0.1, 1)}
    assert states_of(family)["clear"] == states_of({**family, "clear": around(-100, 1)})["clear"]


def test_a_pending_trial_delays_the_next_look_but_no_verdict() -> None:
    family = {"clear": around(-100, 1), "late": around(-100, 1), "open": around(0.1, 1)}
    states = states_of(family, pending={"late": 2})
    assert (states["clear"].verdict.kind, states["clear"].decided) == ("better", True)
    assert (states["open"].n, states["open"].seeds_needed, states["open"].decided) == (3, 3, False)
    late = states["late"]
    assert (late.n, late.seeds_needed, late.decided, late.verdict.difference) == (0, 3, False, None)
    assert late.verdict.text == "inconclusive as yet (next look at 3 seeds)"
    assert states_of(family)["clear"].verdict.kind == "better"  # what was said holds when the look is complete


def test_no_verdict_exists_before_the_first_look() -> None:
    state = states_of({"it": around(-100, 1)}, pending={"it": 0})["it"]
    assert (state.verdict.kind, state.n, state.seeds_needed, state.verdict.low) == ("inconclusive", 0, 3, None)


def test_an_open_variant_names_its_next_look() -> None:
    state = states_of({"it": around(0.5, 1)}, pending={"it": 4})["it"]
    assert (state.n, state.seeds_needed, state.decided) == (3, 5, False)
    assert state.verdict.text == "inconclusive as yet (next look at 5 seeds)"
    assert state.verdict.level == pytest.approx(1 - 0.05 * 9 / 64)


def test_a_variant_without_a_record_is_skipped_until_the_last_look() -> None:
    state = states_of({"it": around(-100, 1)}, missing=[("it", 1)])["it"]
    assert (state.verdict.kind, state.n, state.verdict.n) == ("better", 8, 7)


def test_diverged_and_withheld_variants_stop_and_free_no_alpha() -> None:
    def look(name: str, n: int) -> LookData:
        values = tuple(around(-100, 1, n)) if name == "withheld" else tuple(around(0.1, 1, n))
        if name == "open":
            return LookData(
                paired=PairedDifferences(differences=values, diverged=0, planned=n), ended=True, has_all_records=True
            )
        if name == "withheld":
            return LookData(
                paired=PairedDifferences(differences=(), diverged=0, planned=n),
                ended=True,
                has_all_records=True,
                withheld=True,
            )
        return LookData(
            paired=PairedDifferences(differences=values[1:], diverged=1, planned=n), ended=True, has_all_records=True
        )

    states = decide_sequentially(["diverged", "withheld", "open"], look, looks=LOOKS, better="lower", margin=None)
    assert (states["diverged"].verdict.text, states["diverged"].seeds_needed) == ("diverged 1/3", 3)
    assert (states["withheld"].decided, states["withheld"].seeds_needed) == (True, 3)
    assert states["open"].verdict.level == pytest.approx(1 - 0.05 * 39 / 64 / 3)


# ------------------------------------------------------------------------------------------------ what is promised
def is_wrong(verdict: Verdict, truth: float, margin: float | None) -> bool:
    claims = {"better": truth >= 0, "worse": truth <= 0, "equivalent": abs(truth) >= (margin or 0)}
    return claims.get(verdict.kind, False)


def simulated(
    truths: Sequence[float], sds: Sequence[float], margin: float | None, studies: int = STUDIES
) -> tuple[float, float]:
    """Return the share of studies with a wrong claim, and the share of trials that early stopping saved."""
    draw = random.Random(f"{truths} {sds} {margin}")
    wrong = ran = 0
    for _ in range(studies):
        shared = [draw.gauss(0, 1) for _ in range(LOOKS[-1])]
        family = {
            str(place): [truth + draw.gauss(0, sd) - value for value in shared]
            for place, (truth, sd) in enumerate(zip(truths, sds, strict=True))
        }
        states = states_of(family, margin=margin)
        wrong += any(
            is_wrong(state.verdict, truth, margin) for state, truth in zip(states.values(), truths, strict=True)
        )
        ran += sum(state.seeds_needed for state in states.values()) + max(
            state.seeds_needed for state in states.values()
        )
    return wrong / studies, 1 - ran / (studies * LOOKS[-1] * (len(truths) + 1))


CASES = [
    ((0, 0, 0, 0), (1, 1, 1, 1), None),
    (
        (60, 60, 0, 0),
        (1, 1, 1, 1),
        None,
    ),  # what is settled early frees error for the others, and must not free too much
    ((2, -2, 2, 0), (0.1, 0.1, 0.1, 5), 2.0),
    ((60, 0.1, -2, 0), (1, 1, 1, 1), 2.0),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("truths", "sds", "margin"), CASES)
def test_the_error_rate_holds_over_all_looks_and_variants(
    truths: Sequence[float], sds: Sequence[float], margin: float | None
) -> None:
    assert simulated(truths, sds, margin)[0] <= 0.06


@pytest.mark.slow
@pytest.mark.parametrize(("truths", "sds", "margin"), CASES)
def test_the_error_rate_holds_in_many_more_studies(
    truths: Sequence[float], sds: Sequence[float], margin: float | None
) -> None:
    assert simulated(truths, sds, margin, 8_000)[0] <= 0.054


def in_settings(truths: Sequence[float], correlation: float, studies: int) -> float:
    """Return the share of studies of two settings with a wrong claim; the noise of both is correlated."""
    draw = random.Random(f"{truths} {correlation}")
    wrong = 0
    for _ in range(studies):
        base = [draw.gauss(0, 1) for _ in range(LOOKS[-1])]
        shared_noise = [[draw.gauss(0, 1) for _ in range(LOOKS[-1])] for _ in truths]
        family = {
            (setting, place): [
                truth + correlation * common + (1 - correlation**2) ** 0.5 * draw.gauss(0, 1) - value
                for common, value in zip(shared_noise[place], base, strict=True)
            ]
            for setting in range(2)
            for place, truth in enumerate(truths)
        }

        def look(name: tuple[int, int], n: int, family: Mapping[tuple[int, int], Sequence[float]] = family) -> LookData:
            return LookData(
                paired=PairedDifferences(differences=tuple(family[name][:n]), diverged=0, planned=n),
                ended=True,
                has_all_records=True,
            )

        states = decide_sequentially(list(family), look, looks=LOOKS, better="lower", margin=None)
        wrong += any(is_wrong(state.verdict, truths[place], None) for (_, place), state in states.items())
    return wrong / studies


@pytest.mark.thorough
@pytest.mark.parametrize("alike", [0.0, 0.9])
def test_the_error_rate_holds_over_several_settings(alike: float) -> None:
    assert in_settings((0, 0), alike, 200) <= 0.07


@pytest.mark.slow
@pytest.mark.parametrize(("truths", "alike"), [((0, 0), 0.0), ((0, 0), 0.9), ((60, 0), 0.5), ((0, 0), 1.0)])
def test_the_error_rate_holds_over_several_settings_in_many_studies(truths: Sequence[float], alike: float) -> None:
    assert in_settings(truths, alike, 3_000) <= 0.054


@pytest.mark.thorough
def test_large_effects_save_trials_and_null_effects_save_few() -> None:
    _, spared = simulated((60, -60, 60, -60), (1, 1, 1, 1), None, 100)
    assert spared > 0.55  # 62 of 100
    _, without = simulated((0, 0, 0, 0), (1, 1, 1, 1), None, 100)
    assert without < 0.02


@pytest.mark.thorough
def test_looks_at_full_alpha_exceed_the_error_rate() -> None:
    draw = random.Random(0)
    wrong = 0
    for _ in range(300):
        values = [draw.gauss(0, 1) for _ in range(20)]
        looks = (
            decide(
                {"it": PairedDifferences(differences=tuple(values[:n]), diverged=0, planned=n)},
                better="lower",
                margin=None,
            )
            for n in (3, 5, 8, 12, 20)
        )
        wrong += any(verdicts["it"].kind in FINAL_KINDS for verdicts in looks)
    assert wrong / 300 > 0.09
