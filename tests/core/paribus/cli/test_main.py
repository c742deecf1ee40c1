"""Entry point of the CLI: commands, common options, exit codes, and output that cannot be written."""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from tests.fixtures.pages import DOCS

import paribus
from paribus import errors
from paribus.cli import main as entrance
from paribus.cli.console import Session, note, table, terminal_columns
from paribus.errors import (
    EXIT_BUG,
    EXIT_FAILED,
    EXIT_PLUGIN,
    EXIT_STORE,
    DataError,
    NotComparableError,
    PluginError,
    Problem,
    SpecError,
    StoreError,
)
from paribus.runner import outcomes

Cli = Callable[..., Any]


def test_without_a_command_the_commands_are_listed(cli: Cli) -> None:
    result = cli()
    assert result.code == 0
    assert result.out == cli("--help").out == cli("-h").out
    for verb in ("check", "explain", "list", "plugins"):
        assert f"\n  {verb} " in result.out


def test_every_command_has_help_that_is_a_sentence(cli: Cli) -> None:
    for verb in entrance.group.list_commands(click.Context(entrance.group)):
        result = cli(verb, "--help")
        assert result.code == 0
        assert result.out.startswith(f"Usage: paribus {verb}")


def test_the_version_is_printed(cli: Cli) -> None:
    assert cli("--version").out == f"paribus, version {paribus.__version__}\n"


def test_an_unknown_command_suggests_the_closest(cli: Cli) -> None:
    result = cli("lst")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error[usage]: ")
    assert '"lst"; did you mean "list"? valid: ' in result.err
    assert "did you mean" not in cli("zzzzzz").err


def test_the_table_of_exit_codes_has_every_code_and_the_error_of_each() -> None:
    page = (DOCS / "guide" / "reading-a-verdict.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| (\d+) \| .* \|(?: `(\w+)`)? \|$", page, re.MULTILINE))
    codes = {value for module in (errors, outcomes) for name, value in vars(module).items() if name.startswith("EXIT_")}
    assert sorted(map(int, table)) == sorted(codes)
    raised = {error.__name__: str(error.exit_code) for error in errors.ParibusError.__subclasses__()}
    public = {name: code for name, code in raised.items() if name in paribus.__all__}
    assert {name: code for code, name in table.items() if name} == public


@pytest.mark.parametrize(
    "words", [["main"], ["console"], ["_words"], ["../list"], [""], ["--wrong"], ["list", "--wrong"]]
)
def test_an_unknown_command_or_option_is_a_usage_error(cli: Cli, words: list[str]) -> None:
    result = cli(*words)
    assert result.code == 2
    assert result.err.startswith("error[usage]: ")
    assert result.err.count("\n") == 1


def make_list_fail(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make the command `list` raise an error."""

    def index(self: Session) -> Any:
        raise error

    monkeypatch.setattr(Session, "index", index)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecError("x"), 2),
        (PluginError("x"), 3),
        (DataError("x"), 4),
        (StoreError("x"), 5),
        (NotComparableError("x"), 6),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (SystemExit(7), 7),
        (SystemExit(None), 0),
        (SystemExit("words"), 1),
        (BrokenPipeError(), 0),
        (ZeroDivisionError("x"), 3),  # raised in this file, which is not part of paribus
    ],
)
def test_each_kind_of_error_has_its_exit_code(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    make_list_fail(monkeypatch, error)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    assert cli("list").code == code


def test_an_error_of_a_third_party_plugin_is_reported_with_file_and_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_list_fail(monkeypatch, RuntimeError("oops"))  # raised in this file, which is not part of paribus
    result = cli("list")
    assert result.code == EXIT_PLUGIN
    assert result.err.startswith(f"error[plugin-failed]: RuntimeError: oops ({__file__}:")
    assert "please report" not in result.err


def test_every_problem_is_one_line_and_nothing_else_is_printed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    make_list_fail(monkeypatch, SpecError(Problem(code="a", message="one"), Problem(code="b", message="two\nlines")))
    result = cli("list")
    assert (result.out, result.err) == ("", "error[a]: one\nerror[b]: two\\nlines\n")


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["run", "nowhere"], 2, "unknown-study"),
        (["run", "quickstart", "--jobs", "none"], 2, "usage"),
        (["compare", "quickstart"], 6, "no-records"),
        (["conform", "attention.gqaa"], 2, "unknown-component"),
        (["status", "nowhere"], 2, "unknown-study"),
        (["summary", "encoder-tinny"], 2, "unknown-preset"),
    ],
)
def test_with_json_the_problems_are_json(cli: Cli, words: list[str], code: int, problem: str) -> None:
    result = cli(*words, "--json")
    document = json.loads(result.out)
    assert (result.code, document["ok"]) == (code, False)
    assert [entry["code"] for entry in document["problems"]] == [problem]
    assert f"error[{problem}]" in result.err
    assert cli(*words).out == ""


def test_an_unexpected_error_asks_for_a_bug_report(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, Any] = {}
    failing = "def index(self): raise ZeroDivisionError('by\\nzero')"
    exec(compile(failing, paribus.__file__, "exec"), namespace)  # so that it fails in a file of paribus
    monkeypatch.setattr(Session, "index", namespace["index"])
    result = cli("list")
    assert result.code == EXIT_BUG
    assert result.err.startswith("error[bug]: ZeroDivisionError: by (")
    assert result.err.endswith("this is a bug in paribus; please report it with the output of --debug\n")
    assert result.err.count("\n") == 1


def test_too_little_memory_is_not_reported_as_a_bug(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def index(self: Session) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 570425344 bytes")

    monkeypatch.setattr(Session, "index", index)
    result = cli("list")
    assert result.code == EXIT_FAILED
    assert result.err.startswith("error[out-of-memory]")
    assert "570425344 bytes" in result.err


@pytest.mark.parametrize("words", [["--debug", "list"], ["list", "--debug"]])
def test_debug_shows_the_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    make_list_fail(monkeypatch, SpecError("oh"))
    result = cli(*words)
    assert result.code == 2
    assert "Traceback (most recent call last)" in result.err
    assert result.err.endswith("error[failed]: oh\n")


@pytest.mark.parametrize(
    ("words", "moved"),
    [
        (["list", "--plugin", "a.py", "x"], ["--plugin", "a.py", "list", "x"]),
        (["list", "--plugin=a.py"], ["--plugin=a.py", "list"]),
        (["check", "a", "--no-plugins", "b=c"], ["--no-plugins", "check", "a", "b=c"]),
        (["check", "--", "--debug"], ["check", "--", "--debug"]),
        (["list", "--plugin"], ["--plugin", "list"]),
        ([], []),
    ],
)
def test_global_options_are_accepted_anywhere(words: list[str], moved: list[str]) -> None:
    assert entrance._global_first(words) == moved


@pytest.mark.parametrize(
    "words", [["list"], ["check", "gpt-tiny"], ["train", "gpt-tiny"], ["status", "quickstart"], ["run", "quickstart"]]
)
def test_a_deleted_working_directory_is_one_clear_error(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert entrance.main(words) == EXIT_STORE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error[no-working-directory]")


def test_a_narrow_terminal_gets_narrow_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paribus.cli.console.terminal_columns", lambda: 40)
    rows = [("a-name", "words " * 20), ("a-much-longer-name-than-that-is", "words " * 20), ("x", "")]
    assert all(len(line) <= 40 for line in table(rows, indent=2))
    assert len(table([("a", "b")])) == 1
    assert table([]) == []


def test_without_a_terminal_a_row_is_one_line() -> None:
    assert terminal_columns() == 10_000
    assert len(table([("a", "words " * 200)])) == 1


def test_control_sequences_are_escaped_in_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    note("\x1b[31mred\u202e")
    assert capsys.readouterr().err == "\\u001b[31mred\\u202e\n"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command in which `paribus` is this version."""
    script = f'paribus() {{ "{sys.executable}" -m paribus "$@"; }}; {command}'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, errors="replace", check=False)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("command", "code", "err"),
    [
        ("paribus list | head -1; exit ${PIPESTATUS[0]}", 0, ""),
        ("paribus list > /dev/full", 5, "error[cannot-write]: cannot write to stdout: No space left on device\n"),
        ("paribus list >&-", 0, ""),
        ("paribus check nothing 2>&-", 2, ""),
        ("paribus check nothing 2>/dev/full", 2, ""),
        ("paribus list </dev/null | cat > /dev/null; exit ${PIPESTATUS[0]}", 0, ""),
        ("PYTHONIOENCODING=latin-1 paribus explain gqa", 0, ""),
        ("COLUMNS=10 TERM=dumb paribus list", 0, ""),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_an_error_without_a_traceback(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str, code: int, err: str, unbuffered: str
) -> None:
    """Python flushes buffered output again when it exits, and exits with 120 if that fails."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    ended = shell(command)
    assert (ended.returncode, ended.stderr) == (code, err)


def test_an_interrupt_prints_one_word(cli: Cli) -> None:
    slow = "import os, signal, sys; from paribus.cli import main, console\n"
    slow += "console.Session.index = lambda self: os.kill(os.getpid(), signal.SIGINT)\n"
    ended = subprocess.run(
        [sys.executable, "-c", slow + "sys.exit(main.main(['list']))"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")


HEAVY = ("torch", "lightning", "scipy", "torchmetrics", "omegaconf", "numpy", "tokenizers", "rich")


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["list"], 0),
        (["list", "attention", "--json"], 0),
        (["explain", "attention"], 0),
        (["explain", "attention.gqa"], 0),
        (["plugins"], 0),
        (["check", "encoder-tiny", "attention=gqaa", "dims.heads=four"], 2),
    ],
)
def test_informational_commands_are_quick_and_import_nothing_heavy(
    cli: Cli, words: list[str], code: int, tmp_path: Path
) -> None:
    report = tmp_path / "modules.json"
    program = (
        "import json, pathlib, sys; from paribus.cli.main import main; code = main(sys.argv[2:]); "
        f"found = [name for name in {HEAVY!r} if name in sys.modules]; "
        "pathlib.Path(sys.argv[1]).write_text(json.dumps(found)); sys.exit(code)"
    )
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run([sys.executable, "-c", program, str(report), *words], capture_output=True, check=False)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.returncode == code
    assert json.loads(report.read_text()) == []
    # The goal is 0.4 s; the limit leaves room for a busy machine.
    assert end.ru_utime - start.ru_utime + end.ru_stime - start.ru_stime < 0.8


def test_a_corpus_is_fingerprinted_without_numpy() -> None:
    code = (
        "import sys, paribus; from paribus_text import python_docs; python_docs().fingerprint(); "
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
