"""Two trials with records, whose certificate is asked for, and what may differ between them."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, final

from paribus.report.trials.entry import Entry
from paribus.studies.differences import MISSING

DATA: Final = ("objective", "corpus", "tokenizer", "data", "dims.length", "dims.vocabulary", "trainer")
"""What decides the batches: one of these varied, they may differ."""
BUDGET: Final = ("trainer", "data.batch", "dims.length")
LASTING: Final = "trainer.max_time"
TRAINING: Final = (*DATA, "evaluate", "measure", "optimizer", "schedule", "dropout")
"""What an untrained model's outputs need not show."""

Finding = tuple[Literal["failure", "side effect", "confirmed"], str]


@final
class Pair(NamedTuple):
    """Two trials with records, and what may differ between them."""

    baseline: Entry
    variant: Entry

    @property
    def keys(self) -> frozenset[str]:
        """What the study asked otherwise of the one than of the other."""
        one, other = self.baseline.asked, self.variant.asked
        return frozenset(key for key in {**one, **other} if one.get(key, MISSING) != other.get(key, MISSING))

    @property
    def cut(self) -> frozenset[str]:
        """Where the budget cut them, each at its own place."""
        return frozenset(self.baseline.cut) | frozenset(self.variant.cut)

    @property
    def steps(self) -> tuple[int, int]:
        return self.baseline.result["steps"], self.variant.result["steps"]

    @property
    def alike(self) -> bool:
        """Whether both ran to their end, and equally far: their batches and losses can be held against each other."""
        return self.baseline.done and self.variant.done and len(set(self.steps)) == 1

    def equal(self, digest: str) -> bool:
        return bool(self.baseline.certificate[digest] == self.variant.certificate[digest])
