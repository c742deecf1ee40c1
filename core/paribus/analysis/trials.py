"""Trials with their records, and the comparison that a study makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

from paribus.analysis.throughput import Throughput
from paribus.analysis.verdicts import Better
from paribus.planning.last_evaluations import with_last_mean
from paribus.planning.older_records import older_records
from paribus.planning.tuning import MAX_METRIC
from paribus.registry import Index
from paribus.storage.atomic import parse_number
from paribus.storage.store import State, Store, Trial
from paribus.studies.fractional_factorial import TIMES, RegularFraction, members

Cell = tuple[int, ...]  # the level of each factor; 0 is the base's


@final
class Level(NamedTuple):
    """A level of a factor other than the base's, which is level 0."""

    factor: int
    level: int


@final
@dataclass(frozen=True, kw_only=True)
class FactorialCells:
    """Cells of a factorial: the variant of each, and the reasons for missing ones."""

    factors: tuple[tuple[str, ...], ...]  # the names of the levels of each factor, without the base's
    cells: Mapping[Cell, str]  # cell -> variant; cells with the same spec share a variant
    missing: Mapping[Cell, str]  # cell -> reason
    regular: RegularFraction | None = None  # None for a full factorial

    @property
    def counts(self) -> list[int]:
        return [len(names) + 1 for names in self.factors]

    @property
    def all(self) -> list[Cell]:
        """All cells in the order of the study, including missing ones."""
        return sorted((*self.cells, *self.missing))

    def name(self, *levels: Level) -> str:
        """Return the name of an effect in the table."""
        return f" {TIMES} ".join(self.factors[level.factor][level.level - 1] for level in levels)

    def aliases(self, *levels: Level) -> tuple[str, ...]:
        """Return the single factors and pairs that a fraction confounds with an effect."""
        if self.regular is None:
            return ()
        masks = self.regular.aliases(sum(1 << level.factor for level in levels))
        return tuple(self.name(*(Level(factor, 1) for factor in members(mask))) for mask in masks)


@final
class Repetition(NamedTuple):
    """A trial of a program against its second run, by which the program may show that it is not repeatable."""

    label: str  # of the trial
    setting: str  # whose table has the trial
    is_equal: bool  # in every value of the metric
    deviation: float  # of the last value


@final
@dataclass(frozen=True, kw_only=True)
class ComparisonSpec:
    """The comparison that a study makes: variants, baseline, metric, seeds and options."""

    study: str
    baseline: str
    variants: Mapping[str, Mapping[str, Any]]  # variant -> the options that it changes; the baseline is one of them
    metric: str
    better: Better = "lower"
    margin: float | None = None
    seeds: tuple[int, ...] = ()
    store: str = ""  # folder that was searched for records
    stage: str = ""  # stage at whose end the metric is measured, in a study with several
    allow_unlearned: bool = False  # give verdicts to models that do not beat the unigram baseline
    budget: Mapping[str, float] = field(default_factory=dict)  # unit -> amount that each trial may use
    setting: str = ""  # name of the setting, in a study with several
    matching_note: str = ""  # budget that variants are matched on, with residuals
    mismatch_note: str = ""  # variants that no value of the option matches
    matched_option_notes: Mapping[str, str] = field(default_factory=dict)  # variant -> option, value and residual
    throughput: Throughput | None = None  # last timing pass after the study
    previous_looks: tuple[tuple[int, ...], ...] = ()  # seeds of each verdict that was shown before
    look_seeds: tuple[int, ...] = ()  # numbers of seeds of the looks; the last one is all seeds
    open_ended: bool = False  # verdicts hold at every number of seeds
    replanned: bool = False  # verdicts of these seeds were shown before with other looks
    alpha: float = 0.05
    design_note: str = ""  # explanation of the design for the caption
    rungs_below: Mapping[str, str] = field(default_factory=dict)  # of a ladder: rung -> rung below it
    factorial: FactorialCells | None = None
    excluded: tuple[tuple[str, str], ...] = ()  # (variant, reason) of the cells that the study does not run
    averaged: tuple[str, ...] = ()  # tasks whose average is the metric
    last: int = 1  # evaluations whose mean is the metric of a trial
    repetition: Repetition | None = None  # of a program; None if no trial was run again
    scope: str = "in all settings"  # of the verdicts that are corrected together, if there are several settings

    @property
    def swapped(self) -> tuple[str, ...]:
        """The variants that are compared with the baseline."""
        return tuple(name for name in self.variants if name != self.baseline)


@final
@dataclass(frozen=True, kw_only=True)
class TrialEntry:
    """One trial with its document, its state, and its record if it has one."""

    variant: str
    seed: int
    trial: Mapping[str, Any]
    record: Mapping[str, Any] | None = None
    state: State = "pending"
    failure: Mapping[str, Any] | None = None
    changed: tuple[str, ...] = ()  # what has changed since the record was made; if anything has, the record is stale
    rehearsal: Mapping[str, Any] | None = None  # first step of the trial in another process and environment
    parent: TrialEntry | None = None  # trial of an earlier stage that this one starts from
    tasks: tuple[TaskTrial, ...] = ()  # trials of several tasks that this one is the average of

    @property
    def identity(self) -> str:
        return str((self.record or self.trial)["identity"])

    @property
    def result(self) -> Mapping[str, Any]:
        """The reproducible part of the record; empty without a record."""
        result: Mapping[str, Any] = self.record["result"] if self.record else {}
        return result

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The digests of the record."""
        certificate: Mapping[str, Any] = self.result["certificate"]
        return certificate

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Where and how the trial ran; empty without a record."""
        provenance: Mapping[str, Any] = self.record["provenance"] if self.record else {}
        return provenance

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec of the record, or of the plan."""
        spec: Mapping[str, Any] = self.record["spec"] if self.record else self.trial["spec"]
        return spec

    @property
    def overrides(self) -> Mapping[str, Any]:
        """The keys that the study changed in the base for this variant, including matched options."""
        return {**(self.trial.get("changes") or {}), **(self.trial.get("matched_values") or {})}

    @property
    def budget_overrides(self) -> Mapping[str, Any]:
        """The keys that the budget of the study set for this trial alone."""
        return self.trial.get("budget_values") or {}

    @property
    def done(self) -> bool:
        return self.record is not None and self.state == "done"

    def value(self, metric: str) -> float | None:
        """Return the metric at the end of training; None if it is missing or not finite.

        That of a study with `metric.last` is the mean of its last evaluations, see `load_entries`.
        """
        metric_value = self.result["metrics"].get(metric) if self.done else None
        value = parse_number(metric_value) if metric_value is not None else math.nan
        return value if abs(value) <= MAX_METRIC else None

    def unigram_baseline(self, metric: str) -> float | None:
        """Return the metric of a model that predicts token frequencies; None if unknown."""
        loss = self.result.get("unigram_baseline", {}).get(metric)
        return None if loss is None else float(loss)

    def learning_threshold(self, metric: str) -> float | None:
        """Return the metric below which a model has learned: the unigram baseline less a tolerance."""
        limit = self.result.get("learned_below", {}).get(metric)
        return self.unigram_baseline(metric) if limit is None else float(limit)

    def has_learned(self, metric: str) -> bool | None:
        """Return whether the metric is below that of a model that predicts frequencies; None if unknown.

        A metric without such a baseline, such as an accuracy, counts as learned if a loss was below its baseline at an
        evaluation: one of the same objective, if it has any. The last loss may be above it in a model that overfits.
        An average counts as learned if half of its tasks are.
        """
        if self.tasks:
            learned = [task.entry.has_learned(task.metric) for task in self.tasks]
            return None if None in learned else 2 * sum(map(bool, learned)) >= len(learned)
        value, threshold = self.value(metric), self.learning_threshold(metric) if self.done else None
        if not self.done or value is None:
            return None
        if threshold is not None:
            return value < threshold
        losses = [*self.result.get("unigram_baseline", {})]
        own = [loss for loss in losses if loss.split("/")[:2] == metric.split("/")[:2]]
        thresholds = {loss: self.learning_threshold(loss) for loss in own or losses}
        points = [
            (point.get(loss), limit) for point in self.result.get("curve") or () for loss, limit in thresholds.items()
        ]
        known = [parse_number(value) < limit for value, limit in points if value is not None and limit is not None]
        return any(known) if known else None

    def diverged(self, metric: str) -> bool:
        """Return whether the loss or the metric was not finite."""
        return self.state == "diverged" or (
            self.done and metric in self.result["metrics"] and self.value(metric) is None
        )


@final
@dataclass(frozen=True, kw_only=True)
class TaskTrial:
    """The trial of one task of an average, and its metric."""

    task: str
    metric: str
    weight: float
    entry: TrialEntry


def load_entries(
    store: Store,
    trials: Iterable[Trial],
    index: Index,
    parents: Iterable[Trial] = (),
    records: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    metric: str = "",
    last: int = 1,
) -> list[TrialEntry]:
    """Return the trials of a study with their records in `store`, and stale records of the same specs.

    `parents` are the trials that they start from. `records` are all records of the store, if they were read already.
    In the records of the trials, `metric` is the mean of its `last` evaluations.
    """
    planned = {trial.identity: trial for trial in trials}
    parents = tuple(parents)
    stored = _StoredTrials(store, {**{trial.identity: trial for trial in parents}, **planned}, records)
    entries = [stored.entry(trial) for trial in planned.values()]
    for older in older_records(store, planned.values(), parents, stored.records, index):
        document = {**older.document, "changes": dict(older.trial.changes)}
        entries.append(stored.entry(older.trial, document, older.changed))
    return [
        entry if entry.record is None else replace(entry, record=with_last_mean(entry.record, metric, last))
        for entry in entries
    ]


def read_records(store: Store) -> dict[str, Mapping[str, Any]]:
    """Return every record of a store, by its identity."""
    return {record["identity"]: record for record in store.records()}


@final
class _StoredTrials:
    """The records of a store, with the trials of a plan."""

    def __init__(
        self, store: Store, planned: Mapping[str, Trial], records: Mapping[str, Mapping[str, Any]] | None
    ) -> None:
        self.store = store
        self.planned = planned
        self.records = read_records(store) if records is None else records

    def entry(
        self, trial: Trial, document: Mapping[str, Any] | None = None, changed: tuple[str, ...] = ()
    ) -> TrialEntry:
        """Return a trial with its parents; `document` is by default the trial's own, or that of an older trial."""
        document = document or trial.document()
        record = self.records.get(document["identity"])
        parent_id = document.get("parent_id") or ""
        return TrialEntry(
            variant=trial.variant,
            seed=trial.seed,
            trial=document,
            record=record,
            state=record["result"]["state"] if record else self.store.state(document["identity"]),
            failure=None if record else self.store.failure(document["identity"]),
            changed=changed,
            rehearsal=self.store.rehearsal(document["identity"]) if record else None,
            parent=self._parent(parent_id, trial) if parent_id else None,
        )

    def _parent(self, identity: str, trial: Trial) -> TrialEntry | None:
        if identity in self.planned:
            return self.entry(self.planned[identity])
        document = self.store.trial(identity)
        return None if document is None else self.entry(trial, document)
