"""Recipes of docs/recipes: every page runs in small, in an empty folder, as a user would run it.

Comments in a page, which no reader sees, make it small enough for a test:

    <!-- test: dims.layers: 12 => dims.layers: 2 -->        a substitution, which must match
    <!-- not run: pip install wandb because REASON -->      a command of the page that cannot run here
    <!-- exit 1: paribus compare-benchmarks a.json b.json --> a command that ends with this code (otherwise 0)
    <!-- extra: datasets -->                                the section up to the next heading needs this package
    <!-- slow -->                                           the page takes longer than 20 seconds

A block whose first line names a file (`# study.yaml`), perhaps after a `#!` line, is written to that file, which
another block must use. Other blocks of `python` run in one namespace, and the commands of `console` run; their output
has each line of the page, in which `…` stands for any text. Other languages (`text`, `py`) are not run.
Substitutions are made first: the other comments name commands as they are then.
"""

import importlib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.pages import DOCS, Block, blocks_of, check_output, commands

from paribus.cli.main import main

RECIPES = DOCS / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.md") if path.stem != "README")
HEADING_AND_TIME = re.compile(r"# .+\n\n\*\*Time\*\*: \S.*")
TO_BE_USED = (".py", ".yaml", ".sh")


@dataclass(frozen=True)
class Recipe:
    """A page in small: its text with the substitutions of the test, and what its comments say."""

    text: str
    full_files: dict[str, str]  # the text of each YAML file before the substitutions
    reasons: dict[str, str]  # of commands that are not run
    codes: dict[str, int]  # of commands that do not end with 0
    extras: frozenset[str]
    is_slow: bool

    @property
    def blocks(self) -> list[Block]:
        return list(blocks_of(self.text))

    def without_extras(self) -> "Recipe":
        """Return the recipe without the sections that need an optional package."""
        sections = re.split(r"^(?=## )", self.text, flags=re.MULTILINE)
        text = "".join(section for section in sections if "<!-- extra: " not in section)
        return replace(self, text=text)


def read_recipe(name: str) -> Recipe:
    text = (RECIPES / f"{name}.md").read_text()
    page = re.sub(r"<!-- (?!extra: ).*? -->", "", text, flags=re.DOTALL)
    full_files = {block.file: block.text for block in blocks_of(page) if block.file.endswith(".yaml")}
    reasons, codes, extras, is_slow = {}, {}, set(), False
    for comment in re.findall(r"<!-- (.*?) -->", text, flags=re.DOTALL):
        if match := re.fullmatch(r"test: (.*?)\s+=>\s+(.*)", comment, flags=re.DOTALL):
            assert match[1] in page, f"{name}.md does not contain: {match[1]}"
            page = page.replace(match[1], match[2])
        elif match := re.fullmatch(r"not run: (.*?) because (.*)", comment):
            reasons[match[1]] = match[2]
        elif match := re.fullmatch(r"exit (\d+): (.*)", comment):
            codes[match[2]] = int(match[1])
        elif match := re.fullmatch(r"extra: (\w+)", comment):
            extras.add(match[1])
        elif comment == "slow":
            is_slow = True
        else:
            assert comment.startswith("TODO "), f"{name}.md has an unknown comment: {comment}"
    return Recipe(page, full_files, reasons, codes, frozenset(extras), is_slow)


def selected(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow if read_recipe(name).is_slow else pytest.mark.thorough)


@pytest.mark.parametrize("name", [selected(name) for name in NAMES])
def test_a_recipe_runs_in_small(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run_recipe(read_recipe(name).without_extras(), tmp_path, monkeypatch, capfd)


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")  # the libraries' own deprecations
@pytest.mark.parametrize("name", [name for name in NAMES if read_recipe(name).extras])
def test_a_recipe_runs_with_optional_packages(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = read_recipe(name)
    for library in sorted(recipe.extras):
        pytest.importorskip(library)
    run_recipe(recipe, tmp_path, monkeypatch, capfd)


def run_recipe(
    recipe: Recipe, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # a user's pytest runs in no worker of ours
    namespace: dict[str, Any] = {"__name__": "example"}
    for block in recipe.blocks:
        if block.file:
            write_file(block, recipe, folder, capfd)
            importlib.invalidate_caches()
        elif block.language == "python":
            exec(compile(block.text, "page", "exec"), namespace)
        elif block.language == "console":
            for command, output_lines in commands(block.text):
                if command not in recipe.reasons:
                    code, output = run_command(command, capfd)
                    assert code == recipe.codes.get(command, 0), f"{command}\n{output}"
                    check_output(command, output, output_lines)
    for module in [name for name, value in sys.modules.items() if str(folder) in str(getattr(value, "__file__", ""))]:
        monkeypatch.delitem(sys.modules, module)


def write_file(block: Block, recipe: Recipe, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Write the file of a block; if it is a study or spec that the test makes smaller, check the full one first."""
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    full_text = recipe.full_files.get(block.file, block.text)
    if full_text != block.text:
        path.write_text(full_text)
        plugins = [
            f"--plugin={it.file}"
            for it in recipe.blocks
            if it.file and "@hookimpl" in it.text and Path(it.file).exists()
        ]
        code, output = run_command(shlex.join(["paribus", "check", block.file, *plugins]), capfd)
        assert code == 0, f"the full {block.file} is not valid\n{output}"
    path.write_text(block.text)


def run_command(command: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command, `paribus` in this process; return its exit code and its output."""
    if re.match(r"paribus [^|&;<>]*$", command):
        capfd.readouterr()
        code = main(shlex.split(command)[1:])
        return code, "".join(capfd.readouterr())
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_how_long_it_takes_and_is_listed(name: str) -> None:
    assert HEADING_AND_TIME.match((RECIPES / f"{name}.md").read_text()), "`**Time**: …` right under the title"
    assert f"]({name}.md)" in (RECIPES / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_file_and_every_comment_of_a_recipe_is_used(name: str) -> None:
    recipe = read_recipe(name)
    run = [command for block in recipe.blocks if block.language == "console" for command, _ in commands(block.text)]
    assert [command for command in (*recipe.reasons, *recipe.codes) if command not in run] == []
    files = [block.file for block in recipe.blocks if block.file.endswith(TO_BE_USED)]
    unused = [file for file in files if not is_used(Path(file), recipe.blocks)]
    assert unused == []


def is_used(file: Path, blocks: list[Block]) -> bool:
    """Return True if another block names a file, or imports it."""
    names = (file.name, f"import {file.stem}", f"from {file.stem} import")
    return any(name in block.text for block in blocks if block.file != file.as_posix() for name in names)
