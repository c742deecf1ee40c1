"""Two trials of a fairness certificate, and what may differ between them."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, final

from paribus.analysis.trials import TrialEntry
from paribus.specs.diff import MISSING

DATA: Final = ("objective", "corpus", "tokenizer", "data", "dims.length", "dims.vocabulary", "trainer")
"""Options that decide the batches. If one is varied, batches may differ."""

UPDATES: Final = ("optimizer", "schedule")
"""Options that apply after the gradients of a step. If only these are varied, the first gradients are equal."""

TRAINING: Final = (*DATA, "evaluate", "measure", "optimizer", "schedule", "dropout", "freeze")
"""Options that need not change the outputs of an untrained model."""

TIME_LIMIT: Final = "trainer.max_time"

Finding = tuple[Literal["failure", "side effect", "confirmed", "weights", "batches", "budget", "optimizer"], str]
"""Kind and text. The last four are what an option of a program may change on purpose, and otherwise failures."""


@final
class TrialPair(NamedTuple):
    """Two trials with records, and what may differ between them."""

    baseline: TrialEntry
    variant: TrialEntry

    @property
    def varied(self) -> frozenset[str]:
        """The keys that the study set differently in the two trials."""
        baseline, variant = self.baseline.overrides, self.variant.overrides
        keys = {**baseline, **variant}
        return frozenset(key for key in keys if baseline.get(key, MISSING) != variant.get(key, MISSING))

    @property
    def effects(self) -> frozenset[str]:
        """What the varied options of a program change on purpose."""
        stated = self.variant.trial.get("effects") or {}
        return frozenset(kind for key in self.varied for kind in stated.get(key, ()))

    @property
    def budget_overrides(self) -> frozenset[str]:
        """The keys that the budget set, in each trial for itself."""
        return frozenset(self.baseline.budget_overrides) | frozenset(self.variant.budget_overrides)

    @property
    def steps(self) -> tuple[int, int]:
        return self.baseline.result["steps"], self.variant.result["steps"]

    @property
    def same_length(self) -> bool:
        """Return whether both finished with the same number of steps, so that their batches and losses compare."""
        return self.baseline.done and self.variant.done and len(set(self.steps)) == 1

    def equal(self, digest: str) -> bool:
        return bool(self.baseline.certificate[digest] == self.variant.certificate[digest])
