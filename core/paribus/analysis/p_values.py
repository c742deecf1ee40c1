"""Student-t statistics of paired differences, in plain Python: `scipy.stats` costs more to import than a report does.

`alpha` is always an error rate (0.05); an interval at `alpha` covers with probability 1 - alpha (95 %).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

_SAME = 1e-9  # differences that spread by less than this part of their size are equal up to rounding
_LARGEST = 1e200  # a loss beyond it has diverged, and its square would overflow


# ------------------------------------------------------------------------------------------------ the t distribution
def t_cdf(t: float, df: float) -> float:
    """P(T ≤ t) for Student's t with any positive number of degrees of freedom: 10 digits up to a million of them."""
    check_positive("df", df)
    return _upper_tail(-t, df) if t < 0 else 1.0 - _upper_tail(t, df)


@lru_cache(maxsize=2**16)  # a table of verdicts asks for the same few quantiles again and again
def t_quantile(p: float, df: float) -> float:
    """The t with P(T ≤ t) = p. For an upper quantile negate the lower one, whose `p` loses no digits."""
    check_positive("df", df)
    check_rate("p", p)
    tail = min(p, 1.0 - p)
    size = 0.0 if tail == 0.5 else _upper_tail_inverse(tail, df)
    return -size if p < 0.5 else size


def _upper_tail(t: float, df: float) -> float:
    """P(T ≥ t) for t ≥ 0: half the regularised incomplete beta function I_x(df/2, 1/2) at x = df / (df + t²)."""
    ratio = t / math.sqrt(df)
    if math.isinf(ratio):
        return 0.0
    hypotenuse = math.hypot(1.0, ratio)
    x, y = hypotenuse**-2, (ratio / hypotenuse) ** 2  # y is 1 - x, without the cancellation
    a, b = df / 2, 0.5
    front = _power(ratio, a) * (ratio / hypotenuse) * _gamma_ratio(a) / math.sqrt(math.pi)
    if x < (a + 1) / (a + b + 2):
        return 0.5 * front / a * _continued_fraction(a, b, x)
    return 0.5 * (1.0 - front / b * _continued_fraction(b, a, y))


def _upper_tail_inverse(tail: float, df: float) -> float:
    """The t > 0 whose upper tail is `tail`: Newton on the tail's logarithm, kept inside a shrinking bracket."""
    low, high = 0.0, 1.0
    while _upper_tail(high, df) > tail:
        low, high = high, 2 * high
    t = (low + high) / 2
    for _ in range(200):  # bisection alone would end in some 60
        tail_at_t = _upper_tail(t, df)
        low, high = (t, high) if tail_at_t > tail else (low, t)
        slope = _power(t / math.sqrt(df), (df + 1) / 2) * _gamma_ratio(df / 2) / math.sqrt(df * math.pi)
        newton = t + math.log(tail_at_t / tail) * tail_at_t / slope if tail_at_t and slope else math.inf
        following = newton if low < newton < high else (low + high) / 2
        if abs(following - t) <= 1e-15 * t:
            break
        t = following
    return t


def _power(ratio: float, exponent: float) -> float:
    """(1 + ratio²) to the power of -exponent, also where 1 + ratio² rounds to 1 or overflows."""
    logarithm = math.log1p(ratio * ratio) if ratio < 1 else 2 * math.log(math.hypot(1.0, ratio))
    return math.exp(-exponent * logarithm)


def _gamma_ratio(a: float) -> float:
    """Γ(a + 1/2) / Γ(a): for large `a` by its series, since the difference of two `lgamma` loses digits."""
    if a < 30:
        return math.exp(math.lgamma(a + 0.5) - math.lgamma(a))
    return math.sqrt(a) * math.exp(-1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5) + 17 / (14336 * a**7))


def _continued_fraction(a: float, b: float, x: float) -> float:
    """The fraction of the incomplete beta function by Lentz's method (DLMF 8.17.22), for x < (a + 1) / (a + b + 2)."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 1000 + int(10 * math.sqrt(a + b))):  # it needs at most about the root of the larger of a and b
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        previous = value
        for coefficient in (even, odd):
            d = 1.0 / (1.0 + coefficient * d)
            c = 1.0 + coefficient / c
            value *= c * d
        if abs(value - previous) <= 1e-16 * value:
            break
    return value


# ---------------------------------------------------------------------------------------------- one set of differences
@final
@dataclass(frozen=True, kw_only=True)
class Summary:
    """Statistics of paired differences for the tests. One pair has no `sd` and no `standard_error`.

    An `sd` of exactly 0 means that all pairs gave the same difference up to rounding, as with a metric that counts
    a few examples. Then t would be infinite, and two seeds that agree by chance would prove anything. So the
    functions below fall back on the exact sign test: if the differences were symmetric about another mean, all n
    would lie on one side of it with probability 2 / 2ⁿ, whatever their spread.
    """

    n: int
    mean: float
    sd: float | None
    standard_error: float | None


def summarise(differences: Sequence[float]) -> Summary:
    """Number, mean, standard deviation and standard error of one or more finite differences."""
    if not differences:
        raise ValueError("`differences` must hold at least one number, but is empty.")
    for value in differences:
        if not abs(value) <= _LARGEST:
            raise ValueError(f"`differences` must lie within ±{_LARGEST:g}, but hold {value}; such a trial diverged.")
    n = len(differences)
    mean = math.fsum(differences) / n
    if n == 1:
        return Summary(n=n, mean=mean, sd=None, standard_error=None)
    sd = math.hypot(*(value - mean for value in differences)) / math.sqrt(n - 1)
    if max(differences) - min(differences) <= _SAME * max(map(abs, differences)):
        sd = 0.0
    return Summary(n=n, mean=mean, sd=sd, standard_error=sd / math.sqrt(n))


def interval(summary: Summary, alpha: float) -> tuple[float, float] | None:
    """Return the means that `two_sided_p` does not reject at `alpha`; None where the pairs are too few."""
    check_rate("alpha", alpha)
    half = _half_width(summary.n, summary.sd, alpha)
    return None if math.isinf(half) else (summary.mean - half, summary.mean + half)


def two_sided_p(summary: Summary, mean: float = 0.0) -> float:
    """Return the p-value of a true mean `mean`: the paired t-test, or the sign test where the spread is 0."""
    distance = abs(summary.mean - mean)
    if summary.standard_error is None:
        return 1.0
    if summary.standard_error == 0:
        return 1.0 if distance <= _SAME * abs(summary.mean) else _sign_p(summary.n)
    return 2 * _upper_tail(distance / summary.standard_error, summary.n - 1)


def seeds_needed(summary: Summary, *, alpha: float, margin: float | None = None, limit: int = 10_000) -> int | None:
    """Return the fewest seeds that settle a verdict at `alpha`, with the same mean and spread.

    Settled means clear of 0 or, where a margin is set, inside ±margin. None where `limit` seeds do not suffice.
    """
    check_rate("alpha", alpha)
    if margin is not None:
        check_positive("margin", margin)
    if summary.sd is None:
        return 2  # all that one pair can tell

    def settled(n: int) -> bool:
        half, size = _half_width(n, summary.sd, alpha), abs(summary.mean)
        return half < size or (margin is not None and size + half < margin)

    low, high = 1, limit  # the half-width only shrinks with n, and one pair has none
    if not settled(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if settled(middle) else (middle, high)
    return high


def variance_reduction(baseline: Sequence[float], variant: Sequence[float]) -> float | None:
    """Return the variance of independent differences divided by that of paired ones; 1 is no gain.

    None where it is undefined: fewer than two pairs, or differences that do not vary.
    """
    if len(baseline) != len(variant):
        raise ValueError(f"`variant` must have as many values as `baseline` ({len(baseline)}), but has {len(variant)}.")
    if len(baseline) < 2:
        return None
    paired = summarise(
        [variant_value - baseline_value for baseline_value, variant_value in zip(baseline, variant, strict=True)]
    ).sd
    independent = math.hypot(summarise(baseline).sd or 0.0, summarise(variant).sd or 0.0)
    return (independent / paired) ** 2 if paired else None


def _half_width(n: int, sd: float | None, alpha: float) -> float:
    """Return half the width of the interval of `n` pairs; infinite where they are too few."""
    if n < 2 or sd is None:
        return math.inf
    if sd == 0:
        return 0.0 if _sign_p(n) <= alpha else math.inf
    return -t_quantile(alpha / 2, n - 1) * sd / math.sqrt(n)


def _sign_p(n: int) -> float:
    return math.ldexp(2.0, -n)


# ---------------------------------------------------------------------------------------------------------- the family
@final
@dataclass(frozen=True, kw_only=True)
class HolmStep:
    """The result of Holm's procedure for one hypothesis: its adjusted p-value and the alpha of its step."""

    adjusted: float
    alpha: float
    rejected: bool


def holm(p_values: Sequence[float], alpha: float) -> tuple[HolmStep, ...]:
    """Holm's step-down procedure (1979), in the order of `p_values`.

    The k-th smallest of m p-values is compared with alpha / (m - k + 1) until one fails; that one and all after it
    are decided at the level of the step that stopped. Equal p-values are decided at one level, the first of theirs.
    """
    check_rate("alpha", alpha)
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"`p_values` must lie between 0 and 1, but are {', '.join(map(str, p_values))}.")
    steps: dict[float, HolmStep] = {}  # by p-value
    adjusted, stopped = 0.0, 0.0
    for index, p in enumerate(sorted(p_values)):
        remaining = len(p_values) - index
        adjusted = min(1.0, max(adjusted, remaining * p))
        if not stopped and p not in steps and p > alpha / remaining:
            stopped = alpha / remaining
        steps.setdefault(p, HolmStep(adjusted=adjusted, alpha=stopped or alpha / remaining, rejected=not stopped))
    return tuple(steps[p] for p in p_values)


def check_positive(name: str, value: float) -> None:
    """Require a positive finite number. A margin of 0 would rule out equivalence silently."""
    if not 0 < value < math.inf:
        raise ValueError(f"`{name}` must be positive and finite, but is {value}.")


def check_rate(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"`{name}` must lie between 0 and 1, but is {value}.")
