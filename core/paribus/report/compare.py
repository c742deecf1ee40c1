"""From the trials of a study to its table: pair, certify, decide."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from paribus.errors import listed
from paribus.report.captions import caption, plural, warnings
from paribus.report.certificate import Certificate, merged
from paribus.report.comparable import refuse
from paribus.report.costs import Pairs, costs
from paribus.report.entry import Entry, Question
from paribus.report.line import certify_line
from paribus.report.select import ENDED, Chosen, select
from paribus.report.statistics import variance_reduction
from paribus.report.table import UNLEARNED, Row, Table
from paribus.report.verdict import Paired, Verdict, decide

RUNTIME: Final = ("torch",)  # whose versions no pair may mix


@final
@dataclass(frozen=True, kw_only=True)
class Held:
    """One variant held against the baseline, seed by seed."""

    pairs: Pairs  # both have a record, and ran on the same torch and kind of device
    mixed: tuple[str, ...]  # pairs that did not
    certificate: Certificate | None
    finished: Pairs  # of the pairs, those with a number on both sides

    @property
    def reason(self) -> str:
        """Why there is no verdict; empty where there is one."""
        if self.certificate is not None and not self.certificate.ok:
            return self.certificate.reason
        return "other versions or devices than the baseline's" if self.mixed and not self.pairs else ""


def compare(entries: Iterable[Entry], question: Question, *, accept_code: Collection[str] = ()) -> Table:
    """The verdicts of a study, all of them together; a `NotComparableError` where its trials are not of one kind.

    Verdicts are of the seeds that both sides finished. A pair across two versions of torch, or across a CPU and an
    accelerator, is left out: its difference would be theirs as well. Other packages may differ, and are named.
    """
    if question.baseline not in question.variants:
        names = listed(question.variants)
        raise ValueError(f"`baseline` must be one of the variants, but is `{question.baseline}`; valid: {names}.")
    selection = select(entries, question, accept_code)
    trials = selection.trials
    refuse(trials, question, selection.notes)
    held = {name: _held(trials, name, question) for name in question.others}
    verdicts = decide(
        {name: _paired(trials, name, held[name], question) for name in question.others},
        better=question.better,
        margin=question.margin,
        alpha=question.alpha,
    )
    rows = tuple(_row(trials, name, held[name], verdicts[name], question) for name in question.others)
    baseline = _baseline(trials, question)
    every = [entry for own in trials.values() for entry in own.values()]
    pairs = {name: each.pairs for name, each in held.items()}
    dropped = tuple(_dropped(trials, held, question))
    return Table(
        study=question.study,
        stage=question.stage,
        metric=question.metric,
        better=question.better,
        margin=question.margin,
        alpha=question.alpha,
        seeds=question.seeds,
        baseline=baseline,
        rows=rows,
        caption=tuple(caption(question, rows, every)),
        warnings=(*selection.warnings, *warnings(question, (baseline, *rows), every, pairs)),
        notes=(*dropped, *selection.notes),
        certificates={name: each.certificate for name, each in held.items() if each.certificate is not None},
    )


def _held(trials: Chosen, name: str, question: Question) -> Held:
    both = [
        (trials[question.baseline][seed], entry)
        for seed, entry in sorted(trials[name].items())
        if seed in trials[question.baseline]
    ]
    recorded = [pair for pair in both if pair[0].record is not None and pair[1].record is not None]
    pairs = [pair for pair in recorded if not _mixed(pair)]
    certificates = [certify_line(*pair) for pair in recorded]
    return Held(
        pairs=pairs,
        mixed=tuple(f"seed {pair[1].seed}: {_mixed(pair)}" for pair in recorded if _mixed(pair)),
        certificate=merged(certificates) if certificates else None,
        finished=[pair for pair in pairs if all(entry.value(question.metric) is not None for entry in pair)],
    )


def _mixed(pair: tuple[Entry, Entry]) -> str:
    """In what the pair differs that would show in its numbers; nothing where it does not."""
    before, after = (_runtime(entry) for entry in pair)
    return ", ".join(f"{key} {before[key]} against {after[key]}" for key in before if before[key] != after[key])


def _runtime(entry: Entry) -> dict[str, str]:
    versions, machine = entry.provenance.get("versions") or {}, entry.provenance.get("machine") or {}
    releases = {name: str(versions.get(name)).partition("+")[0] for name in RUNTIME}  # a build is told by its device
    return {**releases, "device": str(machine.get("device"))}


def _values(pairs: Pairs, metric: str) -> tuple[list[float], list[float]]:
    """The baseline's numbers and the variant's, of finished pairs."""
    found = [
        [value for value in (entry.value(metric) for entry in side) if value is not None]
        for side in zip(*pairs, strict=True)
    ]
    return (found[0], found[1]) if found else ([], [])


def _paired(trials: Chosen, name: str, held: Held, question: Question) -> Paired:
    """What is decided on. A variant whose verdict is withheld stays in the family, where it proves nothing."""
    before, after = _values(held.finished, question.metric)
    return Paired(
        differences=() if held.reason else tuple(b - a for a, b in zip(before, after, strict=True)),
        diverged=_diverged(trials[name], question),
        baseline_diverged=_diverged(trials[question.baseline], question),
        planned=len(question.seeds),
    )


def _row(trials: Chosen, name: str, held: Held, verdict: Verdict, question: Question) -> Row:
    before, after = _values(held.finished, question.metric)
    own = list(trials[name].values())
    common: dict[str, Any] = {
        **_counts(own, question),
        "variant": name,
        "n": len(after),
        "mean": _mean(after) if after else _mean(_numbers(own, question)),
        "learned": _learned(own, question),
        "costs": costs(own, list(trials[question.baseline].values()), held.pairs),
    }
    if held.reason:
        return Row(kind="withheld", verdict=f"withheld ({held.reason})", **common)
    learned = (_learned(list(trials[question.baseline].values()), question), common["learned"])
    if not question.unlearned and _empty(verdict.kind, *learned):
        return Row(kind="withheld", verdict=UNLEARNED, **common)
    return Row(
        kind=verdict.kind,
        verdict=verdict.text,
        difference=verdict.difference,
        low=verdict.low,
        high=verdict.high,
        level=verdict.level if verdict.low is not None else None,
        p=verdict.p,
        needs=verdict.needs,
        variance_reduction=variance_reduction(before, after),
        **common,
    )


def _empty(kind: str, baseline: bool | None, variant: bool | None) -> bool:
    """Whether a claim would be of models that know nothing yet.

    That one side learned and the other did not is a finding; that both did alike, where one did not, is none.
    """
    if kind == "equivalent":
        return baseline is False or variant is False
    return kind in ("better", "worse") and baseline is False and variant is False


def _baseline(trials: Chosen, question: Question) -> Row:
    own = list(trials[question.baseline].values())
    numbers = _numbers(own, question)
    return Row(
        variant=question.baseline,
        kind="baseline",
        verdict="baseline",
        n=len(numbers),
        mean=_mean(numbers),
        learned=_learned(own, question),
        costs=costs(own, own, [(entry, entry) for entry in own]),
        **_counts(own, question),
    )


def _counts(own: Sequence[Entry], question: Question) -> dict[str, int]:
    failed = sum(entry.record is None and entry.state in ENDED for entry in own)
    diverged = sum(entry.diverged(question.metric) for entry in own)
    done = sum(entry.done for entry in own)
    return {"planned": len(question.seeds), "done": done, "diverged": diverged, "failed": failed}


def _diverged(own: Mapping[int, Entry], question: Question) -> int:
    return sum(entry.diverged(question.metric) for entry in own.values())


def _numbers(own: Sequence[Entry], question: Question) -> list[float]:
    return [value for value in (entry.value(question.metric) for entry in own) if value is not None]


def _mean(numbers: Sequence[float]) -> float | None:
    return math.fsum(numbers) / len(numbers) if numbers else None


def _learned(own: Sequence[Entry], question: Question) -> bool | None:
    """Whether the mean loss is below that of guessing by how frequent each token, or each class, is."""
    mean = _mean(_numbers(own, question))
    frequencies = next((entry.frequencies(question.metric) for entry in own if entry.done), None)
    return None if mean is None or frequencies is None else bool(mean < frequencies)


def _dropped(trials: Chosen, held: Mapping[str, Held], question: Question) -> Iterator[str]:
    """Finished trials that the verdict does not use."""
    base = _seeds(trials[question.baseline], question)
    for name, each in held.items():
        for mixed in each.mixed:
            yield f"{name}: left out {mixed}"
        own = _seeds(trials[name], question)
        alone = [(own - base, name), (base - own, question.baseline)]
        counts = [f"seed {listed(sorted(seeds), 8)} of {side}" for seeds, side in alone if seeds]
        if counts:
            yield f"{name}: {plural(len(own & base), 'common seed')}; without a partner: {listed(counts)}"


def _seeds(own: Mapping[int, Entry], question: Question) -> set[int]:
    return {seed for seed, entry in own.items() if entry.value(question.metric) is not None}
