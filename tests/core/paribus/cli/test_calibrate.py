"""`paribus calibrate`: pilots, the detectable effect, and the suggested command."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.mark.slow
def test_a_pilot_runs_the_first_seeds_of_the_study(cli: Cli, swap: Mapping[str, Any]) -> None:
    study = {**swap, "seeds": 6, "budget": {"steps": 2}, "metric": {"name": "val/mlm/loss", "margin": 0.02}}
    Path("mine.yaml").write_text(json.dumps(study))
    without_pilot = cli("calibrate", "mine.yaml")
    assert without_pilot.code == 6
    assert "`paribus calibrate mine.yaml --pilot 5`" in without_pilot.err

    pilot = cli("calibrate", "mine.yaml", "--pilot", "2", "--jobs", "2")
    assert pilot.code == 0
    assert pilot.out.startswith("mine: val/mlm/loss: what 6 seeds can detect\n")
    assert "4 of 12 trials have a record" in cli("status", "mine.yaml").out

    json_result = cli("calibrate", "mine.yaml", "--json", "--effect", "0.3", "--power", "0.9")
    document = json.loads(json_result.out)
    assert (json_result.code, document["effect"], document["power"]) == (0, 0.3, 0.9)
    assert [(row["variant"], row["n"]) for row in document["rows"]] == [("attention=mqa", 2)]
    assert document["seconds_per_trial"] > 0

    refused = cli("calibrate", "mine.yaml", "--effect", "-1")
    assert refused.code == 2
    assert "-1" in refused.err
