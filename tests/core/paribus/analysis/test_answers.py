"""Intervals over seeds and questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paribus.analysis.answers import AnswerInterval, answer_interval, crossed_variance
from paribus.analysis.calibrate import calibrate_entries
from paribus.analysis.compare import compare, compare_settings
from paribus.analysis.p_values import critical_t
from paribus.analysis.table import Row
from paribus.analysis.task_average import average_question
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.analysis.verdicts import PairedDifferences, decide
from paribus.storage.answers import encode_scores
from paribus.studies.study_keys import Metric

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Scores = Sequence[Sequence[float]]  # seeds, questions

ACCURACY = "val/mlm/accuracy"
MQA = {"attention": "mqa"}


def crossed(
    seeds: int, questions: int, *, of_seeds: float, of_questions: float, of_answers: float
) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    shape = seeds, questions
    noise = rng.normal(0, of_seeds, (seeds, 1)) + rng.normal(0, of_questions, questions)
    return 0.1 + noise + rng.normal(0, of_answers, shape)


def trial(make: Make, variant: str, seed: int, scores: Sequence[float], questions: str = "q") -> TrialEntry:
    answers = {ACCURACY: encode_scores(scores, questions)} if questions else {}
    metrics = {"val/mlm/loss": 2.0, ACCURACY: sum(scores) / len(scores)}
    edits = {"result/metrics": metrics, "result/certificate/answers": answers}
    return make(variant, seed, varied=MQA if variant == "mqa" else {}, edits=edits)


def row_of(entries: list[TrialEntry], ask: Ask, **fields: Any) -> Row:
    return compare(entries, ask(entries, metric=ACCURACY, better="higher", **fields)).rows[0]


def trials(make: Make, baseline: Scores, variant: Scores) -> list[TrialEntry]:
    sides = {"baseline": baseline, "mqa": variant}
    return [trial(make, name, seed, scores) for name, side in sides.items() for seed, scores in enumerate(side)]


BASE = [[0.0, 1.0] * 40] * 4
SHARED = [[1.0, 1.0] * 30 + [0.0, 1.0] * 9 + [0.0, seed % 2] for seed in range(4)]  # right on the same 30 others


def test_the_parts_are_those_of_an_analysis_of_variance() -> None:
    values = crossed(6, 40, of_seeds=0.3, of_questions=0.8, of_answers=0.5)
    rest = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    squares = (
        40 * values.mean(1).var(ddof=1),
        6 * values.mean(0).var(ddof=1),
        (rest**2).sum() / (5 * 39),
    )
    parts = crossed_variance([values.tolist()])
    assert parts.total * 240 == pytest.approx(squares[0] + squares[1] - squares[2])
    assert (parts.seeds * 240, parts.questions * 240) == pytest.approx(
        (squares[0] - squares[2], squares[1] - squares[2])
    )
    terms = squares[0] ** 2 / 5 + squares[1] ** 2 / 39 + squares[2] ** 2 / (5 * 39)
    assert parts.df == pytest.approx((squares[0] + squares[1] - squares[2]) ** 2 / terms)


def test_the_interval_is_never_narrower_than_that_over_seeds() -> None:
    values = crossed(5, 30, of_seeds=0.4, of_questions=0.0, of_answers=0.1)
    paired = PairedDifferences(differences=tuple(values.mean(1).tolist()), diverged=0, planned=5)
    verdict = decide({"it": paired}, better="higher", margin=None)["it"]
    interval = answer_interval([values.tolist()], verdict, None)
    assert isinstance(interval, AnswerInterval)
    assert (interval.low, interval.high) == (verdict.low, verdict.high)


def test_the_interval_of_an_open_ended_study_is_as_many_times_wider_as_that_over_seeds() -> None:
    values = crossed(6, 30, of_seeds=0.05, of_questions=0.8, of_answers=0.1)
    halves = []
    for open_ended in (False, True):
        differences = tuple(values.mean(1).tolist())
        paired = PairedDifferences(differences=differences, diverged=0, planned=6, open_ended=open_ended)
        verdict = decide({"it": paired}, better="higher", margin=None)["it"]
        interval = answer_interval([values.tolist()], verdict, None, open_ended=open_ended)
        assert interval is not None
        assert verdict.low is not None
        assert interval.low < verdict.low
        halves.append(values.mean() - interval.low)
    assert halves[1] / halves[0] == pytest.approx(critical_t(0.05, 6, open_ended=True) / critical_t(0.05, 6))


def test_a_verdict_on_few_questions_may_hold_for_other_seeds_only(make: Make, ask: Ask) -> None:
    """All seeds agree that the variant is better, on the same thirty of eighty questions, or on the same two."""
    clear = row_of(trials(make, BASE, SHARED), ask)
    few = [[1.0, 1.0, 1.0, 1.0, *row[4:-1], seed % 2] for seed, row in enumerate(BASE)]
    weak = row_of(trials(make, BASE, few), ask, alpha=0.2)
    assert clear.answers is not None
    assert weak.answers is not None
    assert (clear.kind, clear.answers.holds) == ("better", True)
    assert (weak.kind, weak.answers.holds) == ("better", False)
    assert weak.answers.low < 0 < weak.answers.high
    assert weak.answers.questions_share > weak.answers.seeds_share


def test_pages_say_which_verdicts_hold_and_what_would_help(make: Make, ask: Ask) -> None:
    few = [[1.0, 1.0, 1.0, 1.0, *row[4:-1], seed % 2] for seed, row in enumerate(BASE)]
    entries = trials(make, BASE, few)
    comparison = ask(entries, metric=ACCURACY, better="higher", alpha=0.2)
    table = compare(entries, comparison)
    answers = table.to_json()["rows"][0]["answers"]
    assert (answers["holds"], answers["questions"]) == (False, 80)
    assert any("Not shown for other questions" in line and "mqa" in line for line in table.caption)
    assert any("more questions help more than more seeds" in line for line in table.caption)
    (note,) = calibrate_entries(entries, comparison).notes
    assert "more questions help more than more seeds" in note


@pytest.mark.parametrize("questions", ["", "other"])
def test_without_the_same_questions_there_is_no_interval_over_them(questions: str, make: Make, ask: Ask) -> None:
    entries = trials(make, BASE, SHARED)
    assert row_of(entries, ask).answers is not None
    changed = [*entries[:-1], trial(make, "mqa", 3, SHARED[3], questions)]
    assert row_of(changed, ask).answers is None


def test_the_questions_of_the_tasks_of_an_average_add_up(make: Make, ask: Ask) -> None:
    questions = []
    for task in ("a", "b"):
        entries = trials(make, BASE, SHARED)
        for entry in entries:
            entry.trial["identity"] += task  # type: ignore[index]  # a mapping that the fixture made
        questions.append((entries, ask(entries, metric=ACCURACY, better="higher", setting=task)))
    metrics = [Metric(name=ACCURACY, better="higher", task=task) for task in ("a", "b")]
    entries, comparison = average_question(questions, metrics)
    table = compare_settings([(entries, replace(comparison, setting="average")), *questions])
    (average,), (single,) = (part.rows for part in table.settings[:2])
    assert average.answers is not None
    assert single.answers is not None
    assert average.answers.questions == 2 * single.answers.questions
    rows = crossed(6, 40, of_seeds=0.3, of_questions=0.8, of_answers=0.5)
    whole, halves = crossed_variance([rows.tolist()]), crossed_variance([(rows / 2).tolist()] * 2)
    assert halves.questions == pytest.approx(whole.questions / 2)
    assert halves.seeds + halves.answers == pytest.approx(whole.seeds + whole.answers)
