"""What watches a trial from step to step: losses, digests, evaluations, checkpoints, and the wish to stop.

Which parameters no gradient reaches: they count among the parameters, and do nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, final

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from paribus.parts.batch import Batch
from paribus.storage.atomic import FILES, Files
from paribus.train.checkpoint import Checkpoint, restore, save
from paribus.train.data import Data, join_shares
from paribus.train.digests import batch_digest, chain_digest, optimizer_options
from paribus.train.distributed import ProcessRank
from paribus.train.evaluate import evaluate
from paribus.train.measures import MeasureRunner
from paribus.train.model import Model
from paribus.train.sharding import full_tensor, is_sharded, unsharded
from paribus.train.training_clock import TrainingClock, is_evaluation_due

CHECKED_STEPS: Final = 8  # first steps, all of which are looked at


def should_check_gradients(step: int, steps: int) -> bool:
    """Whether gradients are looked at before this step: the first ones, then ever more rarely, and the last one.

    What begins behind a gate of 0 has its first gradient late, and a layer that is left out by lot at some steps has
    one at others: so one step says nothing. All steps would cost time for a model with experts that nobody asks.
    """
    return step < CHECKED_STEPS or step & (step - 1) == 0 or step == steps - 1


def parameters_without_gradient(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Those of `names` whose parameters have no gradient now, or one that is 0 throughout; the device waits once."""
    parameters = dict(model.named_parameters())
    known = [(name, _any(parameters[name].grad)) for name in names]
    with_gradient = [(name, moved) for name, moved in known if moved is not None]
    if not with_gradient:
        return list(names)
    moved = torch.stack([moved for _, moved in with_gradient]).tolist()
    touched = {name for (name, _), any_of in zip(with_gradient, moved, strict=True) if any_of}
    return [name for name in names if name not in touched]


def _any(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    return (gradient.coalesce().values() if gradient.is_sparse else full_tensor(gradient)).any()


UNLIMITED_STEPS = 1 << 62  # steps of a training that time alone ends
LOSS_READ_INTERVAL = 20  # on an accelerator, losses are read this many steps at a time, so that no step waits


@final
class DivergedError(Exception):
    """The loss stopped being a number."""

    def __init__(self, step: int, last: float | None) -> None:
        super().__init__(f"the loss was not finite at step {step}; the last finite value was {last}")
        self.step = step
        self.last = last


@final
class InterruptedTrialError(Exception):
    """Somebody asked for the trial to stop; its checkpoint is written."""


@final
class TrialCallback(Callback):
    """Keeps a trial: all that it knows goes into a checkpoint and comes back out of it."""

    def __init__(
        self,
        model: Model,
        data: Data,
        *,
        steps: int,
        points: Sequence[int],
        keep: Callable[[TrialCallback, Trainer], None],
        due: Callable[[int], bool],
        asked: Callable[[], bool],
        tell: Callable[[int, float], None],
        measure: MeasureRunner | None = None,
        watch: TrainingClock | None = None,
    ) -> None:
        self.model = model
        self.data = data
        self.steps = steps
        self.points = frozenset(points)
        self.keep = keep
        self.due = due
        self.asked = asked
        self.tell = tell
        self.ranks = ProcessRank()
        self.measure = measure
        self.unmeasured: dict[str, str] = {}  # what measures could not find, and why
        self.step = 0
        self.losses: list[float] = []
        self.curve: list[dict[str, Any]] = []
        self.batches = ""
        self.order = ""
        self.along: dict[str, str] = {}  # the batches as of each power of two: what trials of other lengths share
        self.no_gradient: list[str] = []
        self.manners: dict[str, str] = {}  # how the optimizer treats each parameter
        self.watch = watch or TrainingClock()  # evaluations and checkpoints not counted
        self.loaded: Checkpoint | None = None
        self._micro_batches: list[Batch] = []  # of the current step
        self._unread: list[tuple[Tensor, int, str, str]] = []  # a loss, its step, and the digests as of then

    # -- a checkpoint's worth ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "curve": self.curve,
            "batches": self.batches,
            "order": self.order,
            "along": self.along,
            "no_gradient": self.no_gradient,
            "seconds": self.watch.seconds,
            "spent": self.watch.spent,
        }

    def resume(self, loaded: Checkpoint) -> None:
        """Goes on from a checkpoint; parameters and optimizer follow once Lightning has made the optimizer."""
        self.loaded = loaded
        self.step = self.model.done = self.data.done = loaded.step
        self.losses = loaded.extra["losses"].tolist()
        self.curve = list(loaded.extra["curve"])
        self.batches, self.order = loaded.extra["batches"], loaded.extra["order"]
        self.along = dict(loaded.extra["along"])
        self.no_gradient = list(loaded.extra["no_gradient"])
        self.watch.seconds, self.watch.spent = loaded.extra["seconds"], loaded.extra["spent"]

    # -- what Lightning calls ------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.manners = optimizer_options(self.model, trainer.optimizers[0])
        if self.loaded is not None:
            restore(self.loaded, self.model, trainer.optimizers[0])
        self.watch.go(self.model.device)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        # The digest is of the whole step, so that it does not depend on how the step is divided.
        if self.ranks.of > 1:
            if batch_idx % trainer.accumulate_grad_batches:
                return
            batch = self.data.step(self.step)
        elif batch.micro_batches > 1:
            self._micro_batches.append(batch)
            if len(self._micro_batches) < batch.micro_batches:
                return
            batch = join_shares(self._micro_batches)
            self._micro_batches = []
        self.batches = chain_digest(self.batches, batch_digest(batch))
        self.order = chain_digest(self.order, str(batch.index.tolist()))

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if self.step == 0:
            self.no_gradient = [name for name, _ in self.model.named_parameters()]
        if self.no_gradient and should_check_gradients(self.step, self.steps):
            self.no_gradient = parameters_without_gradient(self.model, self.no_gradient)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if self.model.done + trainer.global_step == self.step:
            return  # a micro-batch that is not the last of its step
        self.step = self.model.done + trainer.global_step
        if self.step & (self.step - 1) == 0:
            self.along[str(self.step)] = self.batches
        assert self.model.shares is not None
        self._unread.append((self.ranks.summed(self.model.shares), self.step, self.batches, self.order))
        ending = self.step == self.steps or self.watch.over()
        if self.model.device.type == "cpu" or len(self._unread) >= LOSS_READ_INTERVAL or ending:
            self.read()
        if ending or self._is_point():
            self._evaluate(last=ending)
        if ending:
            trainer.should_stop = self.step < self.steps
            return  # what follows is the record: a checkpoint of the end would resume without an optimizer to digest
        asked = self._asked()
        if asked or self.due(self.step):
            self.watch.pause()
            self.read()
            if self.ranks.first or is_sharded(self.model):
                self.keep(self, trainer)
            self.watch.go(self.model.device)
        if asked:
            raise InterruptedTrialError("asked to stop; the checkpoint is written")

    def _asked(self) -> bool:
        """Several processes ask each other, which an accelerator is not to wait for at each step."""
        device = self.model.device
        if self.ranks.of > 1 and device.type != "cpu" and self.step % LOSS_READ_INTERVAL:
            return False
        return self.ranks.agreed(self.asked(), device)

    def read(self) -> None:
        """Takes losses off the device, and notices the first that is no number."""
        for loss, step, batches, order in self._unread:
            value = float(loss)
            if not math.isfinite(value):
                # What was done since, before anybody looked, must not show: how much that was depends on the moment.
                self.step, self.batches, self.order = step, batches, order
                self.curve = [point for point in self.curve if point["step"] < step]
                self.along = {at: digest for at, digest in self.along.items() if int(at) <= step}
                raise DivergedError(step, self.losses[-1] if self.losses else None)
            self.losses.append(value)
        self._unread.clear()
        with self.watch.paused(self.model.device):  # progress output is no part of a budget in seconds
            self.tell(self.step, self.losses[-1])

    def _is_point(self) -> bool:
        """Whether it is to be evaluated now: at one of the steps that were named, or of as many parts of the time."""
        if self.steps < UNLIMITED_STEPS:
            return self.step in self.points
        return is_evaluation_due(self.watch.share(), len(self.curve), self.data.options.evaluations)

    def _evaluate(self, *, last: bool) -> None:
        self.watch.pause()
        self.curve.append({"step": self.step, **evaluate(self.model, self.data)})
        if self.measure is not None:
            with unsharded(self.model):
                found = self.measure(self.curve, last=last)
            self.curve[-1].update(found.metrics)
            self.unmeasured = found.unmeasured
        self.watch.go(self.model.device)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.watch.pause()


def checkpoint_writer(
    folder: Path, identity: str, fingerprint: dict[str, str], files: Files = FILES
) -> Callable[[TrialCallback, Trainer], None]:
    """Writes a checkpoint of the keeper's trial into `folder`."""

    def keep(keeper: TrialCallback, trainer: Trainer) -> None:
        save(
            folder,
            keeper.step,
            model=keeper.model,
            optimizer=trainer.optimizers[0],
            generators={"torch": torch.get_rng_state()},
            extra=keeper.state(),
            identity=identity,
            fingerprint=fingerprint,
            write=keeper.ranks.first,
            files=files,
        )

    return keep
