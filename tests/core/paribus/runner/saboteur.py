"""A plugin that does to a trial what the file named in PARIBUS_SABOTAGE says, at a step of it: once, or every time."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from lightning import Callback, LightningModule, Trainer

from paribus import hookimpl


@final
class Saboteur(Callback):
    """Waits for its step."""

    def __init__(self, deed: str, step: int) -> None:
        self.deed = deed
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step:
            DEEDS[self.deed]()


def fail() -> None:
    raise ValueError("this is what a plugin's mistake looks like\nand this is its second line")


def chat() -> None:
    os.write(1, b"x" * 20_000_000)
    print("that was all")  # noqa: T201  # it is a chatty plugin


def hang() -> None:
    while True:
        time.sleep(0.1)


def slow() -> None:
    time.sleep(1.0)


DEEDS = {
    "raise": fail,
    "exit": lambda: os._exit(0),
    "sysexit": lambda: sys.exit("leaving"),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crash": lambda: ctypes.string_at(0),
    "hang": hang,
    "slow": slow,
    "memory": lambda: torch.empty(1 << 60, dtype=torch.uint8),
    "chat": chat,
}


@hookimpl
def trial_started(spec: Mapping[str, Any], model: LightningModule, trainer: Trainer) -> None:
    plan = json.loads(Path(os.environ["PARIBUS_SABOTAGE"]).read_text())
    deed = plan.get(str(spec["seed"]))
    if deed is None:
        return
    mark = deed.get("once")
    if mark is not None and Path(mark).exists():
        return
    if mark is not None:
        Path(mark).touch()
    trainer.callbacks.append(Saboteur(deed["do"], deed["step"]))  # type: ignore[attr-defined]  # Lightning's has no type
