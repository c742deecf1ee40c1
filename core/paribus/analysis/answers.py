"""Differences over seeds and questions, two crossed random factors, from the score of each answer of each trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from paribus.analysis.p_values import critical_t, t_quantile
from paribus.analysis.trials import TaskTrial, TrialEntry
from paribus.analysis.verdicts import Verdict
from paribus.storage.answers import decode_scores

ROUNDING: Final = 1e-4  # by which a metric may differ from the mean of its scores
MAX_DF: Final = 1e6
Differences: TypeAlias = Sequence[Sequence[float]]  # (seeds, questions): variant - baseline


@final
@dataclass(frozen=True, kw_only=True)
class AnswerInterval:
    """Interval of a mean difference over other seeds and other questions, and the parts of its variance."""

    questions: int  # number of them; of an average, those of all tasks
    low: float
    high: float
    holds: bool  # the verdict holds for other questions as well
    sd_seeds: float  # standard deviation between seeds, without the noise of single answers
    sd_questions: float  # standard deviation between questions, likewise
    seeds_share: float  # share of the variance of the mean difference that only more seeds reduce
    questions_share: float  # share that only more questions reduce; the rest is of single answers, which both reduce


@final
@dataclass(frozen=True, kw_only=True)
class CrossedVariance:
    """Variance of a mean difference over seeds and questions, as the sum of its parts."""

    seeds: float
    questions: float
    answers: float  # the interaction, which is the noise of single answers
    df: float  # degrees of freedom of the sum (Satterthwaite 1946)

    @property
    def total(self) -> float:
        return self.seeds + self.questions + self.answers

    @property
    def shares(self) -> tuple[float, float]:
        """The shares of seeds and of questions."""
        return self.seeds / (self.total or 1.0), self.questions / (self.total or 1.0)


def crossed_variance(tasks: Sequence[Differences]) -> CrossedVariance:
    """Return the variance of a mean difference by analysis of variance, for the differences of each answer.

    Of S seeds and I questions, it is (MS_seeds + MS_questions - MS_interaction) / (S I), and at least the part that the
    seeds alone have. Several tasks have the same seeds and questions of their own, and their differences are added.
    """
    seeds = len(tasks[0])
    of_seed_means = _variance([math.fsum(_mean(rows[seed]) for rows in tasks) for seed in range(seeds)]) / seeds
    of_questions = of_answers = 0.0
    uncertainty = of_seed_means**2 / (seeds - 1)
    for rows in tasks:
        count = len(rows[0])
        columns = [_mean(column) for column in zip(*rows, strict=True)]
        column_part, answer_part = _variance(columns) / count, _interaction(rows, columns) / (seeds * count)
        of_answers += answer_part
        if column_part > answer_part:
            of_questions += column_part - answer_part
            uncertainty += (column_part**2 + answer_part**2 / (seeds - 1)) / (count - 1)
    of_answers = min(of_answers, of_seed_means)
    df = (of_seed_means + of_questions) ** 2 / uncertainty if uncertainty else MAX_DF
    return CrossedVariance(
        seeds=of_seed_means - of_answers, questions=of_questions, answers=of_answers, df=min(df, MAX_DF)
    )


def paired_answers(pairs: Sequence[tuple[TrialEntry, TrialEntry]], metric: str) -> list[Differences]:
    """Return the difference of each answer for each set of questions, whose sum is that of the metric.

    There are none if a record lacks the scores, if the questions of two trials differ, or for fewer than two pairs.
    """
    seeds = [_differences(*(_weighted_scores(entry, metric) for entry in pair)) for pair in pairs]
    if len(seeds) < 2 or not seeds[0] or any(seed.keys() != seeds[0].keys() for seed in seeds):
        return []
    return [[seed[questions] for seed in seeds] for questions in seeds[0]]


def answer_interval(
    tasks: Sequence[Differences], verdict: Verdict, margin: float | None, *, open_ended: bool = False
) -> AnswerInterval | None:
    """Return the interval over seeds and questions at the level of a verdict; None if that has no interval.

    It is no narrower than the interval over seeds alone, which outliers may have widened. With `open_ended` it is as
    many times wider as that of the seeds.
    """
    if not tasks or verdict.difference is None or verdict.low is None or verdict.high is None:
        return None
    variance = crossed_variance(tasks)
    alpha, seeds = 1 - verdict.level, len(tasks[0])
    factor = critical_t(alpha, seeds, open_ended=True) / critical_t(alpha, seeds) if open_ended else 1.0
    half = -t_quantile(alpha / 2, variance.df) * factor * math.sqrt(variance.total)
    low, high = min(verdict.low, verdict.difference - half), max(verdict.high, verdict.difference + half)
    is_settled = {"better": not low <= 0 <= high, "worse": not low <= 0 <= high}
    if margin is not None:
        is_settled["equivalent"] = -margin < low and high < margin
    questions = sum(len(rows[0]) for rows in tasks)
    seeds_share, questions_share = variance.shares
    return AnswerInterval(
        questions=questions,
        low=low,
        high=high,
        holds=is_settled.get(verdict.kind, False),
        sd_seeds=math.sqrt(variance.seeds * len(tasks[0])),
        sd_questions=math.sqrt(variance.questions * questions),
        seeds_share=seeds_share,
        questions_share=questions_share,
    )


WeightedScores: TypeAlias = dict[tuple[str, int], list[float]]  # questions -> weight times the score of each answer


def _weighted_scores(entry: TrialEntry, metric: str) -> WeightedScores:
    """Return the scores of a trial, or of all tasks of an average; none if a metric is not the mean of its scores.

    Metrics on the same questions are added for each question.
    """
    tasks = entry.tasks or (TaskTrial(task="", metric=metric, weight=1.0, entry=entry),)
    weighted: WeightedScores = {}
    for task in tasks:
        document = (task.entry.certificate.get("answers") or {}).get(task.metric) if task.entry.record else None
        scores = [] if document is None else decode_scores(document)
        value = task.entry.value(task.metric)
        if document is None or value is None or len(scores) < 2 or abs(_mean(scores) - value) > ROUNDING:
            return {}
        key = (f"{task.task} {document['questions']}", len(scores))
        before = weighted.get(key, [0.0] * len(scores))
        weighted[key] = [total + task.weight * score for total, score in zip(before, scores, strict=True)]
    return weighted


def _differences(baseline: WeightedScores, variant: WeightedScores) -> WeightedScores:
    """Return variant - baseline for each answer; empty if the questions differ."""
    if baseline.keys() != variant.keys():
        return {}
    return {
        questions: [after - before for before, after in zip(baseline[questions], scores, strict=True)]
        for questions, scores in variant.items()
    }


def _mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def _variance(numbers: Sequence[float]) -> float:
    mean = _mean(numbers)
    return math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)


def _interaction(rows: Differences, columns: Sequence[float]) -> float:
    """Return the mean square of what the means of seeds and questions leave of each difference."""
    overall = _mean(columns)
    squares = math.fsum(
        (value - row_mean - column + overall) ** 2
        for row, row_mean in ((row, _mean(row)) for row in rows)
        for value, column in zip(row, columns, strict=True)
    )
    return squares / ((len(rows) - 1) * (len(columns) - 1))
