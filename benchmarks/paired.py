"""Paired timing of programs on a noisy machine: rounds, ratios and differences with bootstrap intervals, and verdicts.

Contestants take turns within each round, in a rotated order, so that a slow phase of the machine affects both. The
result is the median over rounds of the ratio within a round, with a bootstrap interval; the ratio of two separate runs
would mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from paribus.complexity.rounds import Estimate, Floats, Rounds, cpu_time, estimate, exponent, local_slopes

__all__ = [
    "Estimate",
    "Rounds",
    "Verdict",
    "cpu_time",
    "difference",
    "estimate",
    "exponent",
    "local_slopes",
    "ratio",
    "verdict",
]
Verdict = Literal["met", "not met", "inconclusive"]


def ratio(times: Sequence[float] | Floats, reference: Sequence[float] | Floats) -> Estimate:
    """Return the ratio of times to those of the reference."""
    return estimate(np.asarray(times) / np.asarray(reference))


def difference(times: Sequence[float], reference: Sequence[float]) -> Estimate:
    """Return the difference of times from those of the reference."""
    return estimate(np.asarray(times) - np.asarray(reference))


def verdict(
    measured: Estimate,
    limit: float,
    *,
    at_most: bool = True,
    twin: Estimate | None = None,
    contrast: Estimate | None = None,
    null_value: float = 1.0,
) -> Verdict:
    """Return the verdict of an estimate against a limit; decided only if the whole interval is on one side.

    `twin` is the reference against itself, expected at `null_value`: if it deviates from there by more than the limit,
    the verdict is inconclusive. `contrast` is known to miss the limit: if it does not, the verdict is inconclusive too.
    """
    if twin is not None and max(abs(twin.low - null_value), abs(twin.high - null_value)) > abs(limit - null_value):
        return "inconclusive"
    if contrast is not None and verdict(contrast, limit, at_most=at_most) != "not met":
        return "inconclusive"
    if at_most:
        return "met" if measured.high <= limit else "not met" if measured.low > limit else "inconclusive"
    return "met" if measured.low >= limit else "not met" if measured.high < limit else "inconclusive"
