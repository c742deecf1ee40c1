"""`paribus calibrate`: it runs a pilot, says what seeds can tell, and which command makes what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Cli = Callable[..., Any]


def test_a_pilot_makes_the_first_seeds_and_they_are_the_studys_own(cli: Cli, swap: Mapping[str, Any]) -> None:
    asked = {**swap, "seeds": 6, "budget": {"steps": 2}, "metric": {"name": "val/mlm/loss", "margin": 0.02}}
    Path("mine.yaml").write_text(json.dumps(asked))
    before = cli("calibrate", "mine.yaml")
    assert before.code == 6
    assert "valid: `paribus calibrate mine.yaml --pilot 5`, which runs the first 5 seeds" in before.err

    shown = cli("calibrate", "mine.yaml", "--pilot", "2", "--jobs", "2")
    assert shown.code == 0
    assert shown.out.startswith("mine: val/mlm/loss: what 6 seeds can tell\n")
    assert "4 of 12 trials have a record" in cli("status", "mine.yaml").out

    again = cli("calibrate", "mine.yaml", "--json", "--effect", "0.3", "--power", "0.9")
    document = json.loads(again.out)
    assert (again.code, document["effect"], document["power"]) == (0, 0.3, 0.9)
    assert [(row["variant"], row["n"]) for row in document["rows"]] == [("attention=mqa", 2)]
    assert document["seconds_a_trial"] > 0

    refused = cli("calibrate", "mine.yaml", "--effect", "-1")
    assert refused.code == 2
    assert "-1" in refused.err
