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

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "paribus", "torch", "triton", "lightning", "numpy", "pytest-benchmark",
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


def driver() -> str:
    """Return the version of the NVIDIA driver, or `unknown`."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError):
        lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        return next(iter(lines), "unknown").strip()
    return "unknown"


def commit() -> str:
    """Return the commit of this checkout; of a copy without history, that in its file COMMIT or in PARIBUS_COMMIT."""
    with suppress(OSError):
        return (ROOT / "COMMIT").read_text(encoding="utf-8").strip()
    command = ["git", "rev-parse", "HEAD"]
    with suppress(OSError):
        if id_ := subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip():
            return id_
    return os.environ.get("PARIBUS_COMMIT", "unknown")


def today() -> str:
    return str(datetime.datetime.now(tz=datetime.UTC).date())


def slug() -> str:
    """Return the hardware as part of a file name: `amd-epyc-2-cores`."""
    name = re.sub(r"\((r|tm)\)|processor|cpu", "", processor().lower())
    return f"{re.sub(r'[^a-z0-9]+', '-', name).strip('-')}-{os.cpu_count()}-cores"
