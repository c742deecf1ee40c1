"""`paribus bench complexity`: tables, formats, the page, plugins and errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SMALL = ("--lengths", "64,128,256", "--widths", "16,32,64", "--rounds", "2")
PLUGIN = '''
"""An attention that passes tokens through."""

from typing import final

from torch import Tensor

from paribus import Attention, Context, Cost, Load, Shape, State, hookimpl


@final
class Through(Attention):
    """Tokens as they are."""

    traits = {"causal": True, "residual": True}

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return x

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        return Cost(FLOPS)


@hookimpl
def attention() -> dict[str, type[Attention]]:
    return {"through": Through}
'''

Cli = Callable[..., Any]


@pytest.mark.thorough
def test_the_tables_and_the_page(cli: Cli) -> None:
    result = cli("bench", "complexity", "restricted", *SMALL, "-o", "page.html")
    assert result.code == 0, result.err
    assert "O(n² d)" in result.out
    assert "O(n d w)" in result.out
    assert "A/A twin" in result.out
    page = Path("page.html").read_text()
    assert page.count("<figure") == 6
    assert '"type":"log"' in page
    assert "O(n/w)" in page


def test_the_document_is_json(cli: Cli) -> None:
    result = cli("bench", "complexity", "mha", *SMALL, "--json", "--causal")
    document = json.loads(result.out)
    assert [row["attention"] for row in document["attentions"]] == ["mha"]
    assert len(document["measurements"]) == 5


@pytest.mark.thorough
@pytest.mark.parametrize(("flops", "code"), [("0", 0), ("7", 1)])
def test_the_attention_of_a_plugin_is_measured_and_a_wrong_cost_fails(cli: Cli, flops: str, code: int) -> None:
    Path("mine.py").write_text(PLUGIN.replace("FLOPS", flops))
    result = cli("bench", "complexity", "through", *SMALL, "--csv", "--plugin", "./mine.py")
    assert result.code == code
    assert sum(line.startswith("through,") for line in result.out.splitlines()) == 5


@pytest.mark.thorough
def test_an_attention_that_cannot_run_is_listed_with_the_reason(cli: Cli) -> None:
    result = cli("bench", "complexity", "fourier", *SMALL, "--causal", "--markdown")
    assert result.code == 0
    assert "fourier is not measured: " in result.out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("nosuch",), "unknown-component"),
        (("mha", "--lengths", "a,b"), "usage"),
        (("mha", "--widths", "30"), "not-divisible"),
        (("mha", "--device", "abacus"), "device"),
    ],
)
def test_bad_input_is_one_error(cli: Cli, words: tuple[str, ...], code: str) -> None:
    result = cli("bench", "complexity", *words)
    assert result.code == 2
    assert result.err.splitlines()[-1].startswith(f"error[{code}]")


def test_another_file_is_not_overwritten(cli: Cli) -> None:
    Path("notes.html").write_text("mine")
    assert cli("bench", "complexity", "mha", "-o", "notes.html").code == 5
    assert Path("notes.html").read_text() == "mine"


@pytest.mark.slow
def test_every_registered_attention_declares_what_torch_counts(cli: Cli) -> None:
    for stack in ((), ("--causal",)):
        result = cli("bench", "complexity", *SMALL, "--backward", "--json", *stack)
        document = json.loads(result.out)
        assert result.code == 0
        assert [row["attention"] for row in document["attentions"] if not row["closed_form"]] == []
        assert len(document["attentions"]) + len(document["failures"]) >= 24
