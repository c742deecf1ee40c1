"""What a report is made of: the trials of a study as their store has them, and what the study asks of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, final

from paribus.durable import digest_json, number
from paribus.report.statistics.verdict import Better
from paribus.report.trials.pace import Pace
from paribus.studies.identity import identity_of
from paribus.studies.store import State, Store, Trial
from paribus.studies.tuning import LARGEST

if TYPE_CHECKING:
    from paribus.report.verdicts.crossed import Crossed

Stale = Literal["", "code", "data"]


@final
@dataclass(frozen=True, kw_only=True)
class Question:
    """What a study asks: which variants differ from the baseline in a metric, over which seeds."""

    study: str
    baseline: str
    variants: Mapping[str, Mapping[str, Any]]  # in order, with what each varies; the baseline is one of them
    metric: str
    better: Better = "lower"
    margin: float | None = None
    seeds: tuple[int, ...] = ()
    store: str = ""  # the folder that was searched for records
    stage: str = ""  # at whose end it is measured, of a study with several
    unlearned: bool = False  # whether verdicts are wanted of models that are no better than frequencies alone
    budget: Mapping[str, float] = field(default_factory=dict)  # in which unit each trial was given how much
    setting: str = ""  # in which of several it is asked
    matched: str = ""  # on what, and how nearly
    mismatched: str = ""  # what no knob brought near
    knobs: Mapping[str, str] = field(default_factory=dict)  # of each variant: what was turned for it, and how nearly
    pace: Pace | None = None  # what the timing pass after the study measured
    looks: tuple[tuple[int, ...], ...] = ()  # the seeds of verdicts that were shown before
    stops: tuple[int, ...] = ()  # the numbers of seeds at which it may stop early, the last of which is all
    replanned: bool = False  # whether verdicts of these seeds were shown that stopped elsewhere
    alpha: float = 0.05
    about: str = ""  # how the design is to be read, where that is not plain
    below: Mapping[str, str] = field(default_factory=dict)  # of a ladder: rung -> the one that it is a step from
    crossed: Crossed | None = None  # the cells of a factorial
    excluded: tuple[tuple[str, str], ...] = ()  # cells that the study does not run, and why

    @property
    def others(self) -> tuple[str, ...]:
        """The variants that are held against the baseline."""
        return tuple(name for name in self.variants if name != self.baseline)


@final
@dataclass(frozen=True, kw_only=True)
class Entry:
    """One trial: its document, its record where it came to one, and else how it ended."""

    variant: str
    seed: int
    trial: Mapping[str, Any]
    record: Mapping[str, Any] | None = None
    state: State = "pending"
    failure: Mapping[str, Any] | None = None
    stale: Stale = ""  # what has changed since the record was made
    before: Entry | None = None  # of a study with stages: the trial that it begins from

    @property
    def result(self) -> Mapping[str, Any]:
        """All that comes out the same when the trial is run again; empty where there is no record."""
        result: Mapping[str, Any] = self.record["result"] if self.record else {}
        return result

    @property
    def certificate(self) -> Mapping[str, Any]:
        """The digests of the record."""
        certificate: Mapping[str, Any] = self.result["certificate"]
        return certificate

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Where and how it ran; empty where there is no record."""
        provenance: Mapping[str, Any] = self.record["provenance"] if self.record else {}
        return provenance

    @property
    def spec(self) -> Mapping[str, Any]:
        """What ran, or what would run."""
        spec: Mapping[str, Any] = self.record["spec"] if self.record else self.trial["spec"]
        return spec

    @property
    def asked(self) -> Mapping[str, Any]:
        """Dotted key -> value: what the study changed in the base to come to this variant, matched knobs included."""
        return {**(self.trial.get("varied") or {}), **(self.trial.get("matched") or {})}

    @property
    def cut(self) -> Mapping[str, Any]:
        """Dotted key -> value: where the study's budget cut this trial, at another place than others."""
        return self.trial.get("cut") or {}

    @property
    def done(self) -> bool:
        return self.record is not None and self.state == "done"

    def value(self, metric: str) -> float | None:
        """The metric at the end of the training, where there is one and it is a number."""
        found = self.result["metrics"].get(metric) if self.done else None
        value = number(found) if found is not None else math.nan
        return value if abs(value) <= LARGEST else None

    def frequencies(self, metric: str) -> float | None:
        """What the metric would be by frequencies alone, where that is known."""
        found = self.result.get("frequencies", {}).get(metric)
        return None if found is None else float(found)

    def diverged(self, metric: str) -> bool:
        """Whether it ran to no result: a loss that was no number, or a metric that is none."""
        return self.state == "diverged" or (
            self.done and metric in self.result["metrics"] and self.value(metric) is None
        )


def gathered(
    store: Store,
    trials: Iterable[Trial],
    others: Iterable[Trial] = (),
    records: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Entry]:
    """The trials of a study as `store` has them, and the stale records of the same specs with other code or data.

    `others` are those that they begin from, and `records` all that the store has, where they have been read already.
    """
    wanted = {trial.identity: trial for trial in trials}
    shelf = _Shelf(store, {**{trial.identity: trial for trial in others}, **wanted}, records)
    entries = [shelf.entry(trial) for trial in wanted.values()]
    same = {shelf.line(trial.spec): trial for trial in wanted.values()}
    for identity, record in shelf.records.items():
        document = store.trial(identity) or {}
        trial = same.get(shelf.line(record["spec"])) if identity not in wanted else None
        if trial is not None and document:
            stale: Stale = "code" if document["corpus"] == trial.corpus else "data"
            entries.append(shelf.entry(trial, {**document, "varied": dict(trial.varied)}, stale))
    return entries


def recorded(store: Store) -> dict[str, Mapping[str, Any]]:
    """Every record of a store, by its identity."""
    return {record["identity"]: record for record in store.records()}


@final
class _Shelf:
    """What a store has, and what the study knows of it."""

    def __init__(
        self, store: Store, planned: Mapping[str, Trial], records: Mapping[str, Mapping[str, Any]] | None
    ) -> None:
        self.store = store
        self.planned = planned
        self.records = recorded(store) if records is None else records

    def entry(self, trial: Trial, document: Mapping[str, Any] | None = None, stale: Stale = "") -> Entry:
        """A trial, and what it begins from; `document` is of an older one of the same spec."""
        document = document or trial.document()
        record = self.records.get(document["identity"])
        begins = document.get("begins") or ""
        return Entry(
            variant=trial.variant,
            seed=trial.seed,
            trial=document,
            record=record,
            state=record["result"]["state"] if record else self.store.state(document["identity"]),
            failure=None if record else self.store.failure(document["identity"]),
            stale=stale,
            before=self._before(begins, trial) if begins else None,
        )

    def _before(self, identity: str, trial: Trial) -> Entry | None:
        if identity in self.planned:
            return self.entry(self.planned[identity])
        document = self.store.trial(identity)
        return None if document is None else self.entry(trial, document)

    def line(self, spec: Mapping[str, Any]) -> str:
        """What a spec is called whatever its code and data, and those of the trials that it follows from."""
        began = spec.get("from") or {}
        if "trial" not in began:
            return identity_of(spec, "", "")
        plain = {**spec, "from": {key: value for key, value in began.items() if key != "trial"}}
        before = self._spec(began["trial"])
        return digest_json([identity_of(plain, "", ""), began["trial"] if before is None else self.line(before)])

    def _spec(self, identity: str) -> Mapping[str, Any] | None:
        if identity in self.planned:
            return self.planned[identity].spec
        record = self.records.get(identity)
        spec: Mapping[str, Any] | None = None if record is None else record["spec"]
        return spec
