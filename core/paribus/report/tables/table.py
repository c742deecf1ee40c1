"""The table of a study: a row for each variant, and all that has to be said with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

from paribus.report.certificates.certificate import Certificate
from paribus.report.statistics.verdict import Better
from paribus.report.tables.family import Family
from paribus.report.tables.row import Row
from paribus.report.tables.section import Section

COLUMNS: Final = 80  # of the text that is printed where no terminal says how wide it is


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Table:
    """What a study has found: `print(table)` shows it, and so does a notebook."""

    study: str
    metric: str
    better: Better
    margin: float | None
    alpha: float
    seeds: tuple[int, ...]
    baseline: Row
    rows: tuple[Row, ...]
    caption: tuple[str, ...]  # how it is to be read, and how far it holds
    warnings: tuple[str, ...]  # what weakens it
    notes: tuple[str, ...]  # trials that are not in it, and why
    certificates: Mapping[str, Certificate]
    stage: str = ""  # at whose end the metric is measured, of a study with several
    besides: tuple[Family, ...] = ()  # the steps of a ladder, the effects of factors
    setting: str = ""  # in which it was held, of a study with several
    further: tuple[Table, ...] = ()  # the same in the other settings
    sections: tuple[Section, ...] = ()  # what is said of all of them: what transfers, what was tuned
    differences: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # by variant and seed

    @property
    def ok(self) -> bool:
        """Whether every planned trial came to a result, and no verdict was withheld: what exit code 0 says."""
        rows = [row for each in self.every for row in (each.baseline, *each.rows)]
        whole = all(row.kind != "withheld" and row.done == row.planned and not row.diverged for row in rows)
        families = [family for each in self.every for family in each.besides]
        return whole and all(each.ok for each in families) and all(each.ok for each in self.sections)

    @property
    def every(self) -> tuple[Table, ...]:
        """This table and those beside it: one for each setting."""
        return (self, *self.further)

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{row.variant}: {row.verdict}" for row in self.rows)
        return f"<verdicts of {self.study} on {self.metric}: {verdicts}>"

    def __str__(self) -> str:
        from paribus.report.shown.terminal import rendered

        return rendered(self, COLUMNS).rstrip()

    def to_markdown(self) -> str:
        """The table for a README or a pull request."""
        from paribus.report.shown.markdown import markdown

        return markdown(self)

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def to_json(self) -> dict[str, Any]:
        """Valid JSON: every number is finite, or null."""
        if self.further or self.sections:
            return self._several()
        return {
            "study": self.study,
            "metric": {
                "name": self.metric,
                "better": self.better,
                "margin": self.margin,
                **({"stage": self.stage} if self.stage else {}),
            },
            "alpha": self.alpha,
            "seeds": list(self.seeds),
            "baseline": self.baseline.to_json(self.metric),
            "rows": [row.to_json(self.metric) for row in self.rows],
            **{family.key: family.to_json() for family in self.besides},
            "caption": list(self.caption),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "certificates": {name: certificate.to_json() for name, certificate in self.certificates.items()},
        }

    def _several(self) -> dict[str, Any]:
        """The rows of all settings together, each with its own, and what else is said of each setting."""
        alone = [replace(each, further=(), sections=()).to_json() for each in self.every]
        rows = [
            {"setting": each.setting, **row}
            for each, document in zip(self.every, alone, strict=True)
            for row in document["rows"]
        ]
        told = ("study", "metric", "alpha", "seeds", "rows")
        settings = [
            {"setting": each.setting, **{key: value for key, value in document.items() if key not in told}}
            for each, document in zip(self.every, alone, strict=True)
        ]
        sections = {section.key: section.document for section in self.sections}
        return {**alone[0], "rows": rows, "settings": settings, **sections}
