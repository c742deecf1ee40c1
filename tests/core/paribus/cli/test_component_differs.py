"""Components whose code or values the plan of a study cannot see, or that differ in the process of a trial."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
WriteStudy = Callable[..., Path]
PLUGIN = """
import os
from typing import Annotated
import paribus

SETUP

class Mine(paribus.Schedule):
    'Constant schedule.'

    def factor(self, step: int, steps: int) -> float:
        return VALUE

@paribus.hookimpl
def schedule():
    return {"mine": Mine}
"""


@pytest.fixture
def study(write_study: WriteStudy) -> Callable[..., list[str]]:
    """Write a plugin and a study that uses it, and return the words of a command without its verb."""

    def write(value: str, setup: str = "") -> list[str]:
        Path("mine.py").write_text(PLUGIN.replace("SETUP", setup).replace("VALUE", value))
        return [str(write_study(vary={"schedule": ["mine"]}, seeds=1))]

    return write


@pytest.mark.thorough
def test_a_value_of_the_environment_that_changed_after_the_plan_stops_the_trial(
    cli: Cli, study: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE_SCALE", "1.0")
    words = study("SCALE", "SCALE = float(os.environ['MINE_SCALE'])")
    assert cli("--plugin", "mine.py", "check", *words).code == 0
    monkeypatch.setenv("MINE_SCALE", "2.0")
    refused = cli("--plugin", "mine.py", "run", *words)
    assert "error[component-differs] schedule.mine" in refused.err
    assert "`mine.py: SCALE`" in refused.err
    assert refused.code == 1
    assert cli("--plugin", "mine.py", "run", *words).code == 0


@pytest.mark.slow
def test_what_is_read_at_run_time_is_a_warning_of_each_verb(cli: Cli, study: Callable[..., list[str]]) -> None:
    words = study("float(os.environ.get('MINE_SCALE', 1))")
    warning = re.compile(
        r"schedule.mine computes may keep its old records: `os.environ` is read at run time \(mine.py:12\)"
    )
    for verb in ("check", "run", "compare"):
        result = cli("--plugin", "mine.py", verb, *words)
        assert len(warning.findall(result.err)) == 1, verb
        assert result.code == 0
