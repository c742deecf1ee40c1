"""From the trials of a study to its table: pair, certify, decide."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from paribus.errors import listed
from paribus.report.captions import caption, plural, warnings
from paribus.report.comparable import refuse
from paribus.report.entry import Entry, Question
from paribus.report.held import Held, baseline_row, held_of, paired_of, row_of
from paribus.report.select import Chosen, select
from paribus.report.steps import steps
from paribus.report.table import Table
from paribus.report.verdict import decide


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
    held = {name: held_of(trials, name, question) for name in question.others}
    verdicts = decide(
        {name: paired_of(trials, name, held[name], question) for name in question.others},
        better=question.better,
        margin=question.margin,
        alpha=question.alpha,
    )
    rows = tuple(row_of(trials, name, held[name], verdicts[name], question) for name in question.others)
    baseline = baseline_row(trials, question)
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
        besides=tuple(steps(trials, question)),
    )


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
