"""Selection of trials for a table: current code, and stale records on request."""

from collections.abc import Callable

import pytest

from paribus.analysis.select_trials import MOST, select
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import SpecError

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

CODE = "c" * 24


def stale(make: Make, seed: int = 0, *, ended: float = 0.0, kind: str = "code") -> TrialEntry:
    edits = {"provenance/ended": ended}
    return make("mqa", seed, varied={"attention": "mqa"}, stale=kind, edits=edits)


def test_a_stale_record_is_skipped_with_a_note(make: Make, ask: Ask) -> None:
    entries = [make(), stale(make)]
    selection = select(entries, ask(entries))
    assert selection.trials["mqa"] == {}
    assert selection.notes == (
        "Skipped: 1 record (mqa: seed 0), because the code of its components has changed; "
        f"run the study again, or accept it with --accept-code {CODE[:12]}",
    )
    assert selection.warnings == ()


@pytest.mark.parametrize("code", [CODE, CODE[:12], CODE[:6]])
def test_a_stale_record_is_accepted_by_its_code_with_a_warning(make: Make, ask: Ask, code: str) -> None:
    entries = [make(), stale(make)]
    selection = select(entries, ask(entries), [code])
    assert selection.trials["mqa"] == {0: entries[1]}
    assert selection.notes == ()
    (warning,) = selection.warnings
    assert warning.startswith(
        f"Made by other code than the current one, and accepted by --accept-code {CODE[:12]}: 1 record"
    )


def test_a_record_of_other_data_is_never_accepted(make: Make, ask: Ask) -> None:
    entries = [make(), stale(make, kind="data")]
    with pytest.raises(SpecError, match="no skipped record has the code c"):
        select(entries, ask(entries), [CODE])
    selection = select(entries, ask(entries))
    assert selection.trials["mqa"] == {}
    assert selection.notes == ("Skipped: 1 record (mqa: seed 0), because the data has changed",)


def test_fresh_records_are_preferred_to_stale_and_stale_to_none(make: Make, ask: Ask) -> None:
    fresh = make("mqa", varied={"attention": "mqa"})
    pending = make("mqa", varied={"attention": "mqa"}, state="pending")
    older, newer = stale(make, ended=1.0), stale(make, ended=2.0)
    for entries, expected in (
        ([stale(make), fresh], fresh),
        ([pending, older, newer], newer),
        ([newer, older, pending], newer),
        ([older, fresh, newer], fresh),
    ):
        assert select(entries, ask(entries), [CODE]).trials["mqa"][0] is expected


def test_trials_that_the_study_does_not_have_are_counted(study: Study, ask: Ask) -> None:
    entries = study(baseline=[2.0, 2.0, 2.0], mqa=[2.0, 2.0, 2.0])
    question = ask(study(baseline=[2.0, 2.0]))
    selection = select(entries, question)
    assert list(selection.trials) == ["baseline"]
    assert selection.notes == ("Skipped: 4 trials of variants or seeds that the study no longer has",)


def test_unfinished_trials_are_counted_by_state(study: Study, ask: Ask) -> None:
    entries = study(baseline=[2.0, "pending", "pending", "running", "interrupted"])
    assert select(entries, ask(entries)).notes == ("Not finished: 1 interrupted, 2 pending, 1 running",)


def test_every_failure_is_noted(make: Make, ask: Ask) -> None:
    states = ("failed", "out-of-memory", "timeout")
    entries = [
        make(seed=seed, state=state, failure={"reason": f"why {seed}\nmore"}) for seed, state in enumerate(states)
    ]
    entries.append(make(seed=3, state="failed"))
    assert select(entries, ask(entries)).notes == (
        "baseline seed 0: failed: why 0",
        "baseline seed 1: out-of-memory: why 1",
        "baseline seed 2: timeout: why 2",
        "baseline seed 3: failed: no reason is known",
    )


def test_many_failures_end_with_a_count(make: Make, ask: Ask) -> None:
    entries = [make(seed=seed, state="failed") for seed in range(MOST + 5)]
    notes = select(entries, ask(entries)).notes
    assert len(notes) == MOST + 1
    assert notes[-1] == "5 more failed"


@pytest.mark.parametrize("code", ["deadbeef", "d" * 24, "ccc", ""])
def test_an_accepted_code_without_records_is_refused(make: Make, ask: Ask, code: str) -> None:
    entries = [make(), stale(make)]
    with pytest.raises(SpecError, match=r"unknown-code.*no skipped record.*valid: cccccccccccc"):
        select(entries, ask(entries), [code])
    with pytest.raises(SpecError, match="valid: none, as no record was skipped"):
        select([make()], ask([make()]), [code])
