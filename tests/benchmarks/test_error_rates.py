"""The simulated procedures are those of Paribus, and the page shows their figures."""

import numpy as np
import pytest
from benchmarks.error_rates import (
    PAGE,
    SEEDS,
    SHAPES,
    averaged,
    guarded,
    holm,
    outlying,
    peeked,
    question_coverage,
    rates,
    signal_coverage,
    student,
    studies,
    wrong,
)

from paribus.analysis.verdicts import PairedDifferences, decide


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("n", SEEDS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_simulation_claims_what_verdicts_claim(name: str, n: int) -> None:
    data = studies(name, n, 12) - np.array([0.0, 1.0, 2.0, 4.0])[None, :, None]
    rejected, level = holm(guarded(data))
    flagged = outlying(data)
    for study, family in enumerate(data.tolist()):
        comparisons = {
            place: PairedDifferences(differences=tuple(values), diverged=0, planned=n)
            for place, values in enumerate(family)
        }
        for place, verdict in decide(comparisons, better="lower", margin=None).items():
            assert (verdict.kind != "inconclusive") == rejected[study, place]
            assert verdict.level == pytest.approx(1 - level[study, place])
            assert bool(verdict.outliers) == flagged[study, place]


def test_the_page_has_the_figures_of_the_simulation() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"| {name} |" in text for name in SHAPES)
    for name in ("normal", "variants fail, equal means"):
        assert f"| {name} | {rates([wrong(studies(name, n), student) for n in SEEDS])} |" in text


def test_seeds_that_are_added_mislead_a_fixed_test_and_no_open_ended_one() -> None:
    assert peeked("normal", 12, open_ended=False) > 0.1
    assert peeked("normal", 12, open_ended=True) < 0.05


@pytest.mark.thorough
def test_the_page_has_the_figures_of_means_and_of_signals() -> None:
    text = PAGE.read_text(encoding="utf-8")
    figures = [wrong(averaged(1.0, 0.5, 3, n), guarded) for n in SEEDS]
    assert f"| 1 | 0.5 | 3 | {rates(figures)} |" in text
    assert max(figures) <= 0.05
    covered = [signal_coverage(0.5, 4, n)[0] for n in SEEDS]
    assert f"| 4 | 0.5 | {rates(covered)} |" in text
    assert 0.93 <= min(covered) <= max(covered) <= 0.97


@pytest.mark.thorough
def test_the_page_has_the_coverage_over_other_questions() -> None:
    both, seeds = (rates([share]) for share in question_coverage("questions", 50, SEEDS[0]))
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| questions | 50 |"))
    assert [cell.split(" · ")[0].strip() for cell in row.split("|")[3:5]] == [both, seeds]
