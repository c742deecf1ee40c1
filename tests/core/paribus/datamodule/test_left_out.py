"""Skipped parts of a corpus are reported before training and saved in the record."""

from pathlib import Path

import pytest

from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial

SMALL = (
    "dims.width=16",
    "dims.layers=1",
    "data.batch=4",
    "corpus.pairs=60",
    "corpus.held_out=20",
    "trainer.max_steps=1",
)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed(no_plugins=True)


@pytest.mark.few(1)
@pytest.mark.parametrize(("overlong", "action"), [("drop", "dropped"), ("truncate", "truncated")])
def test_pairs_that_do_not_fit_are_counted(overlong: str, action: str, registry: Registry, tmp_path: Path) -> None:
    notes: list[str] = []
    spec = resolved("transformer-tiny", *SMALL, "dims.length=16", f"objective.overlong={overlong}", registry=registry)
    record = run_trial(spec, registry, TrialContext("trial", tmp_path, on_message=notes.append))
    dropped = record["result"]["data"]["dropped"]
    reason = f"pairs {action} because a side is longer than 16"
    assert 0 < dropped[reason] < 80, "of both splits"
    assert notes == [f"dropped from the examples: {dropped[reason]} {reason}"]


def test_a_corpus_without_skipped_pairs_logs_nothing(registry: Registry, tmp_path: Path) -> None:
    notes: list[str] = []
    spec = resolved("transformer-tiny", *SMALL, registry=registry)
    record = run_trial(spec, registry, TrialContext("trial", tmp_path, on_message=notes.append))
    assert set(record["result"]["data"]["dropped"].values()) == {0}
    assert notes == []
