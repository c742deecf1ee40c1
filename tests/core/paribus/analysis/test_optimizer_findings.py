"""Findings on the optimizers that the witnesses of two trials of a program recorded."""

from __future__ import annotations

from typing import Any

import pytest

from paribus.analysis.optimizer_findings import optimizer_findings
from paribus.analysis.trial_pair import TrialPair
from paribus.analysis.trials import TrialEntry

ADAM = {"optimizer": "AdamW", "lr": 0.1, "weight_decay": 0.01, "betas": [0.9, 0.95]}
BASELINE: dict[str, Any] = {"updates": 100, "options": [ADAM], "rates": {"1": [0.1], "64": [0.05]}}


def entry(variant: str, changes: dict[str, Any], optimizers: dict[str, Any]) -> TrialEntry:
    trial = {"identity": variant, "changes": changes, "spec": {"program": {}, **changes}}
    result = {"state": "done", "steps": 10, "certificate": {"witness": {"optimizers": {**BASELINE, **optimizers}}}}
    record = {"identity": variant, "spec": trial["spec"], "result": result}
    return TrialEntry(variant=variant, seed=0, trial=trial, record=record, state="done")


@pytest.mark.parametrize(
    ("key", "value", "optimizers", "finding"),
    [
        ("attention", "gqa", {}, ("confirmed", "same optimizer")),
        ("attention", "gqa", {"updates": 300}, ("budget", "100 updates against 300")),
        ("attention", "gqa", {"updates": 98}, ("side effect", "100 updates against 98")),
        ("attention", "gqa", {"options": [{**ADAM, "lr": 0.3}]}, ("optimizer", "lr 0.1 against 0.3")),
        ("attention", "gqa", {"options": [ADAM, ADAM]}, ("optimizer", "1 groups of parameters with other options")),
        ("attention", "gqa", {"rates": {"64": [0.01]}}, ("optimizer", "another learning rate at update 64")),
        ("attention", "gqa", {"updates": 0}, None),
        ("peak-rate", 0.3, {"options": [{**ADAM, "lr": 0.3}]}, None),
        ("alpha", 0.3, {"options": [{**ADAM, "lr": 0.3}]}, None),
        ("train.optimizer", "lion", {"options": [{"optimizer": "Lion", "lr": 0.01}]}, None),
        ("schedule", "wsd", {"rates": {"64": [0.01]}}, None),
        (
            "weight-decay",
            0.2,
            {"options": [{**ADAM, "weight_decay": 0.2, "lr": 0.3}]},
            ("optimizer", "lr 0.1 against 0.3"),
        ),
    ],
)
def test_an_optimizer_differs_only_if_an_option_names_it(
    key: str, value: Any, optimizers: dict[str, Any], finding: tuple[str, str] | None
) -> None:
    pair = TrialPair(entry("baseline", {key: 0.1}, {}), entry("variant", {key: value}, optimizers))
    findings = [*optimizer_findings(pair)]
    if finding is None:
        assert findings == []
    else:
        ((kind, text),) = findings
        assert kind == finding[0]
        assert text.startswith(finding[1])
