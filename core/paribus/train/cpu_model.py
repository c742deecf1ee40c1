"""Name of the processor of this machine."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path


def processor_name() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()
