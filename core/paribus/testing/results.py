"""What a conformance run comes to: which checks hold, which do not apply, and a counterexample of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

HOLDS: Final = ""
DOES_NOT_APPLY: Final = None

Verdict = str | None
"""Of one check in one model: a counterexample in a sentence, HOLDS, or DOES_NOT_APPLY."""


class Finding(NamedTuple):
    """A check that does not hold: in which model, and what shows it."""

    check: str
    model: str  # "gpt-tiny, position=rope"; empty where no model is needed to see it
    what: str

    def __str__(self) -> str:
        return f"{self.check}" + (f" ({self.model})" if self.model else "") + f": {self.what}"


@final
@dataclass(frozen=True)
class Report:
    """What was found of one component."""

    topic: str  # attention.gqa
    passed: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()  # checks that nothing the component declares makes applicable
    findings: tuple[Finding, ...] = ()
    models: int = 0  # in how many models it was tried

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
    """A component breaks the contract of its slot; the report says where."""

    def __init__(self, report: Report) -> None:
        self.report = report
        super().__init__(str(report))
