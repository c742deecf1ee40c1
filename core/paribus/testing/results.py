"""Results of a conformance run: passed and skipped checks, and a counterexample for each failed check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

HOLDS: Final = ""
DOES_NOT_APPLY: Final = None

Verdict = str | None
"""Result of one check in one model: a counterexample in a sentence, HOLDS, or DOES_NOT_APPLY."""


class Finding(NamedTuple):
    """Failed check, with the model and a counterexample."""

    check: str
    model: str  # "gpt-tiny, position=rope"; empty if the failure concerns no model
    message: str

    def __str__(self) -> str:
        return f"{self.check}" + (f" ({self.model})" if self.model else "") + f": {self.message}"


@final
@dataclass(frozen=True)
class Report:
    """Conformance report of one component."""

    topic: str  # attention.gqa
    passed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()  # checks that do not apply to the traits of the component
    findings: tuple[Finding, ...] = ()
    models: int = 0  # number of models that the checks ran in

    @property
    def ok(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        count = len(self.passed) + len(self.findings)
        if self.ok:
            return f"{self.topic} conforms: {count} checks hold in {self.models} models"
        lines = [f"  {finding}" for finding in self.findings]
        return "\n".join([f"{self.topic} does not conform: {len(self.findings)} of {count} checks fail", *lines])

    def to_json(self) -> dict[str, Any]:
        return {
            "component": self.topic,
            "ok": self.ok,
            "models": self.models,
            "passed": list(self.passed),
            "skipped": list(self.skipped),
            "findings": [finding._asdict() for finding in self.findings],
        }


class NotConformingError(AssertionError):
    """Error for a component that breaks the contract of its slot; carries the report."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__(str(report))
