"""Plugin of golden trials: a digest of every loss, gradient and parameter of each step, and an attention.

`PARIBUS_GOLDEN` names the file; further processes of a trial add their rank to its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

import paribus

FILE: Final = "PARIBUS_GOLDEN"
INTERRUPT: Final = "PARIBUS_GOLDEN_INTERRUPT"  # step at which the process gets a signal, as by Ctrl-C
LENGTH: Final = 16  # hexadecimal digits of a digest


def digest(tensor: Tensor) -> str:
    """Return a digest of the bits of a tensor; of this process's part of a sharded one."""
    local = getattr(tensor, "to_local", lambda: tensor)().detach().cpu().contiguous()
    hashed = hashlib.sha256(f"{local.dtype}{tuple(local.shape)}".encode())
    hashed.update(local.reshape(-1).view(torch.uint8).numpy().tobytes() if local.numel() else b"")
    return hashed.hexdigest()[:LENGTH]


def parameters(model: LightningModule) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters without the prefixes that compiled layers add to their names."""
    for name, parameter in model.named_parameters():
        yield name.replace("_orig_mod.", ""), parameter


class Recorder(Callback):
    """Values of a trial by their places, in the order in which they are computed."""

    def __init__(self, file: Path, interrupt: int) -> None:
        self.file = file
        self.interrupt = interrupt
        self.values: dict[str, Any] = {}
        self.step = 1
        self.micro_batch = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.step = 1
        for name, parameter in parameters(pl_module):
            self.values[f"initial tensor {name}"] = digest(parameter)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self.micro_batch += 1
        share = f", micro-batch {self.micro_batch}" if self.micro_batch > 1 else ""
        self.values[f"loss at step {self.step}{share}"] = float(loss.item()).hex()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        for name, parameter in parameters(pl_module):
            self.values[f"gradient of {name} at step {self.step}"] = (
                "" if parameter.grad is None else digest(parameter.grad)
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step < self.step:
            return  # not the last micro-batch of its step
        self.values[f"learning rate at step {self.step}"] = [
            float(group["lr"]).hex() for group in trainer.optimizers[0].param_groups
        ]
        for name, parameter in parameters(pl_module):
            self.values[f"parameter {name} after step {self.step}"] = digest(parameter)
        if self.step == self.interrupt:
            os.kill(os.getpid(), signal.SIGINT)
            self.write(trainer)
        self.step, self.micro_batch = self.step + 1, 0

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        names = {id(parameter): name for name, parameter in parameters(pl_module)}
        for number, (parameter, state) in enumerate(trainer.optimizers[0].state.items()):
            name = names.get(id(parameter), f"parameter {number}")  # a sharded model has other parameters now
            for key, value in sorted(state.items()):
                self.values[f"optimizer state `{key}` of {name}"] = (
                    digest(value) if isinstance(value, Tensor) else value
                )
        self.write(trainer)

    def write(self, trainer: Trainer) -> None:
        """Write the values of this process."""
        rank = trainer.global_rank
        target = self.file.with_suffix(f".{rank}.json") if rank else self.file
        target.write_text(json.dumps(self.values), encoding="utf-8")


@paribus.hookimpl
def configure_trainer(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the recorder to the trainer of a trial."""
    if FILE not in os.environ:
        return {}
    return {"callbacks": [Recorder(Path(os.environ[FILE]), int(os.environ.get(INTERRUPT, "0")))]}


@paribus.hookimpl
def attention() -> Mapping[str, type[Any]]:
    """Add a component that does not come with Paribus, whose trials check what it promises."""
    from tests.core.paribus.evidence.mistaken_attention import HandMade  # lines of slots are recorded before it

    return {"golden-external": HandMade}
