"""Error rates of verdicts for ten kinds of noise, by simulation; `make error-rates` writes docs/error-rates.md.

Each study has a baseline and four variants without any difference, so each `better` or `worse` is wrong. All procedures
judge the same studies. Some minutes on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from paribus.analysis.answers import answer_interval
from paribus.analysis.outliers import MAD_TO_SD, cutoffs
from paribus.analysis.p_values import critical_t
from paribus.analysis.power import power_to_detect
from paribus.analysis.signal_to_noise import signal_to_noise
from paribus.analysis.verdicts import PairedDifferences, decide
from paribus.analysis.worth import multiplier

Values = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Values]

PAGE: Final = Path(__file__).parent.parent / "docs" / "error-rates.md"
SEEDS: Final = (5, 8, 12)
VARIANTS, STUDIES, RESAMPLED, DRAWS = 4, 10_000, 1_000, 399
ALPHA: Final = 0.05
EFFECT: Final = 2.0  # of the tables of power and coverage, in standard deviations of a difference
ADDED, LIMITS = 4_000, (8, 12, 50, 200)  # studies to which seeds are added, and their last numbers of seeds
BUDGETS, MULTIPLIERS = (0.5, 0.71, 1.0, 1.41, 2.0), 4_000
RATE, SIZE = 0.1, 10.0  # of failing seeds
QUESTIONS, CROSSED, ABILITIES = (50, 200, 1000), 2_000, (0.8, 0.6)  # of right and wrong answers
# Standard deviations of seeds, questions and single answers of a variant; all share a difficulty with one of 1.
EFFECTS: Final = {"both": (0.3, 0.5, 0.7), "questions": (0.05, 0.7, 0.3), "seeds": (0.5, 0.1, 0.3)}


# ------------------------------------------------------------------------------------------------ noise
def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    return rng.normal(size=shape)


def failing(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """One seed in ten fails by ten standard deviations; the typical seed is at 0."""
    return rng.normal(size=shape) + SIZE * (rng.random(shape) < RATE)


def bimodal(rng: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Each seed ends in one of two basins, whose distance differs between variants."""
    distance = np.geomspace(0.5, 8, shape[1])[None, :, None] if shape[1] > 1 else 1.0
    return rng.normal(size=shape) + distance * rng.choice([-1.0, 1.0], size=shape)


# The noise of the variants, and that of the baseline.
SHAPES: Final[Mapping[str, tuple[Draw, Draw]]] = {
    "normal": (normal, normal),
    "t, 3 degrees of freedom": (lambda r, s: r.standard_t(3, size=s),) * 2,
    "Laplace": (lambda r, s: r.laplace(size=s),) * 2,
    "uniform": (lambda r, s: r.uniform(-1, 1, size=s),) * 2,
    "two basins, unequal spreads": (bimodal, bimodal),
    "skewed variants (lognormal)": (
        lambda r, s: np.exp(r.normal(size=s)) - np.exp(0.5),
        lambda r, s: 0.2 * r.normal(size=s),
    ),
    "variants fail, equal means": (lambda r, s: failing(r, s) - RATE * SIZE, normal),
    "variants fail, equal medians": (failing, normal),
    "baseline fails, equal means": (normal, lambda r, s: failing(r, s) - RATE * SIZE),
    "both fail": (failing, failing),
}


def studies(name: str, n: int, count: int = STUDIES) -> Values:
    """Return differences by study, variant and seed; the variants of a study share its baseline."""
    rng = np.random.default_rng([*name.encode(), n])
    of_variants, of_baseline = SHAPES[name]
    return of_variants(rng, (count, VARIANTS, n)) - of_baseline(rng, (count, 1, n))


# ------------------------------------------------------------------------------------------------ procedures
def student(x: Values) -> Values:
    """P-values of the paired t-test."""
    n = x.shape[-1]
    t = x.mean(-1) / x.std(-1, ddof=1) * np.sqrt(n)
    return 2 * scipy.stats.t.sf(abs(t), n - 1)  # type: ignore[no-any-return]  # scipy is not typed


def sign_flip(x: Values) -> Values:
    """P-values of the exact sign-flip test, as `paribus.analysis.outliers.sign_flip_p`."""
    n = x.shape[-1]
    signs = np.where(np.arange(2 ** (n - 1))[:, None] >> np.arange(n) & 1, -1.0, 1.0).astype(np.float32)
    flat = x.reshape(-1, n).astype(np.float32)
    p = [
        (abs(part @ signs.T) >= abs(part.sum(1))[:, None] * (1 - 1e-5)).mean(1)
        for part in np.array_split(flat, -(-len(flat) // 2000))
    ]
    return np.concatenate(p).reshape(x.shape[:-1])


def outlying(x: Values) -> NDArray[np.bool_]:
    """Samples with an outlier, as `paribus.analysis.outliers.outliers` of differences of which none are equal."""
    skewness, score = cutoffs(x.shape[-1])
    deviations = abs(x - np.median(x, -1, keepdims=True))
    centred = x - x.mean(-1, keepdims=True)
    skew = abs((centred**3).mean(-1)) / (centred**2).mean(-1) ** 1.5
    far = MAD_TO_SD * deviations.max(-1) > score * np.median(deviations, -1)
    either: NDArray[np.bool_] = far | (skew > skewness)
    return either


def guarded(x: Values) -> Values:
    """P-values of a verdict of Paribus: Student's t, and beside an outlier the sign-flip test as well."""
    p, flagged = student(x), outlying(x)
    if flagged.any():
        p[flagged] = np.maximum(p[flagged], sign_flip(x[flagged]))
    return p


def yuen(x: Values) -> Values:
    """P-values of Yuen's test of a mean from which a fifth of the seeds is trimmed on either side."""
    n = x.shape[-1]
    cut = int(0.2 * n)
    ordered = np.sort(x, -1)
    inner = np.clip(x, ordered[..., cut, None], ordered[..., n - cut - 1, None]).std(-1, ddof=1)
    t = ordered[..., cut : n - cut].mean(-1) * (1 - 2 * cut / n) * np.sqrt(n) / inner
    return 2 * scipy.stats.t.sf(abs(t), n - 2 * cut - 1)  # type: ignore[no-any-return]  # scipy is not typed


def bootstrap_t(x: Values) -> Values:
    """P-values of the symmetric bootstrap-t, of the first studies."""
    x = x[:RESAMPLED]
    rng, n = np.random.default_rng(x.shape[-1]), x.shape[-1]
    mean = x.mean(-1, keepdims=True)
    t = abs(mean[..., 0]) / x.std(-1, ddof=1)
    larger = np.zeros(t.shape)
    for _ in range(DRAWS):
        sample = np.take_along_axis(x, rng.integers(n, size=x.shape), -1) - mean
        spread = sample.std(-1, ddof=1)
        larger += abs(sample.mean(-1)) >= t * spread
    return (larger + 1) / (DRAWS + 1)


PROCEDURES: Final[Mapping[str, Callable[[Values], Values]]] = {
    "Student's t": student,
    "Paribus": guarded,
    "sign flips": sign_flip,
    "trimmed mean": yuen,
    "bootstrap-t": bootstrap_t,
}


def holm(p: Values) -> tuple[NDArray[np.bool_], Values]:
    """Return which hypotheses of each study Holm's procedure rejects, and the level that decided each."""
    order, m = np.argsort(p, 1), p.shape[1]
    levels = np.broadcast_to(ALPHA / (m - np.arange(m)), p.shape)
    passed = np.cumprod(np.take_along_axis(p, order, 1) <= levels, 1).astype(bool)
    stop = np.minimum(passed.sum(1), m - 1)
    decided = np.where(passed, levels, ALPHA / (m - stop)[:, None])
    rejected, level = np.empty_like(passed), np.empty_like(p)
    np.put_along_axis(rejected, order, passed, 1)
    np.put_along_axis(level, order, decided, 1)
    return rejected, level


# ------------------------------------------------------------------------------------------------ figures
def wrong(x: Values, procedure: Callable[[Values], Values]) -> float:
    """Return the share of studies with a wrong verdict."""
    return float(holm(procedure(x))[0].any(1).mean())


def wrong_unwarned(x: Values) -> float:
    """Return the share of studies with a wrong verdict and no outlier on the page."""
    return float((holm(guarded(x))[0].any(1) & ~outlying(x).any(1)).mean())


def power(n: int, procedure: Callable[[Values], Values]) -> float:
    """Return the share of variants that are told from the baseline, of normal differences."""
    x = studies("normal", n) / np.sqrt(2) + EFFECT
    return float(holm(procedure(x))[0].mean())


def coverage(n: int, effect: float) -> float:
    """Return the share of studies whose intervals, as shown, all cover the true difference; of normal differences."""
    x = studies("normal", n) / np.sqrt(2) + effect
    level = holm(student(x))[1]
    half = scipy.stats.t.isf(level / 2, n - 1) * x.std(-1, ddof=1) / np.sqrt(n)
    return float((abs(x.mean(-1) - effect) <= half).all(1).mean())


def settled(effect: float, n: int = 5, samples: int = 1500) -> tuple[float, float]:
    """Return the mean power of as many new seeds as an inconclusive verdict names, and of the end of its bracket."""
    rng = np.random.default_rng(n)
    found: list[tuple[float, float]] = []
    for sample in rng.normal(effect, 1, size=(samples, n)).tolist():
        paired = PairedDifferences(differences=tuple(sample), diverged=0, planned=n)
        verdict = decide({"it": paired}, better="lower", margin=None)["it"]
        if verdict.needs_range is not None and verdict.needs is not None:
            counts = (verdict.needs, verdict.needs_range[1] or 10_000)
            found.append((power_of(effect, min(counts[0], 400)), power_of(effect, min(counts[1], 400))))
    return float(np.mean([pair[0] for pair in found])), float(np.mean([pair[1] for pair in found]))


def power_of(effect: float, n: int) -> float:
    return _POWERS.setdefault((effect, n), power_to_detect(effect, 1.0, n, ALPHA))


_POWERS: dict[tuple[float, int], float] = {}


def multiplier_coverage(true: float, exponent: float, n: int) -> tuple[float, float]:
    """Return the share of studies whose interval covers a multiplier, and of those in which it has both ends.

    The baseline's loss is 2 + budget^-exponent. A seed shifts all of its trials by more than the noise of each.
    """
    rng = np.random.default_rng([n, int(100 * true), int(100 * exponent)])
    budgets = np.array(BUDGETS)
    shape = (MULTIPLIERS, n, 1)
    shifts = 2 + rng.normal(0, 0.03, shape)
    baseline = shifts + budgets**-exponent + rng.normal(0, 0.02, (MULTIPLIERS, n, len(budgets)))
    variant = (shifts + true**-exponent + rng.normal(0, 0.02, shape))[..., 0]
    covered = closed = 0
    for losses, own in zip(baseline, variant, strict=True):
        by_budget = {budget: dict(enumerate(losses[:, place].tolist())) for place, budget in enumerate(BUDGETS)}
        found = multiplier(by_budget, dict(enumerate(own.tolist())), better="lower", alpha=ALPHA)
        if found is not None:
            covered += (found.low or 0) <= true <= (found.high or np.inf)
            closed += found.low is not None and found.high is not None
    return covered / MULTIPLIERS, closed / MULTIPLIERS


# ------------------------------------------------------------------------------------------------ seeds added
def peeked(name: str, limit: int, *, open_ended: bool) -> float:
    """Return the share of studies with a wrong verdict at any number of seeds from 3 to `limit`.

    Holm's procedure makes its first wrong claim where one p-value is below alpha over the number of variants.
    """
    x = studies(name, limit, ADDED)
    found = np.zeros(len(x), bool)
    for n in range(3, limit + 1):
        part = x[..., :n]
        t = abs(part.mean(-1)) / part.std(-1, ddof=1) * np.sqrt(n)
        found |= (t > critical_t(ALPHA / VARIANTS, n, open_ended=open_ended)).any(1)
    return float(found.mean())


def open_ended_power(n: int, *, open_ended: bool) -> float:
    return power_to_detect(EFFECT, 1.0, n, ALPHA / VARIANTS, open_ended=open_ended)


def question_coverage(name: str, questions: int, n: int) -> list[float]:
    """Return the shares of studies whose intervals cover the difference on all questions: over both, and over seeds.

    An answer is right if the normal effects of its seed, its question and itself are above a threshold.
    """
    rng, effects = np.random.default_rng([n, questions, *name.encode()]), EFFECTS[name]
    spread = np.sqrt(1 + sum(np.square(effects)))
    true = float(np.subtract(*scipy.stats.norm.cdf(np.array(ABILITIES) / spread)))
    covered = np.zeros(2)
    for _ in range(CROSSED):
        difficulty = rng.normal(size=questions)
        sides = []
        for ability in ABILITIES:
            draws = (rng.normal(size=shape) for shape in ((n, 1), questions, (n, questions)))
            noise = sum(sd * draw for sd, draw in zip(effects, draws, strict=True))
            sides.append((ability + difficulty + noise > 0).astype(float))
        rows = sides[0] - sides[1]
        paired = PairedDifferences(differences=tuple(rows.mean(1).tolist()), diverged=0, planned=n)
        verdict = decide({"it": paired}, better="higher", margin=None)["it"]
        intervals = answer_interval([rows.tolist()], verdict, None), verdict
        covered += [it is None or it.low is None or it.high is None or it.low <= true <= it.high for it in intervals]
    return (covered / CROSSED).tolist()  # type: ignore[no-any-return]  # numpy does not type it


# ------------------------------------------------------------------------------------------------ page
def rates(values: Sequence[float]) -> str:
    return " · ".join(f"{100 * value:.1f}" for value in values)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def page() -> Iterator[str]:
    """Yield the lines of docs/error-rates.md."""
    yield from ("# Error rates of verdicts", "")
    yield from TEXT_ERRORS.splitlines()
    rows = []
    for name in SHAPES:
        data = [studies(name, n) for n in SEEDS]
        cells = [rates([wrong(x, procedure) for x in data]) for procedure in PROCEDURES.values()]
        rows.append([name, cells[0], cells[1], rates([wrong_unwarned(x) for x in data]), *cells[2:]])
    names = list(PROCEDURES)
    yield from table(["noise", *names[:2], "Paribus, no outlier on the page", *names[2:]], rows)
    yield ""
    yield from TEXT_POWER.splitlines()
    yield from table(
        ["procedure", "decided"],
        [[name, rates([power(n, procedure) for n in SEEDS])] for name, procedure in PROCEDURES.items()],
    )
    yield ""
    yield from TEXT_OUTLIERS.splitlines()
    yield from table(
        ["noise", "differences of a variant with an outlier"],
        [[name, rates([float(outlying(studies(name, n)).mean()) for n in SEEDS])] for name in SHAPES],
    )
    yield ""
    yield from TEXT_COVERAGE.splitlines()
    yield from table(
        ["true differences", "studies in which all four intervals cover"],
        [[f"{effect:g} sd", rates([coverage(n, effect) for n in SEEDS])] for effect in (0.0, 1.0, EFFECT, 5.0)],
    )
    yield ""
    yield from TEXT_SEEDS.splitlines()
    yield from table(
        ["true difference", "decided by `needs` new seeds", "by the end of the bracket"],
        [[f"{effect:g} sd", *(f"{100 * share:.0f}" for share in settled(effect))] for effect in (0.6, 1.0)],
    )

    yield ""
    yield from TEXT_MULTIPLIERS.splitlines()
    rows = []
    for exponent in (0.1, 0.3, 0.6):
        for true in (0.8, 1.0, 1.31, 1.7):
            shares = [multiplier_coverage(true, exponent, n) for n in SEEDS]
            rows.append([f"{exponent:g}", f"{true:g}", *(rates(column) for column in zip(*shares, strict=True))])
    yield from table(["exponent", "true multiplier", "covered", "with both ends"], rows)
    yield ""
    yield from TEXT_ADDED.splitlines()
    yield from table(
        ["noise", "Student's t", "always-valid t"],
        [
            [name, *(rates([peeked(name, limit, open_ended=kind) for limit in LIMITS]) for kind in (False, True))]
            for name in ("normal", "t, 3 degrees of freedom", "uniform")
        ],
    )
    yield from table(
        ["", "width of the interval", "power, fixed seeds", "power, always valid"],
        [
            [
                f"{n} seeds",
                f"{critical_t(ALPHA, n, open_ended=True) / critical_t(ALPHA, n):.2f}x",
                *(f"{100 * open_ended_power(n, open_ended=kind):.1f}" for kind in (False, True)),
            ]
            for n in (5, 6, 8, 12, 20, 50)
        ],
    )
    yield from averaged_lines()
    yield from signal_lines()

    yield ""
    yield from TEXT_QUESTIONS.splitlines()
    rows = []
    for name in EFFECTS:
        for questions in QUESTIONS:
            covered = np.array([question_coverage(name, questions, n) for n in SEEDS]).T.tolist()
            rows.append([name, f"{questions:,}", *map(rates, covered)])
    yield from table(["larger effects", "questions", "over seeds and questions", "over seeds only"], rows)


TEXT_ERRORS: Final = f"""\
Written by `make error-rates`: {STUDIES:,} simulated studies a cell, four variants and a baseline, which share the
baseline's trials. No variant differs from the baseline, so every `better` or `worse` is wrong. The three numbers of a
cell are the percentages of studies with a wrong verdict, for 5, 8 and 12 seeds; 5 are promised. All procedures have
Holm's correction; the bootstrap judges the first {RESAMPLED:,} studies.

*Fail* means that one seed in ten is worse by ten standard deviations. *Equal means* are means over such seeds: the
typical seed of the side that fails is then better by one standard deviation. With *equal medians* typical seeds are
equal, and the mean is not; a verdict counts as wrong there if it calls the variant different.

The promise holds where differences scatter symmetrically around one value. No procedure of the table that decides
anything at five seeds keeps it for the means of skewed and of failing seeds, and none can: the wrong verdicts are of
variants whose seeds all went well, and such data look normal. (Bahadur and Savage 1956 prove it for every test of a
mean without further assumptions.) The failed seeds of *other* variants give a warning, which is the third column:
wrong verdicts on a page whose 95 % are not qualified by a named outlier.
"""

TEXT_POWER: Final = f"""\
## Power

Percentages of variants that are called better or worse, of normal differences with a true mean of {EFFECT:g} standard
deviations, for 5, 8 and 12 seeds. Sign flips decide nothing of four variants below eight seeds, as their smallest
p-value is 2/2ⁿ.
"""

TEXT_OUTLIERS: Final = """\
## Outliers

Percentages of variants with an outlier among their differences, for 5, 8 and 12 seeds. For normal noise these are
false alarms. Equal differences, as of an accuracy, are first spread over the step of the metric; accuracies of 50 to
500 examples then have 0.0 to 1.9 % false alarms at 4, 5 and 8 seeds, where they had up to 11.9 %.
"""

TEXT_COVERAGE: Final = """\
## Intervals

A table shows each interval at the level that decided its verdict. Percentages of studies in which all four intervals
cover their true difference, of normal differences, for 5, 8 and 12 seeds. The verdicts are right in 95 % or more.
"""

TEXT_SEEDS: Final = """\
## Seeds that are needed

Of inconclusive verdicts on five seeds, the percentage that a new study decides, with as many seeds as the verdict
names (`needs n ≥ ~7`), and with as many as the end of its bracket.
"""


TEXT_ADDED: Final = f"""\
## Seeds that are added

Percentages of studies with a wrong verdict where someone looks after each seed from the third on, and adds seeds
until a verdict appears or there are {", ".join(map(str, LIMITS[:-1]))} or {LIMITS[-1]} of them: {ADDED:,} studies of
four variants without any difference. With `stop: {{open: true}}`, verdicts are of the always-valid t-test, and 5 are
promised at any number of seeds. Its intervals are wider than those for a number of seeds that was fixed in advance; the
power is that of the first of four verdicts at this number of seeds, for a difference of {EFFECT:g} standard deviations.
"""

TEXT_MULTIPLIERS: Final = f"""\
## Multipliers of compute

Percentages of studies whose interval of [what a variant is
worth](guide/matching-scales-tuning.md#worth-in-compute) covers its true multiplier, for 5, 8 and 12 seeds:
{MULTIPLIERS:,} studies a cell, and a baseline at {", ".join(map(str, BUDGETS))} of its budget, whose loss is
2 + budget^-exponent. Seeds shift all of their trials, with a standard deviation of 0.03, and each trial has normal
noise of 0.02. An interval without an end reaches beyond the budgets.
"""

TEXT_QUESTIONS: Final = f"""\
## Other questions of a task

Percentages of intervals that cover the difference in accuracy on all questions of a task, of which a study asks some,
for 5, 8 and 12 seeds: {CROSSED:,} studies a cell, each of one variant at 95 %. An answer is right if the sum of a
difficulty, an effect of the seed, one of the question and one of the answer is above a threshold, all of them normal.
The interval over seeds only covers the difference on the *same* questions; to other ones it does not extend.
"""


# ------------------------------------------------------------------------------------------------ mean of evaluations
LASTS: Final = (1, 3, 5)
SMALLER: Final = 1.5  # true difference, in standard deviations of a difference of single evaluations
EVALUATIONS: Final = ((0.2, 0.5), (0.5, 0.5), (1.0, 0.0), (1.0, 0.5), (1.0, 0.9), (2.0, 0.5))  # noise, correlation

TEXT_AVERAGED: Final = f"""\
## Mean of the last evaluations

Studies whose metric is the mean of the last 1, 3 or 5 evaluations of a trial
([`metric.last`](guide/how-many-seeds.md#mean-of-the-last-evaluations)): percentages with a wrong verdict, and of
variants that are called better or worse at a true difference of {SMALLER:g} standard deviations of a difference of
single evaluations, for 5, 8 and 12 seeds. A trial has normal noise with a standard deviation of 1, which its
evaluations share. Each evaluation has noise of its own, given in these units, which is correlated with that of the
next one.
"""


def averaged(noise: float, correlation: float, last: int, n: int) -> Values:
    """Return differences by study, variant and seed, of the mean of the last evaluations, without a true difference."""
    rng = np.random.default_rng([int(100 * noise), int(100 * correlation), n])
    trials = rng.normal(size=(STUDIES, VARIANTS + 1, n))
    steps = rng.normal(size=(max(LASTS), *trials.shape))
    for k in range(1, len(steps)):  # autoregressive of order 1, with a variance of 1
        steps[k] = correlation * steps[k - 1] + np.sqrt(1 - correlation**2) * steps[k]
    values: Values = trials + noise * steps[-last:].mean(0)
    return values[:, 1:] - values[:, :1]


def averaged_lines() -> Iterator[str]:
    """Yield the section on means of the last evaluations."""
    rows = []
    for noise, correlation in EVALUATIONS:
        effect = SMALLER * np.sqrt(2 * (1 + noise**2))
        for last in LASTS:
            data = [averaged(noise, correlation, last, n) for n in SEEDS]
            decided = [float(holm(guarded(x + effect))[0].mean()) for x in data]
            row = [f"{noise:g}", f"{correlation:g}", str(last), rates([wrong(x, guarded) for x in data])]
            rows.append([*row, rates(decided)])
    yield ""
    yield from TEXT_AVERAGED.splitlines()
    yield from table(["noise of evaluations", "correlation", "mean of the last", "wrong", "decided"], rows)


# ------------------------------------------------------------------------------------------------ signal to noise
CALIBRATIONS: Final = 4_000

TEXT_SIGNAL: Final = f"""\
## Signal to noise

Percentages of calibrations whose 95 % interval of [signal to
noise](guide/how-many-seeds.md#signal-to-noise) covers the true ratio, for 5, 8 and 12 seeds;
{CALIBRATIONS:,} calibrations a cell. True means of models, seeds and noise are normal. At a ratio of 0, more than
95 % are covered, because an end below 0 is shown as 0.
"""


def signal_coverage(ratio: float, models: int, n: int) -> tuple[float, float, float]:
    """Return the share of intervals that cover the true ratio, and the quartiles of the estimates."""
    rng = np.random.default_rng([int(10 * ratio), models, n])
    covered, estimates = 0, []
    for _ in range(CALIBRATIONS):
        values = rng.normal(size=n) + ratio * rng.normal(size=(models, 1)) + rng.normal(size=(models, n))
        found = signal_to_noise("", values.tolist())
        assert found.interval is not None
        covered += found.interval[0] <= ratio <= found.interval[1]
        estimates.append(found.ratio or 0.0)
    low, high = np.quantile(estimates, [0.25, 0.75])
    return covered / CALIBRATIONS, float(low), float(high)


def signal_lines() -> Iterator[str]:
    """Yield the section on signal to noise."""
    rows = []
    for models in (4, 8):
        for ratio in (0.0, 0.5, 2.0):
            cells = [signal_coverage(ratio, models, n) for n in SEEDS]
            middle = " · ".join(f"{low:.1f} to {high:.1f}" for _, low, high in cells)
            rows.append([str(models), f"{ratio:g}", rates([share for share, _, _ in cells]), middle])
    yield ""
    yield from TEXT_SIGNAL.splitlines()
    yield from table(["models", "true ratio", "covered", "middle half of the estimates"], rows)


def main() -> int:
    PAGE.write_text("\n".join(page()) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
