"""Coverage and false positives on differences of real trials: a tiny encoder, 48 seeds, five swaps.

The trials are those of `benchmarks/studies/coverage.yaml`. A study is a few of the seeds, drawn without replacement and
shared by all variants, whose differences are centred on what all 48 come to: then nothing differs, and only their shape
is what trials have. A mean of n of N draws strays from that centre by sqrt(1 - n/N) less than from a truth; it is put
back, for which Student's t is exact where the 48 are normal. (Drawn with replacement it is not: the same seed twice has
no spread, and even normal pools of 48 have 6.6 % of false positives at three seeds.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paribus.analysis.early_stopping import LookData, decide_sequentially
from paribus.analysis.p_values import t_quantile
from paribus.analysis.verdict_words import Kind
from paribus.analysis.verdicts import PairedDifferences, Verdict, decide

Floats = NDArray[np.float64]
FILE = Path(__file__).parents[4] / "benchmarks" / "results" / "trials" / "coverage.json"
FOUR = ("attention=mqa", "attention=restricted(window=4)", "norm=rmsnorm", "dropout=0.1")
SAME = "norm.eps=1e-06"  # a swap that cannot matter: what differs is what rounding grows to
SIZES = (3, 5, 8)
MARGIN = 0.02
STUDIES = 400


@pytest.fixture(scope="module")
def trials() -> dict[str, Floats]:
    """The metric by variant, seed after seed."""
    metric_values: dict[str, dict[str, float]] = json.loads(FILE.read_text())["values"]
    return {
        name: np.array([values_by_seed[seed] for seed in sorted(values_by_seed, key=int)])
        for name, values_by_seed in metric_values.items()
    }


def differences(trials: dict[str, Floats], names: Sequence[str] = FOUR) -> Floats:
    """Seeds by variants, with a mean of 0."""
    paired = np.stack([trials[name] - trials["baseline"] for name in names], axis=1)
    return np.asarray(paired - paired.mean(axis=0), dtype=np.float64)


def drawn(pool: Floats, n: int, studies: int, seed: int = 0) -> Floats:
    """Studies of n seeds each: studies by seeds by variants."""
    order = np.random.default_rng(seed).random((studies, len(pool))).argsort(axis=1)[:, :n]
    sampled = pool[order]
    correction = 1 / math.sqrt(1 - n / len(pool)) - 1
    return np.asarray(sampled + correction * sampled.mean(axis=1, keepdims=True), dtype=np.float64)


def covered(samples: Floats, alpha: float = 0.05) -> Floats:
    """Return the share of intervals that contain the true difference 0, by variant."""
    n = samples.shape[1]
    half = -t_quantile(alpha / 2, n - 1) * samples.std(axis=1, ddof=1) / math.sqrt(n)
    return np.asarray((np.abs(samples.mean(axis=1)) <= half).mean(axis=0), dtype=np.float64)


def is_wrong(verdict: Verdict, truth: float, margin: float | None) -> bool:
    claims = {"better": truth >= 0, "worse": truth <= 0, "equivalent": abs(truth) >= (margin or 0)}
    return claims.get(verdict.kind, False)


def decided(samples: Floats, truths: Sequence[float], margin: float | None) -> Iterator[list[Verdict]]:
    """The verdicts of each study."""
    for study in samples + np.asarray(truths):
        family = {
            str(place): PairedDifferences(differences=tuple(map(float, column)), diverged=0, planned=len(column))
            for place, column in enumerate(study.T)
        }
        yield list(decide(family, better="lower", margin=margin).values())


def false_positives(pool: Floats, n: int, truths: Sequence[float], margin: float | None, studies: int) -> float:
    wrong = (
        any(is_wrong(verdict, truth, margin) for verdict, truth in zip(verdicts, truths, strict=True))
        for verdicts in decided(drawn(pool, n, studies), truths, margin)
    )
    return sum(wrong) / studies


CASES: list[tuple[Any, float | None]] = [
    ((0, 0, 0, 0), None),
    ((0, 0, 0, 0), MARGIN),
    ((MARGIN, -MARGIN, MARGIN, -MARGIN), MARGIN),  # where `equivalent` would be wrong
    ((0, MARGIN, 1, -1), MARGIN),  # where two are settled, and ease the level of the others
]


def test_the_stored_trials_are_complete(trials: dict[str, Floats]) -> None:
    assert {len(values) for values in trials.values()} == {48}
    assert set(trials) == {"baseline", *FOUR, SAME}
    document = json.loads(FILE.read_text())
    maximum = max(float(values.max()) for values in trials.values())
    assert maximum < document["unigram_baseline"]  # all of them have learned
    assert len(document["commit"]) == 40


@pytest.mark.parametrize("n", SIZES)
def test_a_95_percent_interval_covers_in_93_of_100_studies_or_more(trials: dict[str, Floats], n: int) -> None:
    assert covered(drawn(differences(trials, (*FOUR, SAME)), n, 20_000)).min() >= 0.93


@pytest.mark.parametrize("n", SIZES)
def test_an_interval_covers_for_seeds_that_are_not_paired(trials: dict[str, Floats], n: int) -> None:
    half = trials["baseline"].reshape(2, -1)  # an A/A: the baseline against itself, on other seeds
    between = (half[0] - half[1])[:, None]
    assert covered(drawn(np.asarray(between - between.mean(axis=0)), n, 20_000)).min() >= 0.93


@pytest.mark.few(1)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("truths", "margin"), CASES)
def test_a_study_of_four_variants_keeps_the_error_rate(
    trials: dict[str, Floats], n: int, truths: Sequence[float], margin: float | None
) -> None:
    assert false_positives(differences(trials), n, truths, margin, STUDIES) <= 0.06


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("truths", "margin"), CASES)
def test_the_error_rate_holds_in_many_more_studies(
    trials: dict[str, Floats], n: int, truths: Sequence[float], margin: float | None
) -> None:
    assert false_positives(differences(trials), n, truths, margin, 20_000) <= 0.055


@pytest.mark.thorough
@pytest.mark.parametrize(("truths", "margin"), CASES)
def test_early_stopping_keeps_the_error_rate(
    trials: dict[str, Floats], truths: Sequence[float], margin: float | None
) -> None:
    wrong, studies = 0, 150
    for study in drawn(differences(trials), 8, studies) + np.asarray(truths):
        rows = [tuple(map(float, column)) for column in study.T]

        def look(name: str, n: int, rows: Sequence[tuple[float, ...]] = tuple(rows)) -> LookData:
            paired = PairedDifferences(differences=rows[int(name)][:n], diverged=0, planned=n)
            return LookData(paired=paired, ended=True, has_all_records=True)

        states = decide_sequentially(list("0123"), look, looks=SIZES, better="lower", margin=margin)
        wrong += any(
            is_wrong(state.verdict, truth, margin) for state, truth in zip(states.values(), truths, strict=True)
        )
    assert wrong / studies <= 0.06


@pytest.mark.few(1)
@pytest.mark.parametrize("n", SIZES)
def test_a_null_difference_gets_no_verdict(trials: dict[str, Floats], n: int) -> None:
    kinds: list[Kind] = [
        verdict.kind
        for verdicts in decided(drawn(differences(trials), n, 400), (0, 0, 0, 0), None)
        for verdict in verdicts
    ]
    assert kinds.count("inconclusive") / len(kinds) >= 0.98


@pytest.mark.parametrize("n", SIZES)
def test_a_null_swap_is_inconclusive_or_equivalent(trials: dict[str, Floats], n: int) -> None:
    paired = PairedDifferences(
        differences=tuple((trials[SAME] - trials["baseline"])[:n].tolist()), diverged=0, planned=n
    )
    assert decide({"it": paired}, better="lower", margin=None)["it"].kind == "inconclusive"
    assert decide({"it": paired}, better="lower", margin=MARGIN)["it"].kind == "equivalent"


def test_swaps_with_an_effect_are_detected(trials: dict[str, Floats]) -> None:
    family = {
        name: PairedDifferences(
            differences=tuple((trials[name] - trials["baseline"])[:8].tolist()), diverged=0, planned=8
        )
        for name in (*FOUR, SAME)
    }
    verdicts = decide(family, better="lower", margin=None)
    assert verdicts["attention=restricted(window=4)"].kind == "better"
    assert verdicts["dropout=0.1"].kind == "worse"
    assert verdicts[SAME].kind == "inconclusive"
