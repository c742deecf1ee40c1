"""Lines on the questions of a task: which verdicts hold for other ones, and what most of the variance comes from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from paribus.analysis.answers import crossed_variance, paired_answers
from paribus.analysis.formatting import MAX_NAMES, format_number, percent, row_decimals, span
from paribus.analysis.pairing import pair_trials
from paribus.analysis.select_trials import TrialsByVariant
from paribus.analysis.table import Row
from paribus.analysis.trials import ComparisonSpec
from paribus.errors import join_names

ALIKE: Final = 0.1  # difference of two shares of the variance that is no reason to prefer either


def answer_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the difference of each variant over seeds and questions, and whether its verdict holds there."""
    known = [(row, row.answers) for row in rows if row.answers is not None]
    if not known:
        return
    decimals = row_decimals(rows)
    texts: dict[bool, list[str]] = {True: [], False: []}
    for row, answers in known:
        ends = (format_number(value, decimals[row.variant], signed=True) for value in (answers.low, answers.high))
        difference = format_number(row.difference, decimals[row.variant], signed=True)
        kind = f" {row.kind}" if answers.holds else ""
        texts[answers.holds].append(f"{row.variant}{kind} {difference} [{', '.join(ends)}]")
    if texts[True]:
        yield f"Over other questions of the task as well: {join_names(texts[True], MAX_NAMES)}."
    if texts[False]:
        yield f"Not shown for other questions of the task: {join_names(texts[False], MAX_NAMES)}."
    yield (
        f"These intervals are over seeds and over questions ({span([answers.questions for _, answers in known])}), two "
        f"crossed components of variance, each by itself at the level of its verdict; of their variance, "
        f"{_shares_text([(answers.seeds_share, answers.questions_share) for _, answers in known])}."
    )


def variance_notes(trials: TrialsByVariant, comparison: ComparisonSpec) -> Iterator[str]:
    """Yield whether more seeds or more questions would reduce the variance of a difference, as far as is known."""
    paired = [pair_trials(trials, name, comparison) for name in comparison.swapped]
    answers = [paired_answers(pairs.finished, comparison.metric) for pairs in paired if not pairs.reason]
    shares = [crossed_variance(tasks).shares for tasks in answers if tasks]
    if shares:
        yield f"Of the variance of a mean difference over these seeds and other questions, {_shares_text(shares)}"


def _shares_text(shares: Sequence[tuple[float, float]]) -> str:
    """`seeds are 12 %, questions 55 % and single answers 33 %: more questions help more than more seeds`."""
    seeds, questions = (math.fsum(column) / len(column) for column in zip(*shares, strict=True))
    texts = [percent(round(share, 2)) for share in (seeds, questions, 1 - seeds - questions)]
    if abs(seeds - questions) < ALIKE:
        advice = "more seeds and more questions help alike"
    else:
        more, fewer = ("questions", "seeds") if questions > seeds else ("seeds", "questions")
        advice = f"more {more} help more than more {fewer}"
    return f"seeds are {texts[0]}, questions {texts[1]} and single answers {texts[2]}: {advice}"
