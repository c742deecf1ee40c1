"""One accelerator a trial: those that run at once are dealt out over the devices that there are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
NVIDIA: Final = Path("/proc/driver/nvidia/gpus")


def gpus() -> int:
    """Those that a trial may use, as far as can be told without torch."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return sum(each.strip() not in ("", "-1") for each in named.split(","))
    with suppress(OSError):
        return len(list(NVIDIA.iterdir()))
    return 0


def pin(place: int, trainer: Mapping[str, Any]) -> None:
    """Lets this process see one device, before anything of CUDA is touched; a trial that wants several sees all."""
    import torch

    if trainer.get("devices", 1) in (1, "auto"):
        named = os.environ.get(VISIBLE)
        there = named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
        chosen = dealt(place, there)
        if chosen is not None:
            os.environ[VISIBLE] = chosen


def dealt(place: int, devices: Sequence[str]) -> str | None:
    """The device of the trial at `place` among those that run at once; None where there is nothing to choose."""
    return devices[place % len(devices)] if len(devices) > 1 else None
