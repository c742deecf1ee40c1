from __future__ import annotations

import signal

import pytest

from paribus.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TERMINATED
from paribus.runner.outcomes import EXIT_MEMORY, EXIT_RETRY, trial_outcome
from paribus.slots.launcher import JobEnded

SAID = {"state": "failed", "reason": "ValueError: no"}


@pytest.mark.parametrize(
    ("code", "number", "failure", "state", "again"),
    [
        (EXIT_FAILED, None, SAID, "failed", False),
        (EXIT_FAILED, None, None, "failed", False),
        (0, None, None, "failed", False),
        (EXIT_RETRY, None, SAID, "failed", True),
        (EXIT_RETRY, None, None, "failed", True),
        (EXIT_MEMORY, None, None, "out-of-memory", True),
        (EXIT_INTERRUPTED, None, None, "interrupted", False),
        (EXIT_TERMINATED, None, SAID, "interrupted", False),
        (None, signal.SIGKILL, SAID, "failed", True),
        (None, signal.SIGBUS, None, "failed", True),
        (None, signal.SIGTERM, None, "interrupted", False),
    ],
)
def test_an_end_gives_a_state_and_whether_to_retry(
    code: int | None, number: int | None, failure: dict[str, str] | None, state: str, again: bool
) -> None:
    outcome = trial_outcome(JobEnded("a", code, number, "its last line"), failure)
    assert (outcome.state, outcome.may_retry) == (state, again)
    assert trial_outcome(JobEnded("a", code, number), failure, 60.0).state == "timeout"
    assert trial_outcome(JobEnded("a", None, 9), failure, is_ending=True).state == "interrupted"


def test_on_a_full_disk_the_last_line_is_the_reason() -> None:
    assert trial_outcome(JobEnded("a", EXIT_RETRY, None, "no space left"), None).reason == "no space left"
