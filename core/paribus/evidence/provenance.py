"""Provenance of a trial: machine, times and versions, outside of the record's hash. Imported without torch."""

from __future__ import annotations

import os
import platform
import resource
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from paribus.storage.engine import engine_hash

if TYPE_CHECKING:
    import torch


UNMEASURED: Final = ("cpu", "mps")  # devices whose module of torch reports neither memory nor a name
PACKAGES: Final = ("paribus", "torch", "lightning", "numpy", "tokenizers", "sacrebleu", "fla-core")


def reset_peak_memory(device: torch.device | None = None) -> None:
    """Reset the peak memory, which a forked process inherits, or that of a GPU, which earlier trials have used."""
    if device is not None and device.type not in UNMEASURED:
        import torch

        torch.get_device_module(device).reset_peak_memory_stats()
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak_memory(device: torch.device | None = None) -> int:
    """Return the maximum memory of a GPU, or else the maximum resident memory, since it was reset, in bytes."""
    if device is not None and device.type not in UNMEASURED:
        import torch

        return int(torch.get_device_module(device).max_memory_allocated())
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def provenance(started: float, training_seconds: float, contended: bool, device: torch.device) -> dict[str, Any]:
    """Return times, machine and versions."""
    return {
        "started": started,
        "ended": time.time(),
        "training_seconds": training_seconds,
        "contended": contended,
        "peak_bytes": peak_memory(device),
        "host": socket.gethostname(),
        "machine": machine(device),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "versions": versions(),
        "engine": engine_hash(),
        "pid": os.getpid(),
        "hash_seed": os.environ.get("PYTHONHASHSEED", ""),
    }


def machine(device: torch.device) -> dict[str, str]:
    """Return the hardware that speed depends on."""
    import torch

    name = processor_name() if device.type in UNMEASURED else torch.get_device_module(device).get_device_name()
    return {"device": device.type, "name": name, "threads": str(torch.get_num_threads())}


def processor_name() -> str:
    """Return the name of this machine's processor."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages among `PACKAGES`."""
    import importlib.metadata

    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
