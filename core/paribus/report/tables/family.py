"""What a table says besides: the steps of a ladder, the effects of factors. Each kind is a family of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from paribus.report.certificates.certificate import Certificate
from paribus.report.tables.row import Row


@final
@dataclass(frozen=True, kw_only=True)
class Family:
    """Verdicts that are corrected together, and how they are to be read."""

    key: str  # what it is called in JSON
    title: str
    rows: tuple[Row, ...]
    caption: tuple[str, ...]
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    withheld: bool = False  # whether what is withheld here is a failure of the study, and not of its design

    @property
    def ok(self) -> bool:
        return not self.withheld or all(row.kind != "withheld" for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        certificates = {name: each.to_json() for name, each in self.certificates.items()}
        return {
            "rows": [{"name": row.variant, **row.told()} for row in self.rows],
            "caption": list(self.caption),
            **({"certificates": certificates} if certificates else {}),
        }
