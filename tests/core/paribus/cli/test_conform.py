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
    """Mixes rows, which no feed-forward may."""

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


def test_passed_checks_are_listed_with_their_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "norm.none", "--only", "row by row"]) == 0
    result = capsys.readouterr().out
    assert "row by row  holds  A norm keeps shape and dtype, and normalizes each token independently." in result
    assert re.search(r"norm.none conforms: 3 checks hold in \d+ models", result)


def test_a_slot_stands_for_all_of_its_components(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "launcher"]) == 0
    assert "launcher.local conforms" in capsys.readouterr().out


def test_the_components_of_a_plugin_file_are_tested_by_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(dedent(FAULTY))
    assert main(["conform", "--plugin", str(file), "--only", "each row"]) == 1
    result = capsys.readouterr().out
    assert "each row  fails" in result
    assert "feedforward.mixing does not conform: 1 of 3 checks fail" in result
    assert "each row (encoder-tiny): row 1 of 5 differs by" in result


def test_findings_are_in_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(dedent(FAULTY))
    assert main(["conform", "--plugin", str(file), "--only", "each row", "--json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)
    assert report["component"] == "feedforward.mixing"
    assert not report["ok"]
    assert [finding["check"] for finding in report["findings"]] == ["each row"]


def test_a_missing_component_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform"]) == 2
    assert "name a component, such as attention.gqa" in capsys.readouterr().err


def test_an_unknown_component_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "attention.gqaa"]) == 2
    assert 'did you mean "gqa"?' in capsys.readouterr().err


def test_an_unknown_check_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "norm.none", "--only", "causalty"]) == 2
    assert 'unknown check "causalty"' in (result := capsys.readouterr().err)
    assert 'did you mean "causality"?' in result
