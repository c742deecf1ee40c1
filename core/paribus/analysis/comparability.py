"""Conditions under which the trials of a study may stand in one table; all violations are reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from paribus.analysis.certificate_checks import BUDGET
from paribus.analysis.select_trials import TrialsByVariant
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import NotComparableError, Problem, join_names
from paribus.planning.comparability import TEXTUAL, evaluation_nodes, is_per_byte
from paribus.specs.diff import touches
from paribus.storage.atomic import digest_json


@final
class Condition(NamedTuple):
    """A property that all trials of a table must share."""

    code: str
    what: str
    of: Callable[[TrialEntry], Any]
    valid: str
    unless: tuple[str, ...] = ()  # the study varied one of these, so that it is meant


CONDITIONS: Final = (
    Condition("other-corpus", "the corpus", lambda entry: entry.result["data"]["corpus"], "one corpus in a study"),
    Condition(
        "other-tokenizer",
        "the tokenizer",
        lambda entry: entry.result["data"]["tokenizer"],
        "one tokenizer in a study, as what is measured per token is not comparable across tokenizers; "
        "or a metric of bytes, such as val/clm/bits-per-byte",
    ),
    Condition(
        "other-objective",
        "what is measured",
        lambda entry: evaluation_nodes(entry.spec),
        "`evaluate:` and `measure:` in the study, the same for every variant",
    ),
    Condition("other-length", "`dims.length`", lambda entry: entry.spec["dims"]["length"], "one length in a study"),
    Condition(
        "other-validation",
        "the validation examples",
        lambda entry: [entry.spec["data"].get("validation"), entry.certificate.get("validation")],
        "the same examples, corrupted alike, for every variant",
    ),
    Condition("other-steps", "the number of steps", lambda entry: entry.result["steps"], "one budget", BUDGET),
    Condition("other-tokens", "the number of tokens", lambda entry: entry.result["tokens"], "one budget", BUDGET),
)


WHOLE: Final = Condition(
    "other-validation",
    "the validation text",
    lambda entry: bool(entry.result["data"].get("whole")) or entry.certificate.get("validation"),
    "a `data.validation` of as many examples as the split has: the same text, whatever its tokens",
)
"""In place of the same tokens, where what is measured is told of bytes."""


def conditions(metric: str) -> tuple[Condition, ...]:
    """Return the conditions that apply to a metric."""
    if not is_per_byte(metric):
        return CONDITIONS
    return (*(condition for condition in CONDITIONS if condition.code not in (*TEXTUAL, WHOLE.code)), WHOLE)


def check_comparable(trials: TrialsByVariant, question: ComparisonSpec, notes: Sequence[str] = ()) -> None:
    """Raise a `NotComparableError` with every reason why the finished trials do not belong in one table.

    `notes` name the trials that were skipped before: where none remains, they are the reason.
    """
    recorded = [
        entry for variant_trials in trials.values() for entry in variant_trials.values() if entry.record is not None
    ]
    if not recorded:
        place = f" in {question.store}" if question.store else ""
        message = ". ".join((f"the study `{question.study}` has no record to compare{place}", *notes))
        raise NotComparableError(Problem(code="no-records", message=message, valid="`paribus run`, and then compare"))
    done = {name: [entry for entry in variant_trials.values() if entry.done] for name, variant_trials in trials.items()}
    problems = [*_conditions(done, question), *_metric(done, question.metric)]
    if problems:
        raise NotComparableError(*problems)


def _conditions(done: Mapping[str, Sequence[TrialEntry]], question: ComparisonSpec) -> Iterator[Problem]:
    """Compare all trials with the first finished one, of the baseline where it has any."""
    order = sorted(done, key=lambda name: name != question.baseline)
    reference = next((entry for name in order for entry in done[name]), None)
    if reference is None:
        return
    for condition in conditions(question.metric):
        reference_key = _key(condition.of(reference))
        differing = [
            name
            for name, entries in done.items()
            if any(
                _key(condition.of(entry)) != reference_key
                and not touches({**entry.overrides, **entry.budget_overrides}, condition.unless)
                for entry in entries
            )
        ]
        if differing:
            message = f"{join_names(differing, 8)} and {reference.variant} do not share {condition.what}"
            yield Problem(code=condition.code, path=_path(differing), message=message, valid=condition.valid)


def _metric(done: Mapping[str, Sequence[TrialEntry]], metric: str) -> Iterator[Problem]:
    """Check that every finished trial has the metric, measured at its last step."""
    missing = [
        name for name, entries in done.items() if any(metric not in entry.result["metrics"] for entry in entries)
    ]
    if missing:
        have = dict.fromkeys(key for entries in done.values() for entry in entries for key in entry.result["metrics"])
        message = f"{join_names(missing, 8)} did not measure `{metric}`"
        yield Problem(
            code="no-metric", path=_path(missing), message=message, valid=join_names(have) or "none was measured"
        )
    early = [name for name, entries in done.items() if any(_early(entry) for entry in entries)]
    if early:
        message = f"{join_names(early, 8)} was measured before its last step, where others were not"
        yield Problem(
            code="not-the-last", path=_path(early), message=message, valid="the metric of the last step, for all"
        )


def _early(entry: TrialEntry) -> bool:
    """Return whether the metrics are from a step before the last, which may have been selected as the best."""
    curve = entry.result.get("curve") or []
    return bool(curve) and curve[-1]["step"] != entry.result["steps"]


def _path(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ""


def _key(value: Any) -> str:
    return digest_json([value])
