"""Verdict tables as data: rows, families of rows, sections, and their JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, final

from paribus.analysis.answers import AnswerInterval
from paribus.analysis.certificates import Certificate
from paribus.analysis.costs import Cost
from paribus.analysis.verdict_words import UNLEARNED, RowKind
from paribus.analysis.verdicts import Better, Verdict

if TYPE_CHECKING:
    from altair import LayerChart
    from pandas import DataFrame

CLAIM_FIELDS: Final = (
    "kind",
    "verdict",
    "n",
    "planned",
    "difference",
    "low",
    "high",
    "level",
    "p",
    "needs",
    "needs_range",
)
OPTIONAL_FIELDS: Final = (
    "baseline",
    "aliases",
    "outliers",
    "across",
    "answers",
)  # left out of JSON where they are empty


@final
@dataclass(frozen=True, kw_only=True)
class Row:
    """A variant, step or effect. A row without a claim has no interval; a withheld row also has no difference."""

    variant: str
    kind: RowKind
    verdict: str
    n: int  # number of pairs of the difference; for the baseline, of its finished trials
    planned: int
    done: int = 0  # trials with a result
    diverged: int = 0
    failed: int = 0
    mean: float | None = None  # mean of the metric over the n trials; None for an effect
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None  # confidence level of the interval
    p: float | None = None
    needs: int | None = None
    needs_range: tuple[int, int | None] | None = None  # for the ends of the 95 % interval of the standard deviation
    variance_reduction: float | None = None
    learned: bool | None = None  # the mean beats the unigram baseline; None if unknown
    unlearned: int = 0  # number of trials that do not beat the unigram baseline
    costs: Mapping[str, Cost] = field(default_factory=dict)
    label: str = ""  # name of the baseline with its values of the varied options
    baseline: str = ""  # rung below, for a step of a ladder
    aliases: tuple[str, ...] = ()  # effects that a fraction confounds with this one
    outliers: tuple[int, ...] = ()  # seeds whose differences are outliers
    across: tuple[int, ...] = ()  # seeds whose pairs ran on two processors, or with two numbers of threads
    answers: AnswerInterval | None = None  # interval over other questions as well, where the answers are known

    @property
    def name(self) -> str:
        """The name that tables show."""
        return self.label or self.variant

    @property
    def flags(self) -> tuple[str, ...]:
        """Qualifications of the verdict."""
        flags = []
        if self.learned is False and self.verdict != UNLEARNED:
            flags.append("did not learn")
        elif self.unlearned and self.learned:
            flags.append(f"{self.unlearned}/{self.planned} did not learn")
        if self.failed and self.kind != "failed":
            flags.append(f"{self.failed}/{self.planned} failed")
        if self.kind != "diverged" and self.diverged:
            flags.append(f"{self.diverged}/{self.planned} diverged")
        if self.across:
            flags.append(f"{len(self.across)}/{self.n} across machines")
        return tuple(flags)

    @property
    def summary(self) -> str:
        """The verdict with its flags."""
        return ", ".join((self.verdict, *self.flags))

    def claim(self) -> dict[str, Any]:
        """Return the verdict and its numbers, without counts of single trials."""
        optional = {key: value for key in OPTIONAL_FIELDS if (value := getattr(self, key))} | self._answers_json()
        claim = {key: value for key, value in vars(self).items() if key in CLAIM_FIELDS}
        return replace_infinite({**claim, "verdict": self.summary, **optional})

    def to_json(self, metric: str) -> dict[str, Any]:
        separate = ("variant", "label", "costs", *OPTIONAL_FIELDS)
        fields = {key: value for key, value in vars(self).items() if key not in separate}
        costs: dict[str, Any] = {"contended": self.costs["tokens_per_second"].rough}
        for name, cost in self.costs.items():
            costs |= {name: cost.value, f"{name}_ratio": cost.ratio}
            if cost.low is not None:
                costs[f"{name}_interval"] = [cost.low, cost.high]
        optional = {key: list(value) for key in ("outliers", "across") if (value := getattr(self, key))}
        optional |= self._answers_json()
        return replace_infinite({"variant": self.variant, "metric": metric, **fields, **optional, **costs})

    def _answers_json(self) -> dict[str, Any]:
        return {} if self.answers is None else {"answers": dict(vars(self.answers))}


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """Return the fields of a row that come from its verdict; without an interval, the level is None."""
    return {
        "kind": verdict.kind,
        "verdict": verdict.text,
        "difference": verdict.difference,
        "low": verdict.low,
        "high": verdict.high,
        "level": verdict.level if verdict.low is not None else None,
        "p": verdict.p,
        "needs": verdict.needs,
        "needs_range": verdict.needs_range,
        "outliers": verdict.outliers,
    }


def replace_infinite(row: Mapping[str, Any]) -> dict[str, Any]:
    """Replace infinite numbers by None, as JSON has no infinity."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


@final
@dataclass(frozen=True, kw_only=True)
class Family:
    """Rows whose verdicts are corrected together, with their caption."""

    key: str  # key in JSON
    title: str
    rows: tuple[Row, ...]
    caption: tuple[str, ...]
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    withheld: bool = False  # a withheld row is a failure of the study, not a limit of its design

    @property
    def ok(self) -> bool:
        return not self.withheld or all(row.kind != "withheld" for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        certificates = {name: certificate.to_json() for name, certificate in self.certificates.items()}
        return {
            "rows": [{"name": row.variant, **row.claim()} for row in self.rows],
            "caption": list(self.caption),
            **({"certificates": certificates} if certificates else {}),
        }


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """Lines under a title above the tables, and the same facts as JSON."""

    key: str  # key in JSON
    title: str
    lines: tuple[str, ...]
    document: Mapping[str, Any]
    ok: bool = True  # everything that the study plans is there


Columns: TypeAlias = Sequence[str] | None  # names of columns; None for the default ones
TEXT_WIDTH: Final = 80  # characters in a line of a printed table


class Renderer(Protocol):
    """Output formats of a table. `paribus.compare` sets it, so that `print(table)` and the other formats work."""

    def text(self, table: Table, width: int) -> str:
        """Return the table as plain text."""

    def markdown(self, table: Table, columns: Columns) -> str:
        """Return the table as Markdown."""

    def latex(self, table: Table, columns: Columns, width: float | None) -> str:
        """Return the table as LaTeX."""

    def csv(self, table: Table, columns: Columns) -> str:
        """Return the rows as CSV."""

    def dataframe(self, table: Table) -> DataFrame:
        """Return the rows as a data frame of pandas."""

    def html(self, table: Table) -> str:
        """Return the table for a notebook."""

    def plot(self, table: Table) -> LayerChart:
        """Return the chart of the differences."""


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Table:
    """The verdicts of a study, which `print(table)` and a notebook show."""

    study: str
    metric: str
    better: Better
    margin: float | None
    alpha: float
    seeds: tuple[int, ...]
    baseline: Row
    rows: tuple[Row, ...]
    caption: tuple[str, ...]  # how to read the table, and what it generalises over
    warnings: tuple[str, ...]  # facts that weaken the table
    notes: tuple[str, ...]  # trials that are not in the table, and why
    certificates: Mapping[str, Certificate]
    last: int = 1  # evaluations whose mean is the metric of a trial
    correction: str = ""  # correction of the verdicts: `Holm over 4 variants`
    stage: str = ""  # stage at whose end the metric is measured, in a study with several
    families: tuple[Family, ...] = ()  # the steps of a ladder, the effects of factors
    setting: str = ""  # name of the setting, in a study with several
    other_settings: tuple[Table, ...] = ()  # tables of the other settings
    sections: tuple[Section, ...] = ()  # facts about all settings: transfer between scales, tuning
    differences: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # variant -> seed -> difference
    values: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # variant -> seed -> metric
    open_ended: bool = False  # verdicts hold at every number of seeds
    renderer: Renderer | None = field(default=None, compare=False)  # None: the table prints as its `repr`

    @property
    def ok(self) -> bool:
        """Return whether every planned trial has a result and no verdict is withheld, as exit code 0 reports."""
        rows = [row for table in self.settings for row in (table.baseline, *table.rows)]
        rows_ok = all(row.kind != "withheld" and row.done == row.planned and not row.diverged for row in rows)
        families = [family for table in self.settings for family in table.families]
        return rows_ok and all(family.ok for family in families) and all(section.ok for section in self.sections)

    def with_renderer(self, renderer: Renderer) -> Table:
        """Return this table and those of the other settings with the renderer that prints them."""
        settings = tuple(replace(setting, renderer=renderer) for setting in self.other_settings)
        return replace(self, renderer=renderer, other_settings=settings)

    @property
    def settings(self) -> tuple[Table, ...]:
        """This table and those of the other settings."""
        return (self, *self.other_settings)

    def __repr__(self) -> str:
        verdicts = ", ".join(f"{row.variant}: {row.verdict}" for row in self.rows)
        return f"<verdicts of {self.study} on {self.metric}: {verdicts}>"

    def __str__(self) -> str:
        return repr(self) if self.renderer is None else self.renderer.text(self, TEXT_WIDTH).rstrip()

    def to_markdown(self, columns: Columns = None) -> str:
        """Return the table for a README or a pull request, with these columns or all."""
        return repr(self) if self.renderer is None else self.renderer.markdown(self, columns)

    def to_latex(self, columns: Columns = None, *, width: float | None = None) -> str:
        """Return a table for one column of a paper and a table of costs for a full page, or one with these columns.

        With `width`, each table fits into a text of this width in points, and may be split into several for it.
        """
        return self._render.latex(self, columns, width)

    def to_csv(self, columns: Columns = None) -> str:
        """Return the rows as CSV, numbers unrounded, with these columns or all."""
        return self._render.csv(self, columns)

    def to_dataframe(self) -> DataFrame:
        """Return the rows of `to_csv` as a data frame. This needs the extra `pandas`."""
        return self._render.dataframe(self)

    def plot(self) -> LayerChart:
        """Return the differences with their intervals as an Altair chart; of several settings, those of the first."""
        return self._render.plot(self)

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str | None:
        return None if self.renderer is None else self.renderer.html(self)

    @property
    def _render(self) -> Renderer:
        if self.renderer is None:
            raise ValueError("this table has no renderer; `paribus.compare` returns one that has.")
        return self.renderer

    def to_json(self) -> dict[str, Any]:
        """Return valid JSON: every number is finite or null."""
        if self.other_settings or self.sections:
            return self._settings_json()
        return {
            "study": self.study,
            "metric": {
                "name": self.metric,
                "better": self.better,
                "margin": self.margin,
                **({"last": self.last} if self.last > 1 else {}),
                **({"stage": self.stage} if self.stage else {}),
            },
            "alpha": self.alpha,
            "open_ended": self.open_ended,
            "seeds": list(self.seeds),
            "baseline": self.baseline.to_json(self.metric),
            "rows": [row.to_json(self.metric) for row in self.rows],
            **{family.key: family.to_json() for family in self.families},
            "caption": list(self.caption),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
            "certificates": {name: certificate.to_json() for name, certificate in self.certificates.items()},
        }

    def _settings_json(self) -> dict[str, Any]:
        """Return the rows of all settings in one list, and all other keys by setting."""
        documents = [replace(setting, other_settings=(), sections=()).to_json() for setting in self.settings]
        rows = [
            {"setting": setting.setting, **row}
            for setting, document in zip(self.settings, documents, strict=True)
            for row in document["rows"]
        ]
        shared = ("study", "metric", "alpha", "open_ended", "seeds", "rows")
        settings = [
            {"setting": setting.setting, **{key: value for key, value in document.items() if key not in shared}}
            for setting, document in zip(self.settings, documents, strict=True)
        ]
        sections = {section.key: section.document for section in self.sections}
        return {**documents[0], "rows": rows, "settings": settings, **sections}
