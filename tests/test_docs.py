"""The documentation is true: its examples run, its signatures are those of the code, its tables are current."""

import ast
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import paribus
from paribus.cli.main import main

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guide"
PAGES = sorted(page.stem for page in GUIDE.glob("*.md"))
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


class Block(NamedTuple):
    """An example: the language, the text, and the file that its first line names."""

    language: str
    text: str

    @property
    def file(self) -> str:
        named = re.match(r"# ([\w.-]+\.(?:py|yaml))\b", self.text)
        return named[1] if named else ""


def blocks(page: str) -> Iterator[Block]:
    text = (GUIDE / f"{page}.md").read_text()
    for found in re.finditer(r"^( *)```(\w+)\n(.*?)^\1```", text, flags=re.MULTILINE | re.DOTALL):
        yield Block(found[2], found[3])


def hooks() -> list[str]:
    """The signatures as `hookspecs.py` has them."""
    tree = ast.parse((ROOT / "core" / "paribus" / "hookspecs.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    return [
        f"def {node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}"
        for node in functions
        if node.returns
    ]


@pytest.mark.parametrize("signature", hooks())
def test_every_hook_is_in_the_guide_with_its_exact_signature(signature: str) -> None:
    assert f"\n{signature}\n" in (GUIDE / "write-a-plugin.md").read_text()


def test_the_guide_has_no_hook_that_is_none() -> None:
    shown = {line for block in blocks("write-a-plugin") if block.language == "text" for line in block.text.splitlines()}
    assert {line for line in shown if line.startswith("def ")} == set(hooks())


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        if block.language == "yaml":
            read(block)
        elif block.language == "python" and not block.file:
            exec(compile(block.text, f"{page}.md", "exec"), names)
        elif block.language == "console":
            for command, shown in commands(block.text):
                typed(command, shown, capsys)
    for module in [name for name, value in sys.modules.items() if str(tmp_path) in str(getattr(value, "__file__", ""))]:
        monkeypatch.delitem(sys.modules, module)


def read(block: Block) -> None:
    """A study is planned, anything else is a spec and is checked."""
    assert block.file, f"a YAML example begins with its file's name: {block.text[:60]}"
    if "\nvary:" in block.text or "\nvariants:" in block.text or "\nchanges:" in block.text:
        assert paribus.study(block.file).plan.trials
    else:
        assert paribus.spec(Path(block.file))


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines that are shown below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command.partition("  #")[0], [line for line in shown if line.strip()]


def typed(command: str, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Runs a command of ours; every line that the page shows is the beginning, the end or the middle of one."""
    import shlex

    program, *words = shlex.split(command)
    assert program == "paribus", command
    capsys.readouterr()
    assert main(words) == 0, command
    said = spaced(capsys.readouterr().out)
    for line in shown:
        assert spaced(line) in said, f"{command} does not print: {line}\n{said}"


def spaced(text: str) -> str:
    """Text with every run of blanks as one: tables are as wide as they have to be."""
    return " ".join(text.split())


@pytest.mark.parametrize("page", [*(ROOT / "docs").rglob("*.md")], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert broken == []


def test_the_table_of_components_is_current() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "components.py"))["page"]
    written = (ROOT / "docs" / "components.md").read_text()
    assert written == page(paribus.installed(no_plugins=True).index), "run `make docs`"


def test_every_page_of_the_guide_and_every_decision_is_listed() -> None:
    start = (ROOT / "docs" / "README.md").read_text()
    assert [page for page in PAGES if f"(guide/{page}.md)" not in start] == []
    table = (ROOT / "docs" / "decisions" / "README.md").read_text()
    pages = [page for page in (ROOT / "docs" / "decisions").glob("0*.md") if f"]({page.name})" not in table]
    assert pages == []
