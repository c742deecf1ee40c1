"""How fast variants train beside their baseline, from the timing pass after a study: paired rounds, and an interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, final

from paribus.studies.paired import TWIN, Ratio, ratio_of, widened


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

        The interval is wider by what the twin strays.
        """
        for group in self._groups():
            own = next((each for each in identities if each in group["rounds"]), None)
            if own is not None and group["baseline"] in baseline:
                tokens = self.document["tokens"]
                size = tokens[own] / tokens[group["baseline"]]
                found = _ratio(group["rounds"][group["baseline"]], group["rounds"][own], size)
                return found if own == group["baseline"] else widened(found, _twin(group))
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


def _ratio(before: Sequence[float], after: Sequence[float], size: float) -> Ratio:
    """Of the speed: what takes half as long is twice as fast."""
    return ratio_of(after, [size * each for each in before])
