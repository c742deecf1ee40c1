"""What a benchmark leaves behind: figures beside the goals that they are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from benchmarks.paired import Estimate, Verdict, verdict


@final
@dataclass(frozen=True)
class Claim:
    """One row of the table. Without a limit it is told for information, and nothing is claimed."""

    goal: str  # its number in README.md; "": none
    what: str
    measured: Estimate
    unit: str = "×"  # noqa: RUF001  # times, and not the letter
    limit: float | None = None
    at_most: bool = True
    twin: Estimate | None = None  # the reference against itself
    contrast: Estimate | None = None  # what is known to miss the limit
    nothing: float = 1.0  # what the twin would be, were there no noise
    note: str = ""

    @property
    def verdict(self) -> Verdict | None:
        if self.limit is None:
            return None
        return verdict(
            self.measured,
            self.limit,
            at_most=self.at_most,
            twin=self.twin,
            contrast=self.contrast,
            nothing=self.nothing,
        )


def counted(goal: str, what: str, count: int, note: str = "") -> Claim:
    """Something that is to be 0, and is counted and not timed."""
    return Claim(goal, what, Estimate(count, count, count), unit="", limit=0, note=note)


def to_json(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    return [asdict(claim) for claim in claims]


def from_json(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    return [Claim(**{key: _estimate(value) for key, value in row.items()}) for row in rows]


def _estimate(value: Any) -> Any:
    return Estimate(**value) if isinstance(value, dict) else value


def microseconds(times: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Raw rounds as they are saved: nobody measures less than a tenth of a microsecond here."""
    return {name: [round(value * 1e6, 1) for value in values] for name, values in times.items()}
