"""A study that is tuned runs in two phases, whatever cut it before."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import pytest
from torch import Tensor

import paribus
from paribus import Norm
from paribus.planning.api import PlannedStudy
from paribus.planning.settings import BEST, SAME
from paribus.registry import Registry
from paribus.runner.in_process import InProcessLauncher
from paribus.runner.jobs import RunOptions
from paribus.runner.progress import Event, trial_group
from paribus.runner.scheduler import run_trials
from paribus.runner.signals import StopRequest
from paribus.storage.atomic import canonical_json

TEXT = "\n\n".join(f"The {number}th paragraph says {number * number} words of its own." for number in range(200))


@final
class Mine(Norm):
    """A norm of a notebook: its trials run in this process."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x / x.square().mean(dim=-1, keepdim=True).clamp(min=1e-6).sqrt()


@pytest.fixture(scope="module")
def notebook() -> Registry:
    return paribus.installed().with_components(norm={"mine": Mine})


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    corpus = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    corpus.write_text(TEXT)
    return {
        "base": {
            "preset": "gpt-tiny",
            "dims": {"width": 16, "layers": 1, "heads": 2, "length": 16},
            "corpus": {"name": "text", "path": [str(corpus)], "documents": "paragraph"},
            "data": {"batch": 4, "validation": 8},
        },
        "vary": {"norm": ["mine"]},
        "seeds": 2,
        "budget": {"steps": 3},
        "tune": {"optimizer.lr": [1e-4, 3e-2], "seeds": 1},
        "metric": "val/clm/loss",
    }


def results(planned: PlannedStudy) -> dict[str, bytes]:
    return {record["identity"]: canonical_json(record["result"]) for record in planned.store.records()}


@pytest.mark.slow
def test_the_tuned_phase_follows_from_the_first_also_after_an_interruption(
    document: dict[str, Any], notebook: Registry, tmp_path: Path
) -> None:
    whole = paribus.study(document, registry=notebook, store=tmp_path / "whole")
    events: list[Event] = []
    ran = paribus.run(whole, registry=notebook, on_event=events.append)
    assert ran.plan.is_complete
    (planned,) = [event for event in events if event.kind == "planned"]
    assert len(ran.plan.trials) == len(whole.plan.trials) + len(planned.added)
    assert {trial.setting for trial in ran.plan.trials if trial.identity not in whole.plan.trial_by_identity} == {BEST}
    rehearsed = [event.trial for event in events if event.kind == "rehearsed" and event.trial is not None]
    assert len(rehearsed) == len(
        {trial_group(trial) for trial in ran.plan.trials}
    )  # one value steps for all of a variant

    cut = paribus.study(document, registry=notebook, store=tmp_path / "cut")
    launcher = InProcessLauncher(notebook, StopRequest())
    run_trials(cut.plan.trials[:4], cut.store, launcher=launcher, options=RunOptions(rehearse=False))
    resumed = paribus.run(paribus.study(document, registry=notebook, store=tmp_path / "cut"), registry=notebook)
    assert results(resumed) == results(ran)
    assert [each.chosen for each in resumed.plan.tuned] == [each.chosen for each in ran.plan.tuned]

    table = paribus.compare(whole)  # planned before anything had run
    assert [each.setting for each in table.settings] == [SAME, BEST]
    assert all(row.n == 2 for each in table.settings for row in each.rows)
    assert all(certificate.ok for each in table.settings for certificate in each.certificates.values())
    rows = paribus.records(ran)
    assert {row["setting"] for row in rows} >= {SAME, BEST}
    assert table.sections[0].document["trials"] == 2 * 3  # each value, and what a variant has as it is
