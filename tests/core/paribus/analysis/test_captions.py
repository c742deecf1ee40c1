"""Captions and warnings of a table: how to read it, its scope and its limits."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from paribus.analysis.captions import caption_lines
from paribus.analysis.compare import compare
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.analysis.verdict_words import UNLEARNED

Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

BASE = [2.00, 2.10, 1.90, 2.05, 1.95]
WORSE = [2.50, 2.61, 2.39, 2.56, 2.44]


def table_of(study: Study, ask: Ask, **losses: Any) -> Table:
    entries = study(**losses)
    return compare(entries, ask(entries))


def test_variants_not_below_the_unigram_baseline_did_not_learn(study: Study, ask: Ask) -> None:
    table = table_of(study, ask, baseline=BASE, mqa=[3.3] * 5, gqa=[3.241] * 5, rmsnorm=[3.22] * 5)
    assert [row.learned for row in (table.baseline, *table.rows)] == [True, False, False, True]
    assert [row.flags for row in table.rows] == [("did not learn",), ("did not learn",), ()]
    assert "Not below the unigram baseline (3.250) by more than 0.02: no learning yet in mqa, gqa." in table.warnings


def test_a_metric_without_a_baseline_counts_as_learned_if_a_loss_was_below_its_own(study: Study, ask: Ask) -> None:
    """All accuracies are 0.5; a model whose loss rises at the end, as one that overfits, has learned."""
    entries = study(baseline=BASE, mqa=[3.3] * 5, gqa=[3.3] * 5, rmsnorm=[3.3] * 5)
    for entry in entries:
        assert entry.record is not None
        if entry.variant == "gqa":
            entry.record["result"]["curve"][0]["val/mlm/loss"] = 3.0
        if entry.variant == "rmsnorm":
            del entry.record["result"]["unigram_baseline"], entry.record["result"]["learned_below"]
    table = compare(entries, ask(entries, metric="val/mlm/accuracy", better="higher", margin=0.1))
    assert {row.variant: row.learned for row in (table.baseline, *table.rows)} == {
        "baseline": True,
        "mqa": False,
        "gqa": True,
        "rmsnorm": None,
    }
    assert "No loss was below its unigram baseline: no learning yet in mqa." in table.warnings
    assert {row.variant for row in table.rows if row.verdict == UNLEARNED} == {"mqa"}


def test_the_caption_states_its_scope(study: Study, ask: Ask) -> None:
    caption = " ".join(table_of(study, ask, baseline=BASE, mqa=WORSE, gqa=[*WORSE[:3], "failed", "failed"]).caption)
    assert "A difference is variant - baseline on the same seed." in caption
    assert "95 % confidence" in caption
    assert "Holm over 2 variants; the intervals have " in caption
    assert "n = 3 to 5" in caption
    assert "100 steps (6,400 tokens)" in caption
    assert "Pairing by seed divided the variance of a difference by " in caption


def test_the_caption_has_the_size_of_the_validation_split_where_records_have_it(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASE, mqa=WORSE)
    assert "its validation split, this size" in " ".join(compare(entries, ask(entries)).caption)
    for entry in entries:
        if entry.record is not None:
            entry.record["result"]["data"]["validation_examples"] = [512, 3000]
    caption = " ".join(compare(entries, ask(entries)).caption)
    assert "its validation split (512 of its 3,000 examples), this size" in caption


def test_the_caption_of_warm_started_trials_states_what_seeds_vary(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASE, mqa=WORSE)
    for entry in entries:
        for spec in (entry.trial["spec"], entry.record["spec"] if entry.record else {}):
            spec["from"] = {"name": "runs/gpt", "sha256": "known"}
    caption = " ".join(compare(entries, ask(entries)).caption)
    assert (
        "over seeds (order of the data, initial weights of new tensors; n = 5), not beyond the saved model" in caption
    )


def test_equivalence_is_mentioned_only_with_a_margin(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASE, mqa=WORSE)
    assert "equivalent" not in json.dumps(compare(entries, ask(entries)).to_json())
    stated = compare(entries, ask(entries, margin=0.05))
    assert "a difference below 0.05 either way counts as equivalent." in stated.caption[0]


def test_intervals_of_several_levels_are_listed_with_their_variants(study: Study, ask: Ask) -> None:
    table = table_of(study, ask, baseline=BASE, mqa=WORSE, gqa=BASE[::-1], rmsnorm=BASE[1:] + BASE[:1])
    assert (
        "; the intervals have a confidence of 98.33 % (mqa), 97.5 % (gqa, rmsnorm), each by itself." in table.caption[1]
    )
    alone = table_of(study, ask, baseline=BASE, mqa=WORSE)
    assert alone.caption[1].endswith("Holm over 1 variant; the intervals have 95 % confidence.")
    none = table_of(study, ask, baseline=BASE[:1], mqa=WORSE[:1])
    assert none.caption[1].endswith("Holm over 1 variant.")


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ((), ""),
        (((0, 1, 2, 3, 4),), ""),
        (
            ((0, 1, 2),),
            "Seeds were added after a verdict had been shown (3 → 5): the confidence of 95 % no longer holds exactly.",
        ),
        (((0, 1), (0, 1, 2), (0, 1, 2, 3, 4)), "Seeds were added after a verdict had been shown (2 → 3 → 5)"),
        (((0, 1, 2, 3, 4, 5),), "Seeds were changed after a verdict had been shown (6 → 5)"),
        (((100, 101, 102),), ""),  # nothing was seen of the seeds that are compared
    ],
)
def test_seeds_changed_after_a_look_cause_a_warning(
    looks: tuple[tuple[int, ...], ...], expected: str, study: Study, ask: Ask
) -> None:
    entries = study(baseline=BASE, mqa=WORSE)
    warnings = [
        line for line in compare(entries, ask(entries, previous_looks=looks)).warnings if "after a verdict" in line
    ]
    assert [line.startswith(expected) for line in warnings] == ([True] if expected else [])


@pytest.mark.parametrize(
    ("gains", "caption"),
    [
        ([0.5, 4.8e10], "by 0.5, compared with independent seeds (1 of 2 estimates are too noisy to show)."),
        ([4.8e10], "is not known: the estimates are too noisy."),
        ([1.2, 3.0], "by 1.2 to 3, compared with independent seeds."),
    ],
)
def test_an_implausible_variance_reduction_is_not_shown(
    study: Study, ask: Ask, gains: list[float], caption: str
) -> None:
    entries = study(baseline=[2.0, 2.1], mqa=[2.2, 2.4])
    row = compare(entries, ask(entries)).rows[0]
    rows = [dataclasses.replace(row, variance_reduction=gain) for gain in gains]
    assert [*caption_lines(ask(entries), rows, entries)][-1].endswith(caption)
