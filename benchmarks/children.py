"""Commands of Paribus in separate processes, with their CPU time from the start of Python to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

_PROGRAM = """
import sys
from paribus.cli.main import main
code = main(sys.argv[1:])
print("torch" in sys.modules, file=sys.stderr)
sys.exit(code)
"""
COMMAND = ("-m", "paribus")


class Ran(NamedTuple):
    """Result of a process."""

    code: int
    seconds: float  # of CPU, its children included
    torch: bool  # whether it had imported torch by its end
    errors: str


class Line(NamedTuple):
    """Line of output, and the seconds until it was printed."""

    text: str
    seconds: float


def ran(words: Sequence[str], environment: dict[str, str] | None = None) -> Ran:
    """Run a command, and discard its output except for the last lines of stderr."""
    return python(["-c", _PROGRAM, *words], environment)


def python(words: Sequence[str], environment: dict[str, str] | None = None) -> Ran:
    with subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        assert process.stderr is not None, "it is a pipe"
        error_lines = process.stderr.read().strip().splitlines()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Ran(
        process.returncode, usage.ru_utime + usage.ru_stime, error_lines[-1:] == ["True"], " ".join(error_lines[-3:])
    )


def watched(words: Sequence[str], environment: dict[str, str] | None = None) -> tuple[int, list[Line], float]:
    """Run a command; return its exit code, its lines with their times, and its wall seconds."""
    start = time.perf_counter()
    lines: list[Line] = []
    with subprocess.Popen(
        [sys.executable, *COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        assert process.stdout is not None, "it is a pipe"
        lines.extend(Line(line.rstrip(), time.perf_counter() - start) for line in process.stdout)
    return process.returncode, lines, time.perf_counter() - start
