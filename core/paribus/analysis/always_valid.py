"""Always-valid t-tests, whose intervals hold at every number of seeds at once, so that seeds may be added at any time.

The statistic is the Bayes factor of a normal prior on the effect, in standard deviations of a difference, against no
effect. It depends on the differences through Student's t alone, and is a martingale over seeds if there is no effect,
so it exceeds 1 / alpha at any number of seeds with probability alpha at most (Lai 1976; Wang and Ramdas 2024,
"Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance").
"""

from __future__ import annotations

import math
from typing import Final

EFFECT_SD: Final = 2.0  # of the prior: intervals of 6 to 20 pairs are the narrowest for about this value


def always_valid_p(t: float, n: int) -> float:
    """Return the p-value of Student's t of `n` pairs, which is valid at every number of pairs at once."""
    if n < 2:
        return 1.0
    growth, square = 1 + n * EFFECT_SD**2, t * t / (n - 1)
    if math.isinf(square):
        return math.pow(growth, (1 - n) / 2)
    log_factor = n / 2 * (math.log1p(square) - math.log1p(square / growth)) - math.log(growth) / 2
    return min(1.0, math.exp(-log_factor))


def always_valid_t(alpha: float, n: int) -> float:
    """Return the t of `n` pairs whose `always_valid_p` is `alpha`; infinite if the pairs are too few for any."""
    if n < 2:
        return math.inf
    growth = 1 + n * EFFECT_SD**2
    ratio = (math.sqrt(growth) / alpha) ** (2 / n)
    return math.sqrt((n - 1) * (ratio - 1) / (1 - ratio / growth)) if ratio < growth else math.inf
