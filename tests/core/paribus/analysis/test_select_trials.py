"""Selection of trials for a table: records of the present code, and notes on all others."""

from collections.abc import Callable

from paribus.analysis.select_trials import MAX_FAILURES, incomparable_reason, select
from paribus.analysis.trials import ComparisonSpec, TrialEntry

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

CODE = ("the engine", "norm.mine")


def stale(make: Make, seed: int = 0, *, ended: float = 0.0, changed: tuple[str, ...] = CODE) -> TrialEntry:
    edits = {"provenance/ended": ended}
    return make("mqa", seed, varied={"attention": "mqa"}, changed=changed, edits=edits)


def test_a_stale_record_is_skipped_with_a_note(make: Make, ask: Ask) -> None:
    entries = [make(), stale(make)]
    selection = select(entries, ask(entries))
    assert selection.trials["mqa"] == {}
    assert selection.notes == (
        "Skipped: 1 record (mqa: seed 0), because of changes since: the engine, norm.mine; "
        "`paribus verify` tells whether this code computes the same",
    )


def test_stale_records_are_grouped_by_what_has_changed(make: Make, ask: Ask) -> None:
    entries = [make(), stale(make), stale(make, 1), stale(make, 2, changed=("the data", "the engine"))]
    assert select(entries, ask(entries, seeds=(0, 1, 2))).notes == (
        "Skipped: 2 records (mqa: seed 0, 1), because of changes since: the engine, norm.mine; "
        "`paribus verify` tells whether this code computes the same",
        "Skipped: 1 record (mqa: seed 2), because of changes since: the data, the engine",
    )


def test_a_stale_record_is_never_used_and_not_named_where_another_replaces_it(make: Make, ask: Ask) -> None:
    fresh = make("mqa", varied={"attention": "mqa"})
    pending = make("mqa", varied={"attention": "mqa"}, state="pending")
    older, newer = stale(make, ended=1.0), stale(make, ended=2.0)
    for entries in ([stale(make), fresh], [older, fresh, newer]):
        selection = select(entries, ask(entries))
        assert selection.trials["mqa"][0] is fresh
        assert selection.notes == ()
    entries = [pending, older, newer]
    selection = select(entries, ask(entries))
    assert selection.trials["mqa"][0] is pending
    assert any(note.startswith("Skipped: 2 records") for note in selection.notes)


def test_trials_that_the_study_does_not_have_are_counted(study: Study, ask: Ask) -> None:
    entries = study(baseline=[2.0, 2.0, 2.0], mqa=[2.0, 2.0, 2.0])
    comparison = ask(study(baseline=[2.0, 2.0]))
    selection = select(entries, comparison)
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


def test_many_reasons_of_failures_end_with_a_count(make: Make, ask: Ask) -> None:
    seeds = range(MAX_FAILURES + 5)
    entries = [make(seed=seed, state="failed", failure={"reason": f"why {seed}"}) for seed in seeds]
    notes = select(entries, ask(entries)).notes
    assert len(notes) == MAX_FAILURES + 1
    assert notes[-1] == "5 more failed"


def test_a_reason_of_many_failures_is_shown_once(make: Make, ask: Ask) -> None:
    entries = [make(seed=seed, state="failed", failure={"reason": "why"}) for seed in range(3)]
    assert select(entries, ask(entries)).notes == ("baseline seed 0 and 2 more: failed: why",)


def test_a_variant_with_fewer_evaluations_than_the_mean_needs_has_no_verdict(make: Make, ask: Ask) -> None:
    few = make("mqa", varied={"attention": "mqa"}, edits={"result/metrics": {}})  # as `with_last_mean` leaves it
    entries = [make(), few]
    comparison = ask(entries, last=3)
    reason = incomparable_reason(select(entries, comparison).trials, "mqa", comparison)
    assert reason == "fewer than 3 evaluations of val/mlm/loss"
