"""`paribus conform`: output for components that pass, and for one that fails."""

import json
import re
from pathlib import Path
from textwrap import dedent

import pytest

from paribus.cli.main import main

FAULTY = '''
from torch import Tensor

from paribus import Cost, FeedForward, Load, Shape, hookimpl


class Mixing(FeedForward):
    """Feed-forward with a fault: it mixes tokens."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def forward(self, x: Tensor):
        return x.cumsum(1), None

    def cost(self, load: Load) -> Cost:
        return Cost()


@hookimpl
def feedforward():
    return {"mixing": Mixing}
'''


def test_passed_checks_are_listed_with_their_summaries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "norm.none", "--only", "norm treats tokens separately"]) == 0
    result = capsys.readouterr().out
    assert "norm treats tokens separately  passes  A norm keeps shape and dtype" in result
    assert re.search(r"norm.none conforms: 2 checks pass in \d+ models", result)
    assert len(re.findall(r"^[^.].*  passes  \w", result, flags=re.MULTILINE)) == 2


def test_slot_selects_all_of_its_components(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "schedule", "--only", "learning rates are valid"]) == 0
    assert "schedule.constant conforms" in capsys.readouterr().out


def test_failure_of_a_plugin_file_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(dedent(FAULTY))
    assert main(["conform", "--plugin", str(file), "--only", "feed-forward treats tokens separately"]) == 1
    result = capsys.readouterr().out
    assert "feed-forward treats tokens separately  fails" in result
    assert "feedforward.mixing does not conform: 1 of 2 checks fail" in result
    assert "feed-forward treats tokens separately (encoder-tiny): the output at position 1 of 5 differs by" in result


def test_failures_can_be_printed_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(dedent(FAULTY))
    assert main(["conform", "--plugin", str(file), "--only", "feed-forward treats tokens separately", "--json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    assert report["component"] == "feedforward.mixing"
    assert not report["ok"]
    assert [finding["check"] for finding in report["findings"]] == ["feed-forward treats tokens separately"]


def test_missing_component_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform"]) == 2
    assert capsys.readouterr().err.startswith("error[usage]: ")


def test_unknown_component_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "attention.gqaa"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error[unknown-component] attention: ")
    assert 'did you mean "gqa"?' in error


def test_unknown_check_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "norm.none", "--only", "kernel agree"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error[unknown-check]: ")
    assert '"kernel agree"; did you mean "kernels agree"?' in error
