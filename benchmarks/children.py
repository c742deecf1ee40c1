"""Commands of Paribus in processes of their own: what they cost from the start of Python to its end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

_TELLING = """
import sys
from paribus.cli.main import main
code = main(sys.argv[1:])
print("torch" in sys.modules, file=sys.stderr)
sys.exit(code)
"""
COMMAND = ("-m", "paribus")


class Ran(NamedTuple):
    """A process that has ended."""

    code: int
    seconds: float  # of CPU, its own children's included
    torch: bool  # whether it had imported torch by its end
    said: str


class Line(NamedTuple):
    """A line of what a process printed, and after how many seconds."""

    text: str
    seconds: float


def ran(words: Sequence[str], environment: dict[str, str] | None = None) -> Ran:
    """One command, with what it prints thrown away but for the end of its errors."""
    return python(["-c", _TELLING, *words], environment)


def python(words: Sequence[str], environment: dict[str, str] | None = None) -> Ran:
    with subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        assert process.stderr is not None, "it is a pipe"
        said = process.stderr.read().strip().splitlines()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return Ran(process.returncode, usage.ru_utime + usage.ru_stime, said[-1:] == ["True"], " ".join(said[-3:]))


def watched(words: Sequence[str], environment: dict[str, str] | None = None) -> tuple[int, list[Line], float]:
    """One command, line by line as it prints, and how long it ran by the clock on the wall."""
    began = time.perf_counter()
    lines: list[Line] = []
    with subprocess.Popen(
        [sys.executable, *COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        assert process.stdout is not None, "it is a pipe"
        lines.extend(Line(line.rstrip(), time.perf_counter() - began) for line in process.stdout)
    return process.returncode, lines, time.perf_counter() - began
