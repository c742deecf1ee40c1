"""Whether what a study found at one scale holds at another: the verdict of each variant, and the order of all of them.

Plain numbers in, plain numbers out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, final

from paribus.report.statistics.student import summarise, t_quantile

Transfer = Literal["transfers", "reverses", "undecided"]

DRAWS: Final = 1_000
NORMAL: Final = 1.959963984540054  # the quantile that the spread of resampled means would be worth
DECIDED: Final = ("better", "worse", "equivalent")


def transfer(kinds: Sequence[str]) -> Transfer:
    """What the verdicts of one variant at all scales come to.

    It transfers where every scale decides, and decides alike; it reverses where one says better and another worse.
    Anything else is undecided: a scale that could not tell has not agreed, and what is equivalent at one scale may be
    a little worse at another and still be equivalent there.
    """
    if {"better", "worse"} <= set(kinds):
        return "reverses"
    return "transfers" if len(set(kinds)) == 1 and kinds[0] in DECIDED else "undecided"


def kendall(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b: 1 where both have one order, -1 where they have opposite ones; ties count for neither.

    None where one of them has no order at all.
    """
    agree = tied_first = tied_second = pairs = 0
    for place, (one, other) in enumerate(zip(first, second, strict=True)):
        for before, after in zip(first[:place], second[:place], strict=True):
            signs = _sign(one - before), _sign(other - after)
            agree += signs[0] * signs[1]
            tied_first += signs[0] == 0
            tied_second += signs[1] == 0
            pairs += 1
    room = (pairs - tied_first) * (pairs - tied_second)
    return agree / math.sqrt(room) if room else None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


@final
@dataclass(frozen=True, kw_only=True)
class Ranks:
    """How alike two scales order the variants, and between what that would lie with other seeds."""

    tau: float | None
    low: float | None
    high: float | None
    variants: int
    seeds: int

    @property
    def verdict(self) -> Literal["agree", "reverse", "undecided"]:
        if self.low is None or self.high is None:
            return "undecided"
        return "agree" if self.low > 0 else "reverse" if self.high < 0 else "undecided"


class _Scale(NamedTuple):
    differences: Sequence[Sequence[float]]  # of each variant, seed by seed
    means: Sequence[float]


def ranks(
    first: Mapping[str, Mapping[int, float]], second: Mapping[str, Mapping[int, float]], *, alpha: float = 0.05
) -> Ranks:
    """The order of the variants by their mean difference at two scales; `first[variant][seed]` is a difference.

    At each scale it is of the seeds on which all variants finished. The interval is that of means over seeds drawn
    again with replacement, at each scale for itself: noise that the same seed brings to both scales would else pass for
    agreement. A few values drawn from themselves spread less than their mean is uncertain, so each drawn mean is moved
    away from the observed one until it spreads as Student's t says. Both err towards undecided.
    """
    names = [name for name in first if name in second]
    scales = [_scale(each, names) for each in (first, second)]
    n = min((len(scale.differences[0]) for scale in scales if scale.differences), default=0)
    if len(names) < 2 or not n:
        return Ranks(tau=None, low=None, high=None, variants=len(names), seeds=n)
    tau = kendall(scales[0].means, scales[1].means)
    if n < 2 or tau is None or any(_alike(each, alpha) for scale in scales for each in scale.differences):
        return Ranks(tau=tau, low=None, high=None, variants=len(names), seeds=n)
    chance = random.Random(0)  # it keeps no secret, and the same records give the same interval
    drawn = [kendall(*(_drawn(scale, chance, alpha) for scale in scales)) or 0.0 for _ in range(DRAWS)]
    drawn.sort()
    tail = int(alpha / 2 * DRAWS)
    return Ranks(tau=tau, low=drawn[tail], high=drawn[DRAWS - 1 - tail], variants=len(names), seeds=n)


def _alike(differences: Sequence[float], alpha: float) -> bool:
    """Whether too few seeds gave one and the same difference: drawn again, they would seem to be certain."""
    return summarise(differences).sd == 0 and math.ldexp(2.0, -len(differences)) > alpha


def _scale(found: Mapping[str, Mapping[int, float]], names: Sequence[str]) -> _Scale:
    seeds = sorted(set.intersection(*(set(found[name]) for name in names))) if names else []
    differences = [[found[name][seed] for seed in seeds] for name in names]
    return _Scale(differences, [math.fsum(each) / len(each) for each in differences if each])


def _drawn(scale: _Scale, chance: random.Random, alpha: float) -> list[float]:
    """The mean of each variant over seeds drawn again, the same for all variants."""
    n = len(scale.differences[0])
    wider = math.sqrt(n / (n - 1)) * -t_quantile(alpha / 2, n - 1) / NORMAL
    places = chance.choices(range(n), k=n)
    return [
        mean + wider * (math.fsum(each[place] for place in places) / n - mean)
        for each, mean in zip(scale.differences, scale.means, strict=True)
    ]
