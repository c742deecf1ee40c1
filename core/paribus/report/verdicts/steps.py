"""The steps of a ladder: each rung held against the one below it, as variants are against the baseline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paribus.report.statistics.verdict import decide
from paribus.report.tables.family import Family
from paribus.report.trials.entry import Question
from paribus.report.trials.select import Chosen
from paribus.report.verdicts.held import held_of, paired_of, row_of
from paribus.report.words import percent, plural


def steps(trials: Chosen, question: Question, settings: int = 1) -> Iterator[Family]:
    """One family, of a study that is a ladder; nothing of another. All `settings` of a study share its alpha."""
    if not question.below:
        return
    alpha = question.alpha / settings
    asked = {name: replace(question, baseline=below) for name, below in question.below.items()}
    held = {name: held_of(trials, name, each) for name, each in asked.items()}
    verdicts = decide(
        {name: paired_of(trials, name, held[name], each) for name, each in asked.items()},
        better=question.better,
        margin=question.margin,
        alpha=alpha,
    )
    of_all = f", and so those of all {settings} settings together at {percent(1 - question.alpha)}"
    rows = (row_of(trials, name, held[name], verdicts[name], each) for name, each in asked.items())
    yield Family(
        key="steps",
        title="steps, each rung against the one below",
        rows=tuple(replace(row, against=question.below[row.variant]) for row in rows),
        caption=(
            f"A step is a rung - the rung below it on the same seed. The steps are a family of their own: Holm over "
            f"{plural(len(asked), 'step')} at {percent(1 - alpha)}{of_all if settings > 1 else ''}; with the verdicts "
            f"above, {percent(1 - 2 * question.alpha)} for both together.",
        ),
        certificates={name: each.certificate for name, each in held.items() if each.certificate is not None},
        withheld=True,
    )
