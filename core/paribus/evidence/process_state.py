"""State of a process that a step must not depend on or change: clocks, global generators, and settings."""

from __future__ import annotations

import os
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import torch

from paribus.assembly.devices import fork_generators

DAY: Final = 86400  # seconds
HOURS: Final = 5 * 3600 + 17 * 60 + 41.3  # in seconds
LIBRARIES: Final = ("TORCH", "PYTORCH", "TRITON", "CUDA", "NCCL")  # which set variables when they first compile
CLOCKS: Final = ("time", "monotonic", "perf_counter", "process_time", "thread_time")


def global_generators() -> dict[str, object]:
    """Return the states of the global generators of Python and numpy, which no step may use."""
    state = np.random.get_state(legacy=False)  # the global generator is what is checked
    return {"python": random.getstate(), "numpy": pickle.dumps(state)}


def process_settings() -> dict[str, object]:
    """Return the settings of this process that no component may change, by name."""
    return {
        "the default dtype": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "the precision of products": torch.get_float32_matmul_precision(),
        "the environment": {name: value for name, value in os.environ.items() if not name.startswith(LIBRARIES)},
        "the working directory": Path.cwd(),
    }


@contextmanager
def process_state(seed: int, seconds: float, device: torch.device) -> Iterator[None]:
    """Seed the global generators and advance the clocks of this thread for the block, and restore all of them."""
    python, numpy = random.getstate(), np.random.get_state()  # as above
    with fork_generators(device), advanced_clocks(seconds):
        random.seed(seed)
        np.random.seed(seed)  # as above
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # as above


def clock_shift(now: float) -> float:
    """Return seconds to another hour, weekday and year, and to a date that is an odd number of days away."""
    return 1003 * DAY + (HOURS if now % DAY + HOURS < DAY else -HOURS)


@contextmanager
def advanced_clocks(seconds: float) -> Iterator[None]:
    """Advance the clocks of module `time` for this thread; others may check leases with them."""
    thread, originals = threading.get_ident(), {name: getattr(time, name) for name in CLOCKS}
    originals |= {f"{name}_ns": getattr(time, f"{name}_ns") for name in CLOCKS}

    def advanced(clock: Callable[[], float], shift: float) -> Callable[[], float]:
        return lambda: clock() + shift if threading.get_ident() == thread else clock()

    for name, clock in originals.items():
        setattr(time, name, advanced(clock, int(seconds * 1e9) if name.endswith("_ns") else seconds))
    try:
        yield
    finally:
        for name, clock in originals.items():
            setattr(time, name, clock)
