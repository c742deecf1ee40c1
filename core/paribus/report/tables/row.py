"""A row of a table: what is said of one variant, of one step of a ladder, or of one effect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

from paribus.report.statistics.verdict import Kind, Verdict
from paribus.report.trials.costs import Cost

UNLEARNED: Final = "withheld (did not learn: no verdict)"
TOLD: Final = ("kind", "verdict", "n", "planned", "difference", "low", "high", "level", "p", "needs")
BARE: Final = ("against", "aliases")  # said only where there is something to say

RowKind = Kind | Literal["withheld", "baseline"]


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """One variant, or one effect. Where nothing may be claimed it has no interval, and where withheld no difference."""

    variant: str
    kind: RowKind
    verdict: str
    n: int  # pairs that the difference is of; of the baseline: its finished trials
    planned: int
    done: int = 0  # trials with a result
    diverged: int = 0
    failed: int = 0
    mean: float | None = None  # of the metric, over the trials that n counts; of an effect there is none
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None  # of the interval
    p: float | None = None
    needs: int | None = None
    variance_reduction: float | None = None
    learned: bool | None = None  # whether it is below the loss of frequencies alone; None where that cannot be asked
    unlearned: int = 0  # trials that are not below it
    costs: Mapping[str, Cost] = field(default_factory=dict)
    against: str = ""  # of a step: the rung below it
    aliases: tuple[str, ...] = ()  # of an effect: what it is not told apart from

    @property
    def flags(self) -> tuple[str, ...]:
        """What must be read together with the verdict."""
        flags = []
        if self.learned is False and self.verdict != UNLEARNED:
            flags.append("did not learn")
        elif self.unlearned and self.learned:
            flags.append(f"{self.unlearned}/{self.planned} did not learn")
        if self.failed:
            flags.append(f"{self.failed}/{self.planned} failed")
        if self.kind != "diverged" and self.diverged:
            flags.append(f"{self.diverged}/{self.planned} diverged")
        return tuple(flags)

    @property
    def said(self) -> str:
        """The verdict, and what must be read with it."""
        return ", ".join((self.verdict, *self.flags))

    def told(self) -> dict[str, Any]:
        """What a row says of whatever it is of, and nothing of single trials."""
        bare = {key: value for key in BARE if (value := getattr(self, key))}
        plain = {key: value for key, value in vars(self).items() if key in TOLD}
        return finite({**plain, "verdict": self.said, **bare})

    def to_json(self, metric: str) -> dict[str, Any]:
        plain = {key: value for key, value in vars(self).items() if key not in ("variant", "costs", *BARE)}
        costs: dict[str, Any] = {"contended": self.costs["tokens_per_second"].rough}
        for name, cost in self.costs.items():
            costs |= {name: cost.value, f"{name}_ratio": cost.ratio}
            if cost.low is not None:
                costs[f"{name}_interval"] = [cost.low, cost.high]
        return finite({"variant": self.variant, "metric": metric, **plain, **costs})


def decided(verdict: Verdict) -> dict[str, Any]:
    """What a row has from its verdict; an interval that is not shown has no level."""
    return {
        "kind": verdict.kind,
        "verdict": verdict.text,
        "difference": verdict.difference,
        "low": verdict.low,
        "high": verdict.high,
        "level": verdict.level if verdict.low is not None else None,
        "p": verdict.p,
        "needs": verdict.needs,
    }


def finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity: what is none becomes null."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
