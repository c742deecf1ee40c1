"""Student-t statistics of paired differences in plain Python: importing `scipy.stats` takes longer than a whole report.

`alpha` is always an error rate (0.05); an interval at `alpha` covers the true mean with probability 1 - alpha (95 %).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, final

from paribus.analysis.always_valid import always_valid_p, always_valid_t

_ROUNDING: Final = 1e-9  # differences with a smaller relative range are equal up to rounding
_MAX_SIZE: Final = 1e200  # a larger loss has diverged, and its square would overflow


# ------------------------------------------------------------------------------------------------ the t distribution
def t_cdf(t: float, df: float) -> float:
    """P(T ≤ t) for Student's t with any positive degrees of freedom, to 10 digits up to a million degrees."""
    check_positive("df", df)
    return _upper_tail(-t, df) if t < 0 else 1.0 - _upper_tail(t, df)


# A table of verdicts needs the same few quantiles many times.
@lru_cache(maxsize=2**16)
def t_quantile(p: float, df: float) -> float:
    """The t with P(T ≤ t) = p. For an upper quantile, negate the lower one, because a `p` close to 1 loses digits."""
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
    """The t > 0 with P(T ≥ t) = `tail`, by Newton's method on the logarithm of the tail inside a shrinking bracket."""
    low, high = 0.0, 1.0
    while _upper_tail(high, df) > tail:
        low, high = high, 2 * high
    t = (low + high) / 2
    # Bisection alone would end after about 60 steps.
    for _ in range(200):
        tail_at_t = _upper_tail(t, df)
        low, high = (t, high) if tail_at_t > tail else (low, t)
        slope = _power(t / math.sqrt(df), (df + 1) / 2) * _gamma_ratio(df / 2) / math.sqrt(df * math.pi)
        newton = t + math.log(tail_at_t / tail) * tail_at_t / slope if tail_at_t and slope else math.inf
        next_t = newton if low < newton < high else (low + high) / 2
        if abs(next_t - t) <= 1e-15 * t:
            break
        t = next_t
    return t


def _power(ratio: float, exponent: float) -> float:
    """(1 + ratio²)^-exponent, also if 1 + ratio² rounds to 1 or overflows."""
    logarithm = math.log1p(ratio * ratio) if ratio < 1 else 2 * math.log(math.hypot(1.0, ratio))
    return math.exp(-exponent * logarithm)


def _gamma_ratio(a: float) -> float:
    """Γ(a + 1/2) / Γ(a), for large `a` by its series, because the difference of two `lgamma` loses digits."""
    if a < 30:
        return math.exp(math.lgamma(a + 0.5) - math.lgamma(a))
    return math.sqrt(a) * math.exp(-1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5) + 17 / (14336 * a**7))


def _continued_fraction(a: float, b: float, x: float) -> float:
    """The fraction of the incomplete beta function by Lentz's method (DLMF 8.17.22), for x < (a + 1) / (a + b + 2)."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1))
    value = d
    # It needs about sqrt(max(a, b)) terms at most.
    for m in range(1, 1000 + int(10 * math.sqrt(a + b))):
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


def f_cdf(x: float, df1: float, df2: float) -> float:
    """P(X ≤ x) for the F distribution with any positive degrees of freedom, to 10 digits up to 10,000 degrees."""
    check_positive("df1", df1)
    check_positive("df2", df2)
    if not x > 0:
        return 0.0
    ratio = df1 * x / df2
    return 1.0 if math.isinf(ratio) else _incomplete_beta(df1 / 2, df2 / 2, ratio / (1 + ratio), 1 / (1 + ratio))


@lru_cache(maxsize=2**10)
def f_quantile(p: float, df1: float, df2: float) -> float:
    """The x with P(X ≤ x) = p, by bisection of its logarithm."""
    check_rate("p", p)
    low, high = -1.0, 1.0
    while f_cdf(math.exp(low), df1, df2) > p:
        low *= 2
    while f_cdf(math.exp(high), df1, df2) < p:
        high *= 2
    while high - low > 1e-14 * max(1.0, abs(low)):
        middle = (low + high) / 2
        low, high = (middle, high) if f_cdf(math.exp(middle), df1, df2) < p else (low, middle)
    return math.exp((low + high) / 2)


def _incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """The regularised incomplete beta function I_x(a, b), where y = 1 - x."""
    if x == 0 or y == 0:
        return float(y == 0)
    front = math.exp(a * math.log(x) + b * math.log(y) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    if x < (a + 1) / (a + b + 2):
        return front / a * _continued_fraction(a, b, x)
    return 1.0 - front / b * _continued_fraction(b, a, y)


# ---------------------------------------------------------------------------------------------- one set of differences
@final
@dataclass(frozen=True, kw_only=True)
class Summary:
    """Statistics of paired differences. One pair has no `sd` and no `standard_error`.

    An `sd` of exactly 0 means that all pairs have the same difference up to rounding, as happens with a metric that
    counts a few examples. Then t would be infinite, and two seeds that agree by chance would be significant. So the
    functions below use the exact sign test instead: if the differences are symmetric about another mean, all n lie on
    one side of it with probability 2 / 2ⁿ, whatever their spread.
    """

    n: int
    mean: float
    sd: float | None
    standard_error: float | None


def summarise(differences: Sequence[float]) -> Summary:
    """Return number, mean, standard deviation and standard error of one or more finite differences."""
    if not differences:
        raise ValueError("`differences` must hold at least one number, but is empty.")
    for value in differences:
        if not abs(value) <= _MAX_SIZE:
            raise ValueError(f"`differences` must lie within ±{_MAX_SIZE:g}, but hold {value}; such a trial diverged.")
    n = len(differences)
    mean = math.fsum(differences) / n
    if n == 1:
        return Summary(n=n, mean=mean, sd=None, standard_error=None)
    sd = math.hypot(*(value - mean for value in differences)) / math.sqrt(n - 1)
    if max(differences) - min(differences) <= _ROUNDING * max(map(abs, differences)):
        sd = 0.0
    return Summary(n=n, mean=mean, sd=sd, standard_error=sd / math.sqrt(n))


def interval(summary: Summary, alpha: float, *, open_ended: bool = False) -> tuple[float, float] | None:
    """Return the interval of means that `two_sided_p` does not reject at `alpha`; None if the pairs are too few."""
    check_rate("alpha", alpha)
    half = _half_width(summary.n, summary.sd, alpha, open_ended)
    return None if math.isinf(half) else (summary.mean - half, summary.mean + half)


def two_sided_p(summary: Summary, mean: float = 0.0, *, open_ended: bool = False) -> float:
    """Return the p-value of a true mean `mean`, by the paired t-test, or by the sign test if the spread is 0.

    With `open_ended` it is valid at every number of pairs at once. So is that of the sign test: all of n signs are
    equal only if those of fewer were.
    """
    distance = abs(summary.mean - mean)
    if summary.standard_error is None:
        return 1.0
    if summary.standard_error == 0:
        return 1.0 if distance <= _ROUNDING * abs(summary.mean) else _sign_p(summary.n)
    t = distance / summary.standard_error
    return always_valid_p(t, summary.n) if open_ended else 2 * _upper_tail(t, summary.n - 1)


def critical_t(alpha: float, n: int, *, open_ended: bool = False) -> float:
    """Return the t beyond which `n` pairs reject a mean at `alpha`; infinite if they are too few."""
    if n < 2:
        return math.inf
    return always_valid_t(alpha, n) if open_ended else -t_quantile(alpha / 2, n - 1)


def seeds_needed(
    summary: Summary, *, alpha: float, margin: float | None = None, limit: int = 10_000, open_ended: bool = False
) -> int | None:
    """Return the smallest number of seeds that decides a verdict at `alpha`, with the same mean and spread.

    A verdict is decided if its interval excludes 0 or, with a margin, lies inside ±margin. Return None if `limit` seeds
    do not suffice.
    """
    check_rate("alpha", alpha)
    if margin is not None:
        check_positive("margin", margin)
    if summary.sd is None:
        return 2  # without a spread, two pairs are the minimum

    def is_decided(n: int) -> bool:
        half, size = _half_width(n, summary.sd, alpha, open_ended), abs(summary.mean)
        return half < size or (margin is not None and size + half < margin)

    # Bisection: the half-width decreases with n, and is infinite for one pair.
    low, high = 1, limit
    if not is_decided(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_decided(middle) else (middle, high)
    return high


def variance_reduction(baseline: Sequence[float], variant: Sequence[float]) -> float | None:
    """Return the variance of differences between independent seeds, divided by that of paired ones; 1 is no gain.

    None if it is undefined: fewer than two pairs, or differences that do not vary.
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


def _half_width(n: int, sd: float | None, alpha: float, open_ended: bool) -> float:
    """Return half the width of the interval of `n` pairs; infinite if they are too few."""
    if n < 2 or sd is None:
        return math.inf
    if sd == 0:
        return 0.0 if _sign_p(n) <= alpha else math.inf
    return critical_t(alpha, n, open_ended=open_ended) * sd / math.sqrt(n)


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

    The k-th smallest of m p-values is compared with alpha / (m - k + 1), until one is larger. That one and all later
    ones have the alpha of this step. Equal p-values have the alpha of the first of them.
    """
    check_rate("alpha", alpha)
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"`p_values` must lie between 0 and 1, but are {', '.join(map(str, p_values))}.")
    steps: dict[float, HolmStep] = {}  # by p-value
    adjusted, stopping_alpha = 0.0, 0.0
    for index, p in enumerate(sorted(p_values)):
        remaining = len(p_values) - index
        adjusted = min(1.0, max(adjusted, remaining * p))
        if not stopping_alpha and p not in steps and p > alpha / remaining:
            stopping_alpha = alpha / remaining
        steps.setdefault(
            p, HolmStep(adjusted=adjusted, alpha=stopping_alpha or alpha / remaining, rejected=not stopping_alpha)
        )
    return tuple(steps[p] for p in p_values)


def check_positive(name: str, value: float) -> None:
    """Require a positive finite number. A margin of 0 would silently exclude equivalence."""
    if not 0 < value < math.inf:
        raise ValueError(f"`{name}` must be positive and finite, but is {value}.")


def check_rate(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"`{name}` must lie between 0 and 1, but is {value}.")
