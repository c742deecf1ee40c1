"""What a table says besides: the steps of a ladder, the effects of factors. Each kind is a family of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from paribus.report.certificates.certificate import Certificate
from paribus.report.statistics.verdict import Verdict
from paribus.report.tables.table import Row, RowKind, finite

BARE: Final = ("against", "aliases")  # said only where there is something to say


@final
@dataclass(frozen=True, kw_only=True)
class Contrast:
    """One number of each seed's trials, over the seeds: how far a rung is from the one below, what a factor does."""

    name: str
    kind: RowKind
    verdict: str
    n: int  # seeds that it is of
    planned: int
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None  # of the interval
    p: float | None = None
    needs: int | None = None
    against: str = ""  # of a step: the rung below it
    aliases: tuple[str, ...] = ()  # of an effect: what it is not told apart from

    def to_json(self) -> dict[str, Any]:
        return finite({key: value for key, value in vars(self).items() if value or key not in BARE})


@final
@dataclass(frozen=True, kw_only=True)
class Contrasts:
    """A family of them, and how it is to be read."""

    key: str  # what it is called in JSON
    title: str
    rows: tuple[Contrast, ...]
    caption: tuple[str, ...]
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    withheld: bool = False  # whether what is withheld here is a failure of the study, and not of its design

    @property
    def ok(self) -> bool:
        return not self.withheld or all(row.kind != "withheld" for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        certificates = {name: each.to_json() for name, each in self.certificates.items()}
        return {
            "rows": [row.to_json() for row in self.rows],
            "caption": list(self.caption),
            **({"certificates": certificates} if certificates else {}),
        }


def step_of(row: Row, against: str) -> Contrast:
    """A row of a table whose baseline is the rung below."""
    return Contrast(
        name=row.variant,
        kind=row.kind,
        verdict=", ".join((row.verdict, *row.flags)),
        n=row.n,
        planned=row.planned,
        difference=row.difference,
        low=row.low,
        high=row.high,
        level=row.level,
        p=row.p,
        needs=row.needs,
        against=against,
    )


def effect_of(name: str, verdict: Verdict, planned: int, withheld: str, aliases: tuple[str, ...] = ()) -> Contrast:
    """An effect with its verdict, or the reason why there is none."""
    if withheld:
        return Contrast(name=name, kind="withheld", verdict=withheld, n=verdict.n, planned=planned, aliases=aliases)
    return Contrast(
        name=name,
        kind=verdict.kind,
        verdict=verdict.text,
        n=verdict.n,
        planned=planned,
        difference=verdict.difference,
        low=verdict.low,
        high=verdict.high,
        level=verdict.level if verdict.low is not None else None,
        p=verdict.p,
        needs=verdict.needs,
        aliases=aliases,
    )
