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


def test_what_holds_is_listed_with_what_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "norm.none", "--only", "row by row"]) == 0
    result = capsys.readouterr().out
    assert "row by row  holds  A norm keeps shape and dtype, and normalizes each token independently." in result
    assert re.search(r"norm.none conforms: 3 checks hold in \d+ models", result)


def test_a_slot_stands_for_all_of_its_components(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "launcher"]) == 0
    assert "launcher.local conforms" in capsys.readouterr().out


def test_a_file_is_tried_without_being_named_again_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(dedent(FAULTY))
    assert main(["conform", "--plugin", str(file), "--only", "each row"]) == 1
    result = capsys.readouterr().out
    assert "each row  fails" in result
    assert "feedforward.mixing does not conform: 1 of 3 checks fail" in result
    assert "each row (encoder-tiny): row 1 of 5 differs by" in result


def test_findings_are_data_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(dedent(FAULTY))
    assert main(["conform", "--plugin", str(file), "--only", "each row", "--json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)
    assert report["component"] == "feedforward.mixing"
    assert not report["ok"]
    assert [finding["check"] for finding in report["findings"]] == ["each row"]


def test_nothing_named_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform"]) == 2
    assert "name a component, such as attention.gqa" in capsys.readouterr().err


def test_a_component_that_nobody_has_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "attention.gqaa"]) == 2
    assert 'did you mean "gqa"?' in capsys.readouterr().err


def test_a_check_that_there_is_not_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "norm.none", "--only", "causalty"]) == 2
    assert 'unknown check "causalty"' in (result := capsys.readouterr().err)
    assert 'did you mean "causality"?' in result
