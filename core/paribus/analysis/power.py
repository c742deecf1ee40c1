"""Power of the paired t-test and of equivalence tests, and the uncertainty of a standard deviation.

It is plain Python, so that `compare` does not import scipy. The power is an integral over the observed mean, of the
probability that the observed spread is small enough for the verdict. This needs no noncentral distribution, and no
digits cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from paribus.analysis.p_values import check_positive, check_rate, critical_t

MAX_SEEDS: Final = 1_000  # a study with more seeds is not realistic
_MAX_Z: Final = 8.5  # a standard normal variable beyond has a probability below 1e-16
_PANELS: Final = 48  # panels of Simpson's rule between two kinks of the integrand


def spread_interval(sd: float, n: int, alpha: float = 0.05) -> tuple[float, float]:
    """Return the chi-squared interval of the true standard deviation, given the `sd` of `n` normal numbers."""
    check_rate("alpha", alpha)
    if n < 2:
        raise ValueError(f"`n` must be at least 2, for a spread, but is {n}.")
    low, high = (chi_squared_quantile(p, n - 1) for p in (alpha / 2, 1 - alpha / 2))
    return sd * math.sqrt((n - 1) / high), sd * math.sqrt((n - 1) / low)


def power_to_detect(effect: float, sd: float, n: int, alpha: float, *, open_ended: bool = False) -> float:
    """Return the probability that the interval of `n` pairs at `alpha` excludes 0, for the true difference `effect`."""
    noncentral, limit = _scaled(effect, sd, n), critical_t(alpha, n, open_ended=open_ended)
    if math.isinf(limit):
        return 0.0
    kinks = [side * limit * spread - noncentral for spread in _typical_spreads(n - 1) for side in (-1, 1)]
    return _expected(lambda z: abs(z + noncentral) / limit, n - 1, [-noncentral, *kinks])


def power_of_equivalence(
    margin: float, sd: float, n: int, alpha: float, effect: float = 0.0, *, open_ended: bool = False
) -> float:
    """Return the probability that the interval of `n` pairs lies within ±`margin`, for a true `effect`."""
    check_positive("margin", margin)
    scaled_margin, noncentral = _scaled(margin, sd, n), _scaled(effect, sd, n)
    limit = critical_t(alpha, n, open_ended=open_ended)
    if math.isinf(limit):
        return 0.0
    ends = [-scaled_margin - noncentral, -noncentral, scaled_margin - noncentral]
    kinks = [
        side * (scaled_margin - limit * spread) - noncentral for spread in _typical_spreads(n - 1) for side in (-1, 1)
    ]
    return _expected(lambda z: (scaled_margin - abs(z + noncentral)) / limit, n - 1, [*ends, *kinks])


def _typical_spreads(df: int) -> tuple[float, ...]:
    """Return a low, a central and a high spread; its distribution function rises from 0 to 1 between the outer two."""
    six_sd = 6 / math.sqrt(2 * df)
    return (max(0.0, 1 - six_sd), 1.0, 1 + six_sd)


def smallest_effect(sd: float, n: int, alpha: float, power: float, *, open_ended: bool = False) -> float:
    """Return the smallest true difference that `n` pairs detect with this power; infinite if they detect none."""
    check_rate("power", power)
    if math.isinf(critical_t(alpha, n, open_ended=open_ended)):
        return math.inf

    def detects(effect: float) -> bool:
        return power_to_detect(effect, sd, n, alpha, open_ended=open_ended) >= power

    low, high = 0.0, sd / math.sqrt(n)
    while not detects(high):
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if detects(middle) else (middle, high)
    return high


def seeds_for_power(power_of: Callable[[int], float], power: float, limit: int = MAX_SEEDS) -> int | None:
    """Return the smallest number of seeds n with `power_of(n)` of at least `power`; None beyond `limit`."""
    check_rate("power", power)
    low, high = 1, 2
    while power_of(high) < power:
        if high >= limit:
            return None
        low, high = high, min(2 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= power else (middle, high)
    return high


def _scaled(size: float, sd: float, n: int) -> float:
    """Return a size in standard errors of the mean of `n`."""
    check_positive("sd", sd)
    if n < 2:
        raise ValueError(f"`n` must be at least 2, for a spread, but is {n}.")
    return abs(size) * math.sqrt(n) / sd


def _expected(bound: Callable[[float], float], df: int, kinks: Sequence[float]) -> float:
    """P(S ≤ bound(Z)) for a standard normal Z and an independent S with df S² chi-squared of `df` degrees of freedom.

    The integral is divided at `kinks`, the points z at which the integrand bends or rises steeply.
    """

    def integrand(z: float) -> float:
        upper = bound(z)
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return density * chi_squared_cdf(df * upper * upper, df) if upper > 0 else 0.0

    ends = [-_MAX_Z, *sorted(kink for kink in kinks if -_MAX_Z < kink < _MAX_Z), _MAX_Z]
    total = math.fsum(_simpson(integrand, low, high) for low, high in pairwise(ends))
    return min(1.0, total)


def _simpson(function: Callable[[float], float], low: float, high: float) -> float:
    width = (high - low) / _PANELS
    if width <= 0:
        return 0.0
    inner = math.fsum((4 if k % 2 else 2) * function(low + k * width) for k in range(1, _PANELS))
    return width / 3 * (function(low) + inner + function(high))


# -------------------------------------------------------------------------------------------------- chi-squared
def chi_squared_cdf(x: float, df: float) -> float:
    """P(X ≤ x): the regularised lower incomplete gamma function P(df/2, x/2)."""
    check_positive("df", df)
    a, x = df / 2, x / 2
    if x <= 0:
        return 0.0
    # Farther from the mean, the result equals 0 or 1 in double precision.
    if abs(x - a) > 12 * math.sqrt(a) + 40:
        return 0.0 if x < a else 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    return front * _series(a, x) if x < a + 1 else 1.0 - front * _continued_fraction(a, x)


@lru_cache(maxsize=4096)
def chi_squared_quantile(p: float, df: float) -> float:
    """The x with P(X ≤ x) = p, by bisection."""
    check_rate("p", p)
    low, high = 0.0, df + 1.0
    while chi_squared_cdf(high, df) < p:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if chi_squared_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def _series(a: float, x: float) -> float:
    """Γ(a) e^x x^-a P(a, x) by its series, for x < a + 1 (DLMF 8.7.1)."""
    term = total = 1 / a
    step = a
    while term > 1e-17 * total:
        step += 1
        term *= x / step
        total += term
    return total


def _continued_fraction(a: float, x: float) -> float:
    """Γ(a) e^x x^-a (1 - P(a, x)) by its continued fraction and Lentz's method, for x ≥ a + 1 (DLMF 8.9.2)."""
    b = x + 1 - a
    c, d = 1e300, 1 / b
    value = d
    for k in range(1, 1000 + int(10 * math.sqrt(a))):
        factor = -k * (k - a)
        b += 2
        d, c = 1 / (factor * d + b), b + factor / c
        previous, value = value, value * d * c
        if abs(value - previous) <= 1e-16 * abs(value):
            break
    return value
