"""Outliers among paired differences, and intervals that do not assume normal differences.

Student's t holds for differences that vary symmetrically between seeds. A seed that fails now and then breaks it. The
check below finds such seeds where they are in the sample; no check finds a failure that no seed of the study had.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

LEAST: Final = 4  # of three differences, none is an outlier to a third
LARGEST: Final = 100  # pairs beyond which the mean is normal enough whatever single seeds do
EXACT: Final = 14  # pairs up to which all subsets are counted: 2^14; of more pairs as many subsets are drawn
MAD_TO_SD: Final = 0.6745  # median absolute deviation of a standard normal variable

# For n normal numbers: the 99 % quantiles of |skewness| and of the largest modified z-score, of a million samples each.
# Either is exceeded in 1.0 % of samples of 4, and in 1.7 to 1.8 % of larger ones.
CUTOFFS: Final = {
    4: (1.1375, 15.976),
    5: (1.3964, 18.556),
    6: (1.5317, 10.118),
    7: (1.5865, 10.683),
    8: (1.6059, 7.941),
    9: (1.5974, 8.256),
    10: (1.5767, 6.887),
    11: (1.5561, 7.062),
    12: (1.524, 6.289),
    15: (1.4365, 5.953),
    20: (1.3097, 5.235),
    30: (1.1246, 4.799),
    50: (0.8903, 4.478),
    100: (0.6336, 4.304),
}


def outliers(differences: Sequence[float]) -> tuple[int, ...]:
    """Return the indices of outliers: modified z-scores (Iglewicz and Hoaglin 1993) beyond a cutoff.

    Where only the skewness is beyond its cutoff, the difference farthest from the median is returned.
    """
    n = len(differences)
    if not LEAST <= n <= LARGEST:
        return ()
    skew_cutoff, score_cutoff = cutoffs(n)
    middle = _median(differences)
    deviations = [abs(value - middle) for value in differences]
    largest, mad = max(deviations), _median(deviations)
    if largest <= 1e-9 * max(map(abs, differences)):  # equal up to rounding
        return ()
    if mad and MAD_TO_SD * largest / mad > score_cutoff:
        return tuple(index for index, value in enumerate(deviations) if MAD_TO_SD * value / mad > score_cutoff)
    if abs(_skewness([(value - middle) / largest for value in differences])) > skew_cutoff:
        return (deviations.index(largest),)
    return ()


@lru_cache(maxsize=256)
def cutoffs(n: int) -> tuple[float, float]:
    """Return the cutoffs of |skewness| and of the modified z-score for `n` differences, interpolated in 1/n."""
    for (few, low), (many, high) in pairwise(CUTOFFS.items()):
        if few <= n <= many:
            share = (1 / few - 1 / n) / (1 / few - 1 / many)
            return low[0] + share * (high[0] - low[0]), low[1] + share * (high[1] - low[1])
    raise ValueError(f"`n` must lie between {LEAST} and {LARGEST}, but is {n}.")


def _median(values: Sequence[float]) -> float:
    """Return the median: `statistics` costs more to import than it saves."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _skewness(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    second, third = (math.fsum((value - mean) ** power for value in values) / len(values) for power in (2, 3))
    return third / (second * math.sqrt(second))


def sign_flip_interval(differences: Sequence[float], alpha: float) -> tuple[float, float] | None:
    """Return the means that `sign_flip_p` does not reject at `alpha`; None where the pairs are too few.

    Exact for symmetric differences of any shape: the true mean is equally likely between any two neighbours of the
    2ⁿ - 1 means of subsets (Hartigan 1969, "typical values").
    """
    means = _subset_means(tuple(differences))
    rank = math.floor(alpha * (len(means) + 1) / 2)
    return (means[rank - 1], means[-rank]) if rank else None


def sign_flip_p(differences: Sequence[float], mean: float = 0.0) -> float:
    """Return the two-sided p-value of a true mean `mean`; at least 2 / 2ⁿ."""
    means = _subset_means(tuple(differences))
    below, above = sum(value <= mean for value in means), sum(value >= mean for value in means)
    return min(1.0, 2 * (min(below, above) + 1) / (len(means) + 1))


@lru_cache(maxsize=64)
def _subset_means(differences: tuple[float, ...]) -> tuple[float, ...]:
    """Return the sorted means of all subsets but the empty one; of many pairs, of a fixed draw of subsets."""
    n = len(differences)
    draw = random.Random(n)
    masks = range(1, 2**n) if n <= EXACT else (draw.randrange(1, 2**n) for _ in range(2**EXACT - 1))
    subsets = ([value for place, value in enumerate(differences) if mask >> place & 1] for mask in masks)
    return tuple(sorted(math.fsum(subset) / len(subset) for subset in subsets))
