"""Peak memory of jobs in separate processes: `python -m benchmarks.peak FUNCTION` reads jobs, and prints bytes.

Each job runs in its own process, forked before anything was allocated for another. The high-water mark of the operating
system is reset after a small run, which loads the libraries, and read after the measured run.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def peaks(function: str, jobs: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the peak memory of each job above that of the process before, in bytes.

    `function` is `module:name`; called with `small` and the values of a job, it returns what is run.
    """
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    command = [sys.executable, "-m", "benchmarks.peak", function]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    # Without this threshold, malloc retains freed memory, and its reuse would not be measured.
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    process = subprocess.run(
        command, input=lines, capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    if process.returncode or len(process.stdout.split()) < len(jobs):
        raise RuntimeError(f"measuring memory failed: {process.stderr.strip().splitlines()[-1:]}")
    return [int(line) for line in process.stdout.split()]


def serve(function: str) -> None:
    """Read jobs, fork for each, and print its peak memory."""
    from benchmarks.gpu_setup import registry

    module, _, name = function.partition(":")
    make = getattr(importlib.import_module(module), name)
    registry()  # read once, not in each process
    for line in sys.stdin:
        job = json.loads(line)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, str(measured(make, job)).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            output = pipe.read()
        os.waitpid(child, 0)
        print(output, flush=True)


def measured(make: Callable[..., Callable[[], object]], job: Mapping[str, Any]) -> int:
    make(small=True, **job)()
    run = make(small=False, **job)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    baseline = status("VmRSS")
    run()
    return status("VmHWM") - baseline


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


if __name__ == "__main__":
    serve(sys.argv[1])
