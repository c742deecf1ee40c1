"""Files of programs in the identity of their trials: each edit that may change a value changes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.program.input_files import (
    ProgramCode,
    input_problems,
    missing_script,
    named_files,
    unlisted_input,
)

FILES = {
    "train.py": "import model\nfrom lib.tools import scale\nprint(f'loss {scale(model.SIZE)}')\n",
    "model.py": "SIZE = 3\n",
    "lib/__init__.py": "",
    "lib/tools.py": "from lib import more\n\ndef scale(x):\n    return x * more.FACTOR\n",
    "lib/more.py": "FACTOR = 2\n",
    "data/a.txt": "text",
    "data/deep/b.bin": "binary",
    "run.sh": "python train.py $*\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def code(folder: Path, command: str = "python train.py", *inputs: str) -> str:
    metric = {"name": "loss", "from": "logs/*.jsonl"}
    return ProgramCode(folder).hash({"program": {"command": command, "inputs": list(inputs), "metric": metric}})


def _edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(FILES[name].replace(old, new))


EDITS: dict[str, Callable[[Path], object]] = {
    "the script": _edit("train.py", "loss", "loss:"),
    "what it prints": _edit("train.py", "model.SIZE", "model.SIZE + 1"),
    "an imported module": _edit("model.py", "3", "4"),
    "a module of a package": _edit("lib/tools.py", "*", "+"),
    "a module that this imports": _edit("lib/more.py", "2", "3"),
    "the package": lambda folder: (folder / "lib/__init__.py").write_text("x = 1\n"),
    "a file of an input": lambda folder: (folder / "data/deep/b.bin").write_text("other!"),
    "the name of a file": lambda folder: (folder / "data/a.txt").rename(folder / "data/c.txt"),
    "a new file": lambda folder: (folder / "data/new").write_text(""),
    "a removed file": lambda folder: (folder / "data/a.txt").unlink(),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=list(EDITS))
def test_each_edit_of_what_the_program_reads_is_another_identity(folder: Path, edit: Callable[[Path], object]) -> None:
    before = code(folder, "python train.py", "data")
    edit(folder)
    assert code(folder, "python train.py", "data") != before


def test_comments_layout_and_other_files_change_nothing(folder: Path) -> None:
    before = code(folder, "python train.py", "data")
    for name in ("train.py", "model.py", "lib/more.py"):
        (folder / name).write_text(f"# comment\n\n{FILES[name]}\n\n")
    (folder / "notes.md").write_text("text")
    (folder / "data" / "__pycache__").mkdir()
    (folder / "data" / "__pycache__" / "x.pyc").write_text("x")
    assert code(folder, "python train.py", "data") == before


def test_a_file_of_metrics_from_a_run_by_hand_is_no_input(folder: Path) -> None:
    command = "python train.py --log logs/m.jsonl"
    before = code(folder, command)
    (folder / "logs").mkdir()
    (folder / "logs" / "m.jsonl").write_text("old")
    assert code(folder, command) == before


def test_a_command_names_files_and_modules(folder: Path) -> None:
    assert named_files("bash run.sh --attention {attention} data/a.txt", folder) == ["run.sh", "data/a.txt"]
    assert named_files("python -m lib.tools", folder) == ["lib"]
    assert named_files("python -m model", folder) == ["model.py"]
    assert named_files("/usr/bin/env true", folder) == []


def test_a_script_that_is_no_python_counts_by_its_bytes(folder: Path) -> None:
    before = code(folder, "bash run.sh")
    (folder / "run.sh").write_text(FILES["run.sh"] + "# comment\n")
    assert code(folder, "bash run.sh") != before
    (folder / "train.py").write_text("this is not Python")
    assert code(folder)


def test_inputs_that_are_missing_or_outside_are_reported(folder: Path) -> None:
    faults = list(input_problems(["data", "missing.txt", "../outside", "./", str(folder / "data")], folder))
    assert [(place, message.partition(" in ")[0]) for place, message, _ in faults] == [
        (1, "there is no `missing.txt`"),
        (2, f"`../outside` is outside of {folder}"),
        (3, "`./` is the whole folder,"),
    ]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -u trian.py --out plot.py", "trian.py"),
        ("python train.py --out plot.py", ""),
        ("python -m train", ""),
        ("sh -c 'python made_later.py'", ""),
        ("python {script}.py", ""),
        ("./sweep.sh", "./sweep.sh"),
    ],
)
def test_the_script_of_a_command_must_be_there(folder: Path, command: str, name: str) -> None:
    assert missing_script(command, folder) == name


@pytest.mark.parametrize(
    ("output", "inputs"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'configurator.py'", "[a.txt, configurator.py]"),
        ("No such file or directory: 'data/chars/train.bin'", "[a.txt, data]"),
        ("No such file or directory: '{work}/src/tables.csv'", "[a.txt, src/tables.csv]"),
        ("cat: data/chars/train.bin: No such file or directory", "[a.txt, data]"),
        ("ModuleNotFoundError: No module named 'src.later'", "[a.txt, src/later.py]"),
        ("No such file or directory: 'elsewhere.py'", ""),
        ("No module named 'torch'", ""),
    ],
)
def test_a_missing_file_that_is_in_the_folder_of_the_study_is_an_input(
    tmp_path: Path, output: str, inputs: str
) -> None:
    for name in ("configurator.py", "data/chars/train.bin", "src/tables.csv", "src/later.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    work = tmp_path / "runs" / "mine" / "work"
    (work / "src").mkdir(parents=True)
    hint = unlisted_input(output.format(work=work), tmp_path, work, ["a.txt"])
    assert hint.endswith(f"`inputs: {inputs}`" if inputs else "")
    assert bool(hint) == bool(inputs)
