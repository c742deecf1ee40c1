"""Claims of a benchmark: estimates with the goals that they are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from benchmarks.paired import Estimate, Verdict, verdict


@final
@dataclass(frozen=True)
class Claim:
    """Row of the table of results. Without a limit, it is only informative."""

    goal: str  # its number in GOALS.md, or empty
    what: str
    measured: Estimate
    unit: str = "×"  # noqa: RUF001  # the multiplication sign
    limit: float | None = None
    at_most: bool = True
    twin: Estimate | None = None  # the reference against itself
    contrast: Estimate | None = None  # a variant known to miss the limit
    nothing: float = 1.0  # value of the twin without noise
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
            null_value=self.nothing,
        )


def counted(goal: str, name: str, count: int, note: str = "") -> Claim:
    """Return a claim that a count is 0."""
    return Claim(goal, name, Estimate(count, count, count), unit="", limit=0, note=note)


def to_json(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    return [asdict(claim) for claim in claims]


def from_json(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    return [Claim(**{key: _estimate(value) for key, value in row.items()}) for row in rows]


def _estimate(value: Any) -> Any:
    return Estimate(**value) if isinstance(value, dict) else value


def microseconds(times: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return raw rounds in microseconds, rounded to a tenth."""
    return {name: [round(value * 1e6, 1) for value in values] for name, values in times.items()}
