"""Hardware, versions and settings that affect speed."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

PACKAGES = (
    "paribus", "torch", "lightning", "numpy", "pytest-benchmark",
    "transformers", "accelerate", "x-transformers", "litgpt", "local-attention",
)  # fmt: skip


def described() -> dict[str, Any]:
    """Return the description of this machine, without host name and user."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gib": memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": os.environ.get("OMP_NUM_THREADS", "as many as there are cores"),
        "versions": versions(),
    }


def processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def versions() -> dict[str, str]:
    package_versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            package_versions[package] = importlib.metadata.version(package)
    return package_versions


def commit() -> str:
    """Return the commit of this checkout, or PARIBUS_COMMIT where it is a copy without history."""
    command = ["git", "rev-parse", "HEAD"]
    git = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return git.stdout.strip() or os.environ.get("PARIBUS_COMMIT", "unknown")


def today() -> str:
    return str(datetime.datetime.now(tz=datetime.UTC).date())


def slug() -> str:
    """Return the hardware as part of a file name: `amd-epyc-2-cores`."""
    name = re.sub(r"\((r|tm)\)|processor|cpu", "", processor().lower())
    return f"{re.sub(r'[^a-z0-9]+', '-', name).strip('-')}-{os.cpu_count()}-cores"
