"""Outliers among paired differences, and intervals that do not assume normal differences.

Student's t assumes differences that vary symmetrically between seeds. Seeds that fail now and then violate this. The
check below detects such seeds in the sample; no check detects a failure that no seed of the study had.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

MIN_PAIRS: Final = 4  # with three differences, an outlier cannot be distinguished
MAX_PAIRS: Final = 100  # with more pairs, the mean is close to normal despite single outliers
MAX_EXACT_PAIRS: Final = 14  # up to here all subsets are enumerated; for more pairs, as many subsets are sampled
MAD_TO_SD: Final = 0.6745  # median absolute deviation of a standard normal variable

# n -> 99 % quantiles of |skewness| and of the largest modified z-score of n normal numbers, from a million samples.
# One or both are exceeded in 1.0 % of samples of 4 numbers, and in 1.7 to 1.8 % of larger samples.
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

    If only the skewness exceeds its cutoff, the outlier is the difference farthest from the median. Equal differences
    are spread over the step of the metric before.
    """
    n = len(differences)
    if not MIN_PAIRS <= n <= MAX_PAIRS:
        return ()
    tolerance = 1e-9 * max(map(abs, differences))  # of rounding
    if max(differences) - min(differences) <= tolerance:
        return ()
    skew_cutoff, score_cutoff = cutoffs(n)
    spread = _spread_ties(differences, tolerance)
    center = _median(spread)
    deviations = [abs(value - center) for value in differences]
    largest, mad = max(deviations), _median([abs(value - center) for value in spread])
    if MAD_TO_SD * largest / mad > score_cutoff:
        return tuple(index for index, value in enumerate(deviations) if MAD_TO_SD * value / mad > score_cutoff)
    if abs(_skewness([(value - center) / largest for value in spread])) > skew_cutoff:
        farthest = differences[deviations.index(largest)]
        return tuple(index for index, value in enumerate(differences) if abs(value - farthest) <= tolerance)
    return ()


def _spread_ties(differences: Sequence[float], tolerance: float) -> list[float]:
    """Return the sorted differences, with equal ones spread evenly over the step of the metric.

    The cutoffs are of continuous differences, which are never equal. Equal ones are those of a metric with a step, such
    as an accuracy. The step is at most the smallest distance between two differences, or from 0.
    """
    groups: list[list[float]] = []
    for value in sorted(differences):
        if groups and value - groups[-1][-1] <= tolerance:
            groups[-1].append(value)
        else:
            groups.append([value])
    if len(groups) == len(differences):
        return sorted(differences)
    levels = [group[0] for group in groups]
    step = min([high - low for low, high in pairwise(levels)] + [abs(it) for it in levels if abs(it) > tolerance])
    return [
        value + step * ((2 * place + 1) / len(group) - 1) / 2 for group in groups for place, value in enumerate(group)
    ]


@lru_cache(maxsize=256)
def cutoffs(n: int) -> tuple[float, float]:
    """Return the cutoffs of |skewness| and of the modified z-score for `n` differences, interpolated in 1/n."""
    for (few, low), (many, high) in pairwise(CUTOFFS.items()):
        if few <= n <= many:
            share = (1 / few - 1 / n) / (1 / few - 1 / many)
            return low[0] + share * (high[0] - low[0]), low[1] + share * (high[1] - low[1])
    raise ValueError(f"`n` must lie between {MIN_PAIRS} and {MAX_PAIRS}, but is {n}.")


def _median(values: Sequence[float]) -> float:
    """Return the median, without the import of `statistics`, which costs more time than it saves."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _skewness(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    second, third = (math.fsum((value - mean) ** power for value in values) / len(values) for power in (2, 3))
    return third / (second * math.sqrt(second))


def sign_flip_interval(differences: Sequence[float], alpha: float) -> tuple[float, float] | None:
    """Return the interval of means that `sign_flip_p` does not reject at `alpha`; None if the pairs are too few.

    It is exact for symmetric differences of any distribution: the 2ⁿ - 1 means of subsets divide the real line into 2ⁿ
    intervals, each of which contains the true mean with the same probability (Hartigan 1969, "typical values").
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
    """Return the sorted means of all nonempty subsets; for many pairs, of a fixed random sample of them."""
    n = len(differences)
    rng = random.Random(n)
    masks = range(1, 2**n) if n <= MAX_EXACT_PAIRS else (rng.randrange(1, 2**n) for _ in range(2**MAX_EXACT_PAIRS - 1))
    subsets = ([value for index, value in enumerate(differences) if mask >> index & 1] for mask in masks)
    return tuple(sorted(math.fsum(subset) / len(subset) for subset in subsets))
