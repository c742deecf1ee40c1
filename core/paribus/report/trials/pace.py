"""How fast variants train beside their baseline, from the timing pass after a study: paired rounds, and an interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, NamedTuple, final

TWIN: Final = "twin"  # what the pass calls the baseline's second model
LEVEL: Final = 0.95


class Ratio(NamedTuple):
    """The median over rounds, with the interval that holds the true one at `LEVEL`."""

    middle: float
    low: float
    high: float
    rounds: int


@final
@dataclass(frozen=True)
class Pace:
    """What the store has of the last timing pass."""

    document: Mapping[str, Any]

    def tokens_per_second(self, identities: Sequence[str]) -> float | None:
        """Of the first of these trials that was timed."""
        for group in self._groups():
            for identity in identities:
                if times := group["rounds"].get(identity):
                    return float(self.document["tokens"][identity] / median(times))
        return None

    def ratio(self, identities: Sequence[str], baseline: Sequence[str]) -> Ratio | None:
        """How many tokens a second there are for each of the baseline's, round by round; None where none was timed.

        Two models of one spec may differ by where they lie in memory, in every round alike: the interval is wider by
        what the twin strays.
        """
        for group in self._groups():
            own = next((each for each in identities if each in group["rounds"]), None)
            if own is not None and group["baseline"] in baseline:
                tokens = self.document["tokens"]
                size = tokens[own] / tokens[group["baseline"]]
                found = _ratio(group["rounds"][group["baseline"]], group["rounds"][own], size)
                return found if own == group["baseline"] else _widened(found, _twin(group))
        return None

    def twins(self) -> list[Ratio]:
        """The baseline against itself, of each group: what there is of noise."""
        return [_twin(each) for each in self._groups()]

    @property
    def noise(self) -> float:
        """How far from 1 that may be."""
        return max((max(abs(twin.low - 1), abs(twin.high - 1)) for twin in self.twins()), default=0.0)

    def caption(self) -> Iterator[str]:
        """How it was measured."""
        twins = self.twins()
        if not twins:
            return
        low, high = min(twin.low for twin in twins), max(twin.high for twin in twins)
        counts = sorted({twin.rounds for twin in twins})
        spread = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        clock = "CPU time" if self.document["clock"] == "cpu" else "time"
        name = str(self.document["machine"].get("name"))
        yield (
            f"Tokens/s are of training steps in turns, alone on {name}, after the study: medians of {spread} paired "
            f"rounds of {clock}, with 95 % intervals, wider by what the baseline strays from itself: "
            f"[{low:.3f}, {high:.3f}]."
        )

    def _groups(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = [each for each in self.document["groups"] if all(each["rounds"].values())]
        return found


def _twin(group: Mapping[str, Any]) -> Ratio:
    return _ratio(group["rounds"][group["baseline"]], group["rounds"][TWIN], 1.0)


def _widened(found: Ratio, twin: Ratio) -> Ratio:
    stray = max(twin.high, 1 / twin.low, 1.0) if twin.low > 0 else math.inf
    return found._replace(low=found.low / stray, high=found.high * stray)


def _ratio(before: Sequence[float], after: Sequence[float], size: float) -> Ratio:
    """Of the speed: what takes half as long is twice as fast."""
    found = sorted(size * one / other for one, other in zip(before, after, strict=True))
    low, high = interval(found)
    return Ratio(median(found), low, high, len(found))


def interval(found: Sequence[float]) -> tuple[float, float]:
    """The interval of the median at `LEVEL`, whatever the distribution: between two of the sorted values.

    The true median has as many of them below it as heads come up in so many throws. Fewer than 6 have no such interval.
    """
    n = len(found)
    tail, k = 0.5**n, 0
    while 2 * (tail + math.comb(n, k + 1) * 0.5**n) <= 1 - LEVEL:
        k += 1
        tail += math.comb(n, k) * 0.5**n
    if 2 * tail > 1 - LEVEL:
        return -math.inf, math.inf
    return found[k], found[n - 1 - k]
