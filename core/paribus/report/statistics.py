"""Student-t statistics of paired differences, in plain Python: `scipy.stats` costs more to import than a report does.

`alpha` is always an error rate (0.05); an interval at `alpha` covers with probability 1 − alpha (95 %).
"""

from __future__ import annotations

import math
from functools import lru_cache

_SAME = 1e-9  # differences that spread by less than this part of their size are equal up to rounding
_LARGEST = 1e200  # a loss beyond it has diverged, and its square would overflow


# ------------------------------------------------------------------------------------------------ the t distribution
def t_cdf(t: float, df: float) -> float:
    """P(T ≤ t) for Student's t with `df` degrees of freedom, which may be any positive number."""
    _check_df(df)
    if math.isnan(t):
        raise ValueError("`t` must be a number, but is nan.")
    return _upper_tail(-t, df) if t < 0 else 1.0 - _upper_tail(t, df)


@lru_cache(maxsize=4096)  # a table of verdicts asks for the same few quantiles again and again
def t_quantile(p: float, df: float) -> float:
    """The t with P(T ≤ t) = p; for upper quantiles negate the lower one, whose `p` loses no digits."""
    _check_df(df)
    _check_rate("p", p)
    tail = min(p, 1.0 - p)
    size = 0.0 if tail == 0.5 else _upper_tail_inverse(tail, df)
    return -size if p < 0.5 else size


def _upper_tail(t: float, df: float) -> float:
    """P(T ≥ t) for t ≥ 0: half the regularised incomplete beta function I_x(df/2, 1/2) at x = df / (df + t²)."""
    ratio = t / math.sqrt(df)
    if math.isinf(ratio):
        return 0.0
    hypotenuse = math.hypot(1.0, ratio)
    x, y = hypotenuse**-2, (ratio / hypotenuse) ** 2  # y is 1 − x, without the cancellation
    a, b = df / 2, 0.5
    front = _power(ratio, a) * (ratio / hypotenuse) * _gamma_ratio(a) / math.sqrt(math.pi)
    if x < (a + 1) / (a + b + 2):
        return 0.5 * front / a * _continued_fraction(a, b, x)
    return 0.5 * (1.0 - front / b * _continued_fraction(b, a, y))


def _density(t: float, df: float) -> float:
    return _power(t / math.sqrt(df), (df + 1) / 2) * _gamma_ratio(df / 2) / math.sqrt(df * math.pi)


def _upper_tail_inverse(tail: float, df: float) -> float:
    """The t > 0 with `_upper_tail(t) == tail`: Newton on the logarithm, kept inside a shrinking bracket."""
    low, high = 0.0, 1.0
    while _upper_tail(high, df) > tail:
        low, high = high, 2 * high
        if math.isinf(high):
            return high  # only for df far below 1
    t = (low + high) / 2
    for _ in range(200):  # bisection alone would end in some 60
        found = _upper_tail(t, df)
        low, high = (t, high) if found > tail else (low, t)
        step = math.log(found / tail) * found / _density(t, df)
        following = t + step if low < t + step < high else (low + high) / 2
        if abs(following - t) <= 1e-15 * t:
            break
        t = following
    return t


def _power(ratio: float, exponent: float) -> float:
    """(1 + ratio²) to the power of −exponent, also where 1 + ratio² rounds to 1 or overflows."""
    logarithm = math.log1p(ratio * ratio) if ratio < 1 else 2 * math.log(math.hypot(1.0, ratio))
    return math.exp(-exponent * logarithm)


def _gamma_ratio(a: float) -> float:
    """Γ(a + 1/2) / Γ(a): for large `a` by its series, since the difference of two `lgamma` loses digits."""
    if a < 30:
        return math.exp(math.lgamma(a + 0.5) - math.lgamma(a))
    series = -1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5) + 17 / (14336 * a**7)
    return math.sqrt(a) * math.exp(series)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """The fraction of the incomplete beta function by Lentz's method (DLMF 8.17.22), for x < (a + 1) / (a + b + 2)."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 1000 + int(10 * math.sqrt(a + b))):  # it needs about the square root of the larger of a and b
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for coefficient in (even, odd):
            d = 1.0 / (1.0 + coefficient * d)
            c = 1.0 + coefficient / c
            change *= c * d
        value *= change
        if abs(change - 1.0) < 1e-16:
            break
    return value


def _check_df(df):
    pass


def _check_rate(n, df):
    pass
