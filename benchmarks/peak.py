"""Peak memory, measured where nothing else was: `python -m benchmarks.peak`, jobs in and bytes out, a line each.

Each job runs in a process of its own, forked before anything was allocated for another. The kernel's own high-water
mark is set back after a small run, which touches the libraries, and read after the one that counts.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.attending import Job, runner

ROOT = Path(__file__).parent.parent


def peaks(jobs: Sequence[Job]) -> list[int]:
    """The most memory that each job needs above what the process had before, in bytes."""
    lines = "".join(json.dumps(job._asdict()) + "\n" for job in jobs)
    command = [sys.executable, "-m", "benchmarks.peak"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    # Without a threshold of its own malloc keeps what was freed, and what is taken from there is not seen.
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"measuring memory failed: {done.stderr.strip().splitlines()[-1:]}")
    return [int(line) for line in done.stdout.split()]


def serve() -> None:
    """Reads jobs, forks for each, and prints what it took."""
    from paribus.registry import installed

    registry = installed()
    for line in sys.stdin:
        job = Job(**json.loads(line))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, str(measured(registry, job)).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            found = pipe.read()
        os.waitpid(child, 0)
        print(found, flush=True)


def measured(registry: Any, job: Job) -> int:
    runner(registry, job._replace(rows=512))()
    run = runner(registry, job)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    run()
    return status("VmHWM") - before


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


if __name__ == "__main__":
    serve()
