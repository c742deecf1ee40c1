"""Verdicts: symmetry, independence of order and unit, and the error rate of 5 %."""

import itertools
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.analysis.outliers import outliers, sign_flip_interval, sign_flip_p
from paribus.analysis.p_values import holm, interval, seeds_needed
from paribus.analysis.verdict_words import MAX_SEEDS, MIN_PAIRS_FOR_ESTIMATE, Kind
from paribus.analysis.verdicts import PairedDifferences, Verdict, decide

STUDIES = 1000  # of each simulation
MIRRORED: dict[Kind, Kind] = {"better": "worse", "worse": "better"}


def paired(
    *differences: float, diverged: int = 0, baseline_diverged: int = 0, planned: int | None = None
) -> PairedDifferences:
    minimum = len(differences) + max(diverged, baseline_diverged)
    return PairedDifferences(
        differences=differences,
        diverged=diverged,
        baseline_diverged=baseline_diverged,
        planned=minimum if planned is None else planned,
    )


def with_moments(n: int, mean: float, sd: float) -> PairedDifferences:
    """Return n differences of this mean and standard deviation."""
    shape = [float(index) for index in range(n)]
    middle, spread = statistics.mean(shape), statistics.stdev(shape)
    return paired(*(mean + sd * (value - middle) / spread for value in shape))


def alone(comparison: PairedDifferences, *, margin: float | None = None, alpha: float = 0.05) -> Verdict:
    """The verdict on a variant that is the only one of its study, where lower is better."""
    return decide({"it": comparison}, better="lower", margin=margin, alpha=alpha)["it"]


def mirror(comparison: PairedDifferences) -> PairedDifferences:
    """The same study with baseline and variant exchanged."""
    return PairedDifferences(
        differences=tuple(-difference for difference in comparison.differences),
        diverged=comparison.baseline_diverged,
        baseline_diverged=comparison.diverged,
        planned=comparison.planned,
    )


sizes = st.floats(-8, 8).map(lambda value: round(value, 3))
shapes = st.tuples(sizes, st.sampled_from([0.0, 0.1, 1.0]), st.lists(sizes, max_size=7))
finished = shapes.map(lambda shape: tuple(shape[0] + shape[1] * value for value in shape[2]))
comparisons = st.builds(
    lambda differences, diverged, baseline_diverged: paired(
        *differences, diverged=diverged, baseline_diverged=baseline_diverged
    ),
    finished,
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from([0, 0, 0, 1]),
)
families = st.dictionaries(st.sampled_from("abcdef"), comparisons, max_size=5)
margins = st.none() | st.sampled_from([0.25, 1.0, 4.0])


# ---------------------------------------------------------------------------------------------- what always holds
@given(family=families, margin=margins)
@settings(max_examples=50)
def test_exchanging_baseline_and_variant_mirrors_the_verdict(
    family: dict[str, PairedDifferences], margin: float | None
) -> None:
    forward = decide(family, better="lower", margin=margin)
    exchanged = decide({name: mirror(comparison) for name, comparison in family.items()}, better="lower", margin=margin)
    for name, verdict in forward.items():
        assert exchanged[name].kind == MIRRORED.get(verdict.kind, verdict.kind)
        assert (exchanged[name].n, exchanged[name].p, exchanged[name].needs) == (verdict.n, verdict.p, verdict.needs)
        assert exchanged[name].level == verdict.level
        if verdict.difference is not None:
            assert exchanged[name].difference == -verdict.difference
        if verdict.low is not None and verdict.high is not None:
            assert (exchanged[name].low, exchanged[name].high) == (-verdict.high, -verdict.low)


@given(family=families, margin=margins)
@settings(max_examples=50)
def test_higher_is_better_reverses_the_verdicts(family: dict[str, PairedDifferences], margin: float | None) -> None:
    lower, higher = decide(family, better="lower", margin=margin), decide(family, better="higher", margin=margin)
    assert [MIRRORED.get(verdict.kind, verdict.kind) for verdict in lower.values()] == [
        verdict.kind for verdict in higher.values()
    ]


@given(family=families, margin=margins, draw=st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_the_order_of_the_variants_does_not_matter(
    family: dict[str, PairedDifferences], margin: float | None, draw: random.Random
) -> None:
    names = list(family)
    draw.shuffle(names)
    shuffled = decide({name: family[name] for name in names}, better="lower", margin=margin)
    assert list(shuffled) == names
    assert shuffled == decide(family, better="lower", margin=margin)


@given(family=families, margin=margins, power=st.integers(-20, 20))
@settings(max_examples=50)
def test_the_unit_of_the_metric_does_not_matter(
    family: dict[str, PairedDifferences], margin: float | None, power: int
) -> None:
    unit = 2.0**power
    scaled = {
        name: PairedDifferences(
            differences=tuple(unit * difference for difference in comparison.differences),
            diverged=comparison.diverged,
            baseline_diverged=comparison.baseline_diverged,
            planned=comparison.planned,
        )
        for name, comparison in family.items()
    }
    rescaled = decide(scaled, better="lower", margin=None if margin is None else unit * margin)
    original = decide(family, better="lower", margin=margin)
    assert [verdict.text for verdict in rescaled.values()] == [verdict.text for verdict in original.values()]


@given(family=families, margin=margins, alpha=st.sampled_from([0.01, 0.05, 0.2]))
@settings(max_examples=50)
def test_a_verdict_follows_from_its_interval(
    family: dict[str, PairedDifferences], margin: float | None, alpha: float
) -> None:
    for name, verdict in decide(family, better="lower", margin=margin, alpha=alpha).items():
        summary, bounds = family[name].summary, None
        if summary:
            bounds = interval(summary, 1 - verdict.level)
        if bounds and family[name].outliers:
            flipped = sign_flip_interval(family[name].differences, 1 - verdict.level)
            bounds = (min(bounds[0], flipped[0]), max(bounds[1], flipped[1])) if flipped else None
        is_identical = len(family[name].differences) > 1 and set(family[name].differences) == {0.0}
        if bounds is None:
            assert verdict.low is verdict.high is None
            assert verdict.kind in ("identical" if is_identical else "inconclusive", "diverged")
            continue
        assert (verdict.low, verdict.high) == pytest.approx(bounds)
        low, high = bounds
        inside = margin is not None and -margin < low and high < margin
        expected = "equivalent" if inside else "better" if high < 0 else "worse" if low > 0 else "inconclusive"
        expected = "identical" if is_identical else expected
        assert verdict.kind == ("diverged" if "diverged" in verdict.text else expected)


@given(family=families, margin=margins, alpha=st.sampled_from([0.01, 0.05, 0.2]))
@settings(max_examples=50)
def test_the_corrected_p_value_is_at_most_alpha_exactly_where_the_interval_excludes_0(
    family: dict[str, PairedDifferences], margin: float | None, alpha: float
) -> None:
    for verdict in decide(family, better="lower", margin=margin, alpha=alpha).values():
        if verdict.p is not None:
            excludes = verdict.low is not None and verdict.high is not None and not verdict.low <= 0 <= verdict.high
            assert (verdict.p <= alpha) == excludes


@given(family=st.lists(finished.filter(lambda it: len(it) > 1 and max(it) - min(it) > 1e-3), min_size=1, max_size=5))
@settings(max_examples=50)
def test_without_a_margin_the_p_values_are_those_of_holm_on_the_paired_t_tests_of_scipy(
    family: list[tuple[float, ...]],
) -> None:
    verdicts = decide(
        {str(i): paired(*differences) for i, differences in enumerate(family)}, better="lower", margin=None
    )
    p_values = [scipy.stats.ttest_1samp(differences, 0).pvalue for differences in family]
    flipped = [sign_flip_p(differences) if outliers(differences) else 0 for differences in family]
    steps = holm(list(map(max, p_values, flipped)), 0.05)
    for verdict, step in zip(verdicts.values(), steps, strict=True):
        assert verdict.p == pytest.approx(step.adjusted, rel=1e-6, abs=1e-12)
    # Rounding decides the order of variants with equal p-values, such as those with the same differences.
    levels = sorted(verdict.level for verdict in verdicts.values())
    assert levels == pytest.approx(sorted(1 - step.alpha for step in steps))


@given(family=families)
@settings(max_examples=50)
def test_nothing_is_equivalent_unless_the_study_states_a_margin(family: dict[str, PairedDifferences]) -> None:
    assert all("equivalent" not in verdict.text for verdict in decide(family, better="lower", margin=None).values())


@given(comparison=finished, shift=st.floats(0, 20), margin=margins)
@settings(max_examples=50)
def test_more_of_a_gain_never_makes_a_verdict_worse(
    comparison: tuple[float, ...], shift: float, margin: float | None
) -> None:
    rank = {"worse": 0, "inconclusive": 1, "equivalent": 1, "identical": 1, "better": 2}
    original = alone(paired(*comparison), margin=margin)
    shifted = alone(paired(*(difference - shift for difference in comparison)), margin=margin)
    assert rank[shifted.kind] >= rank[original.kind]


@given(family=families, margin=margins)
@settings(max_examples=50)
def test_every_verdict_is_of_a_kind_and_its_text_begins_with_it(
    family: dict[str, PairedDifferences], margin: float | None
) -> None:
    for verdict in decide(family, better="lower", margin=margin).values():
        assert verdict.kind in get_args(Kind)
        assert verdict.text.removeprefix("baseline ").startswith(verdict.kind)


# ------------------------------------------------------------------------------------------------ what each kind is
def test_a_clear_gain_is_better_and_a_clear_loss_is_worse() -> None:
    assert alone(with_moments(5, -1, 0.1)).text == "better"
    assert alone(with_moments(5, 1, 0.1)).text == "worse"


def test_a_difference_inside_the_margin_is_equivalent_even_where_it_is_certain() -> None:
    certain = with_moments(5, -1, 0.1)
    assert alone(certain, margin=1.2).text == "equivalent"
    assert alone(certain, margin=1.2).p == alone(certain).p
    assert alone(certain, margin=1.1).text == "better"  # perhaps by less than the margin
    assert alone(with_moments(5, 0, 1), margin=1.2).kind == "inconclusive"


@given(mean=st.floats(-3, 3), sd=st.floats(0.5, 3), margin=st.none() | st.sampled_from([0.5, 2.0]))
@settings(max_examples=50)
def test_the_stated_seeds_are_the_fewest_that_settle_it(mean: float, sd: float, margin: float | None) -> None:
    verdict = alone(with_moments(4, mean, sd), margin=margin)
    if verdict.kind != "inconclusive" or verdict.needs is None or verdict.needs > 400:
        return
    assert verdict.needs_range is not None
    low, high = verdict.needs_range
    assert low <= verdict.needs <= (high or MAX_SEEDS)
    assert verdict.text.startswith(f"inconclusive (needs n ≥ ~{verdict.needs} [{low}, ")
    assert alone(with_moments(verdict.needs, mean, sd), margin=margin).kind != "inconclusive"
    assert alone(with_moments(verdict.needs - 1, mean, sd), margin=margin).kind == "inconclusive"


def test_very_large_seed_counts_are_not_stated() -> None:
    verdict = alone(with_moments(5, 1e-4, 1))
    assert (verdict.text, verdict.needs) == ("inconclusive (needs n > 10,000)", None)
    assert MAX_SEEDS == 10_000


@pytest.mark.parametrize("n", range(5))
def test_needed_seeds_are_estimated_from_three_pairs(n: int) -> None:
    verdict = alone(paired(*[0.1, -0.1, 0.2, -0.15][:n], planned=5))
    guessed = n >= MIN_PAIRS_FOR_ESTIMATE == 3
    assert (verdict.needs is not None) == guessed
    assert verdict.text.startswith("inconclusive (needs n " if guessed else f"inconclusive (too few seeds: n = {n})")


@pytest.mark.parametrize("differences", [(), (-100.0,)])
@pytest.mark.parametrize("margin", [None, 1.0, 1000.0])
def test_less_than_two_pairs_prove_nothing(differences: tuple[float, ...], margin: float | None) -> None:
    verdict = alone(paired(*differences, planned=5), margin=margin)
    assert verdict.text == f"inconclusive (too few seeds: n = {len(differences)})"
    assert verdict.low is verdict.high is verdict.p is None
    assert verdict.difference == (differences[0] if differences else None)
    assert (verdict.n, verdict.dropped) == (len(differences), 5 - len(differences))


@pytest.mark.parametrize("n", range(2, 9))
def test_equal_differences_are_judged_by_the_sign_test(n: int) -> None:
    verdict = alone(paired(*[-0.5] * n))
    assert verdict.p == 2.0 ** (1 - n)
    assert verdict.text == (
        "better" if n >= 6 else f"inconclusive (too few seeds: n = {n})" if n < 3 else "inconclusive (needs n ≥ ~6)"
    )
    assert (verdict.low, verdict.high) == ((-0.5, -0.5) if n >= 6 else (None, None))


def test_a_swap_without_differences_is_not_better_or_worse() -> None:
    nothing = paired(*[0.0] * 6)
    assert alone(nothing).text == "identical (in all 6 pairs)"
    assert alone(nothing).needs is None
    assert alone(nothing).p == 1
    assert alone(nothing, margin=0.1).kind == "identical"
    assert alone(paired(*[0.0] * 5), margin=0.1).text == "identical (in all 5 pairs)"
    assert alone(paired(0.0)).kind == "inconclusive"
    assert alone(paired(*[0.0] * 5, 1e-300)).kind == "inconclusive"


def test_a_study_of_no_variants_has_no_verdicts() -> None:
    assert decide({}, better="lower", margin=None) == {}


# -------------------------------------------------------------------------------------------------------- divergence
@pytest.mark.parametrize("margin", [None, 1000.0])
def test_a_diverged_variant_shows_finished_seeds_and_is_never_better(margin: float | None) -> None:
    verdict = alone(paired(-100.0, -101.0, -102.0, diverged=2), margin=margin)
    assert (verdict.kind, verdict.text) == ("diverged", "diverged 2/5")
    assert (verdict.n, verdict.dropped, verdict.difference) == (3, 2, -101)
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.low < -101 < verdict.high
    assert verdict.p is verdict.needs is None


def test_a_variant_that_always_diverged_has_a_verdict() -> None:
    verdict = alone(paired(diverged=5))
    assert verdict.text == "diverged 5/5"
    assert verdict.n == 0
    assert verdict.difference is verdict.low is verdict.high is verdict.p is None


def test_a_baseline_that_diverged_is_named_as_such() -> None:
    assert alone(paired(1.0, 1.1, 1.2, baseline_diverged=2)).text == "baseline diverged 2/5"
    both = paired(1.0, 1.1, diverged=3, baseline_diverged=1)
    assert alone(both).text == "diverged 3/5, baseline diverged 1/5"
    assert alone(both).kind == "diverged"


def test_unpaired_seeds_are_counted() -> None:
    assert alone(paired(1.0, 1.1, 1.2, planned=5)).dropped == 2
    assert alone(paired(1.0, 1.1, 1.2)).dropped == 0


# -------------------------------------------------------------------------------------------------------- the family
def test_each_variant_has_the_level_of_its_decision() -> None:
    family = {
        "unsure": with_moments(5, 0.1, 1),
        "clear": with_moments(5, -9, 1),
        "clearest": with_moments(5, -90, 1),
        "unsure too": with_moments(5, 0.2, 1),
    }
    levels = {name: verdict.level for name, verdict in decide(family, better="lower", margin=None).items()}
    expected = {"clearest": 1 - 0.05 / 4, "clear": 1 - 0.05 / 3, "unsure": 1 - 0.05 / 2, "unsure too": 1 - 0.05 / 2}
    assert levels == pytest.approx(expected)


def test_needed_seeds_use_the_level_of_the_decision() -> None:
    doubtful = with_moments(5, -1, 1)
    assert doubtful.summary is not None
    verdict = decide({"it": doubtful, "other": with_moments(5, 0.1, 1)}, better="lower", margin=None)["it"]
    assert verdict.needs == seeds_needed(doubtful.summary, alpha=0.025)
    assert verdict.needs is not None
    assert verdict.needs > (alone(doubtful).needs or 0)


def test_with_a_margin_only_settled_variants_free_alpha() -> None:
    unsure, margin = with_moments(5, 0.5, 2), 2.0

    def level(settled: PairedDifferences) -> float:
        return decide({"unsure": unsure, "other": settled}, better="lower", margin=margin)["unsure"].level

    assert level(with_moments(5, -90, 1)) == pytest.approx(0.95)  # beyond the margin
    assert level(with_moments(5, -1, 0.1)) == pytest.approx(0.95)  # inside it, and clear of 0
    assert level(with_moments(5, -2, 0.1)) == pytest.approx(0.975)  # better, by less than the margin or by more
    assert level(with_moments(5, 0, 0.1)) == pytest.approx(0.975)  # equivalent, of either sign


@pytest.mark.parametrize("idle", [paired(-100.0, -100.1, -100.2, diverged=1), paired(-100.0), paired(diverged=3)])
def test_a_variant_without_a_claim_frees_no_alpha(idle: PairedDifferences) -> None:
    family = {"idle": idle, "unsure": with_moments(5, 0.1, 1)}
    assert decide(family, better="lower", margin=None)["unsure"].level == pytest.approx(0.975)


def claims_what_is_not_so(verdict: Verdict, truth: float, margin: float | None) -> bool:
    return {
        "better": truth >= 0,
        "worse": truth <= 0,
        "equivalent": abs(truth) >= (margin or 0),
    }.get(verdict.kind, False)


def studies(
    seeds: int, truths: Sequence[float], spreads: Sequence[float], *, shared: float
) -> Iterator[Mapping[str, PairedDifferences]]:
    """Studies whose variants share the trials of their baseline, whose spread is `shared`."""
    draw = random.Random(f"{seeds} {truths}")
    for _ in range(STUDIES):
        baseline = [draw.gauss(0, shared) for _ in range(seeds)]
        yield {
            str(index): paired(*(truth + draw.gauss(0, spread) - value for value in baseline))
            for index, (truth, spread) in enumerate(zip(truths, spreads, strict=True))
        }


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("seeds", "truths", "spreads", "margin"),
    [
        (3, (0, 0, 0, 0), (1, 1, 1, 1), None),
        (5, (0, 0, 0, 0), (1, 1, 1, 1), None),
        (8, (0, 0, 0, 0), (1, 1, 1, 1), None),
        (5, (9, 9, 0, 0), (1, 1, 1, 1), None),  # Holm's steps are taken, and must not be too many
        (5, (2, 2, 2, 0), (0.1, 0.1, 0.1, 5), 2.0),  # at the margin, and clearly unequal 0
        (8, (-2, 0.1, 1.9, 9), (1, 1, 1, 1), 2.0),  # and between the decision points
    ],
)
def test_four_variants_with_a_shared_baseline_keep_the_error_rate(
    seeds: int, truths: tuple[float, ...], spreads: tuple[float, ...], margin: float | None
) -> None:
    wrong = 0
    for family in studies(seeds, truths, spreads, shared=spreads[0]):
        verdicts = decide(family, better="lower", margin=margin)
        wrong += any(map(claims_what_is_not_so, verdicts.values(), truths, itertools.repeat(margin)))
    assert wrong / STUDIES <= 0.06


@pytest.mark.thorough
def test_uncorrected_verdicts_exceed_the_error_rate() -> None:
    wrong = sum(
        any(alone(comparison).kind != "inconclusive" for comparison in family.values())
        for family in itertools.islice(studies(5, (0, 0, 0, 0), (1, 1, 1, 1), shared=1), 300)
    )
    assert wrong / 300 > 0.1


# ---------------------------------------------------------------------------------------------------- what is refused
def test_a_direction_that_is_neither_lower_nor_higher_is_refused() -> None:
    with pytest.raises(ValueError, match="`better` must be `lower` or `higher`, but is 'less'"):
        decide({}, better="less", margin=None)  # type: ignore[arg-type]  # as from an unchecked file


@pytest.mark.parametrize("margin", [0, -1, math.nan, math.inf])
def test_a_margin_that_is_not_positive_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="`margin` must be positive and finite, but is"):
        decide({}, better="lower", margin=margin)


def test_an_alpha_outside_0_and_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`alpha` must lie between 0 and 1, but is 1\.5"):
        decide({}, better="lower", margin=None, alpha=1.5)


def test_a_negative_count_of_divergence_is_refused() -> None:
    with pytest.raises(ValueError, match="`diverged` and `baseline_diverged` must be 0 or more, but are -1 and 0"):
        PairedDifferences(differences=(), diverged=-1, planned=5)


def test_fewer_planned_seeds_than_results_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`planned` must be at least 3, the pairs that finished .*, but is 2"):
        PairedDifferences(differences=(1.0, 2.0), diverged=1, planned=2)


def test_a_difference_that_is_not_a_number_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="hold nan; such a trial diverged"):
        PairedDifferences(differences=(1.0, math.nan), diverged=0, planned=2)
