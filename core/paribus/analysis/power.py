"""Power of the paired t-test and of equivalence tests, and the uncertainty of a standard deviation.

In plain Python, so that comparing needs no scipy. A power is an integral over the observed mean of the probability that
the observed spread is small enough for the verdict: this needs no noncentral distribution, and loses no digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

from paribus.analysis.p_values import check_positive, check_rate, t_quantile

MAX_SEEDS: Final = 1_000  # a study with more seeds is not realistic
_FAR: Final = 8.5  # standard deviations beyond which a normal variable is never seen
_PANELS: Final = 48  # of Simpson's rule between two kinks


def spread_interval(sd: float, n: int, alpha: float = 0.05) -> tuple[float, float]:
    """Return the interval of the true standard deviation of `n` normal numbers, by the chi-squared distribution."""
    check_rate("alpha", alpha)
    if n < 2:
        raise ValueError(f"`n` must be at least 2, for a spread, but is {n}.")
    low, high = (chi_squared_quantile(p, n - 1) for p in (alpha / 2, 1 - alpha / 2))
    return sd * math.sqrt((n - 1) / high), sd * math.sqrt((n - 1) / low)


def power_to_detect(effect: float, sd: float, n: int, alpha: float) -> float:
    """Return the probability that the interval of `n` pairs at `alpha` excludes 0, for a true difference `effect`."""
    noncentral, limit = _scaled(effect, sd, n), -t_quantile(alpha / 2, n - 1)
    steep = [side * limit * spread - noncentral for spread in _steps(n - 1) for side in (-1, 1)]
    return _expected(lambda z: abs(z + noncentral) / limit, n - 1, [-noncentral, *steep])


def power_of_equivalence(margin: float, sd: float, n: int, alpha: float, effect: float = 0.0) -> float:
    """Return the probability that the interval of `n` pairs lies within ±`margin`, for a true `effect`."""
    check_positive("margin", margin)
    room, noncentral, limit = _scaled(margin, sd, n), _scaled(effect, sd, n), -t_quantile(alpha / 2, n - 1)
    ends = [-room - noncentral, -noncentral, room - noncentral]
    steep = [side * (room - limit * spread) - noncentral for spread in _steps(n - 1) for side in (-1, 1)]
    return _expected(lambda z: (room - abs(z + noncentral)) / limit, n - 1, [*ends, *steep])


def _steps(df: int) -> tuple[float, ...]:
    """Return the spreads between which nearly all lie: there the probability rises from 0 to 1."""
    near = 6 / math.sqrt(2 * df)
    return (max(0.0, 1 - near), 1.0, 1 + near)


def smallest_effect(sd: float, n: int, alpha: float, power: float) -> float:
    """Return the smallest true difference that `n` pairs detect with this power."""
    check_rate("power", power)
    low, high = 0.0, sd / math.sqrt(n)
    while power_to_detect(high, sd, n, alpha) < power:
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if power_to_detect(middle, sd, n, alpha) >= power else (middle, high)
    return high


def seeds_for_power(reached: Callable[[int], float], power: float, limit: int = MAX_SEEDS) -> int | None:
    """Return the fewest seeds that reach the power, by `reached` of a number of seeds; None beyond `limit`."""
    check_rate("power", power)
    low, high = 1, 2
    while reached(high) < power:
        if high >= limit:
            return None
        low, high = high, min(2 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) >= power else (middle, high)
    return high


def _scaled(size: float, sd: float, n: int) -> float:
    """Return a size in standard errors of the mean of `n`."""
    check_positive("sd", sd)
    if n < 2:
        raise ValueError(f"`n` must be at least 2, for a spread, but is {n}.")
    return abs(size) * math.sqrt(n) / sd


def _expected(bound: Callable[[float], float], df: int, kinks: Sequence[float]) -> float:
    """P(S ≤ bound(Z)) for a standard normal Z and an independent spread S of `df` degrees of freedom around 1."""

    def integrand(z: float) -> float:
        upper = bound(z)
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return density * chi_squared_cdf(df * upper * upper, df) if upper > 0 else 0.0

    inner = [place for place in kinks if -_FAR < place < _FAR]
    places = [-_FAR, *sorted(inner), _FAR]
    total = math.fsum(_simpson(integrand, low, high) for low, high in pairwise(places))
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
    far = 12 * math.sqrt(a) + 40  # standard deviations beyond which a double knows no difference from 0 or 1
    if abs(x - a) > far:
        return 0.0 if x < a else 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    return front * _series(a, x) if x < a + 1 else 1.0 - front * _fraction(a, x)


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
    """Γ(a) e^x x^-a times the lower tail, for x below a + 1 (DLMF 8.7.1)."""
    term = total = 1 / a
    step = a
    while term > 1e-17 * total:
        step += 1
        term *= x / step
        total += term
    return total


def _fraction(a: float, x: float) -> float:
    """The same for the upper tail by Lentz's method, for x above a + 1 (DLMF 8.9.2)."""
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
