"""Lightning callback of a trial: losses, digests, evaluations, checkpoints, and interruption."""

from __future__ import annotations

import math
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from paribus.assembly.devices import move_batch
from paribus.datamodule.data import Data, join_shares
from paribus.evidence.digests import batch_digest, chain_digest, optimizer_options
from paribus.evidence.leaks import Context
from paribus.evidence.repeated_step import compile_step
from paribus.evidence.step_checks import StepChecks
from paribus.models.averaged_weights import AveragedWeights, OptimizerAverages
from paribus.models.checkpoint import Checkpoint, environment_fingerprint, restore, save
from paribus.models.distributed import ProcessRank, full_tensor, is_sharded, unsharded
from paribus.models.evaluate import evaluate
from paribus.models.lightning_module import Model
from paribus.models.training_clock import TrainingClock, is_evaluation_due
from paribus.parts.batch import Batch
from paribus.storage.atomic import FILES, Files
from paribus.train.measures import MeasureRunner

CHECKED_STEPS: Final = 8  # all of the first steps are checked for missing gradients
DRAWN_STEPS: Final = 32  # one of so many later steps is checked as well, for changes outside of the optimizer
UNLIMITED_STEPS: Final = 1 << 62  # steps of a training run that ends after a time
LOSS_READ_INTERVAL: Final = 20  # steps between two reads of the losses from an accelerator, so that no step waits


def should_check_step(step: int, steps: int) -> bool:
    """Return True at the steps whose gradients and parameters are checked: the first, ever fewer later, and the last.

    One step is not enough: a parameter behind a gate of 0 gets its first gradient late, and a layer that is dropped at
    random has none at some steps. Checking every step would slow down large models with experts.
    """
    return step < CHECKED_STEPS or step & (step - 1) == 0 or step == steps - 1


def parameters_without_gradient(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Return the names whose parameters have no gradient, or one of zeros only; the device is synchronized once."""
    parameters = dict(model.named_parameters())
    gradients = [(name, parameters[name].grad) for name in names]
    nonzero = {name: _any_nonzero(gradient) for name, gradient in gradients if gradient is not None}
    if not nonzero:
        return list(names)
    flags = dict(zip(nonzero, torch.stack(list(nonzero.values())).tolist(), strict=True))
    return [name for name in names if not flags.get(name)]


def _any_nonzero(gradient: Tensor) -> Tensor:
    return (gradient.coalesce().values() if gradient.is_sparse else full_tensor(gradient)).any()


@final
class UnreadStep(NamedTuple):
    """Step whose loss is still on the device, with the digests at that step."""

    loss: Tensor
    counts: Mapping[str, Tensor]  # of targets, by loss term
    step: int
    batches: str
    order: str
    is_last: bool


def read_steps(steps: Sequence[UnreadStep]) -> tuple[list[float], list[dict[str, float]]]:
    """Return losses and counts of targets, those of all steps copied from the device at once."""
    if not steps:
        return [], []
    losses = torch.stack([step.loss.detach() for step in steps]).tolist()
    counts = {name: torch.stack([step.counts[name] for step in steps]).tolist() for name in steps[0].counts}
    return losses, [{name: float(values[index]) for name, values in counts.items()} for index in range(len(steps))]


@final
class DivergedError(Exception):
    """The loss is not finite."""

    def __init__(self, step: int, last_loss: float | None) -> None:
        super().__init__(f"the loss was not finite at step {step}; the last finite value was {last_loss}")
        self.step = step
        self.last_loss = last_loss


@final
class InterruptedTrialError(Exception):
    """The trial was interrupted on request; its checkpoint is written."""


@final
class TrialCallback(Callback):
    """Callback whose whole state is saved in checkpoints, so that an interrupted trial resumes bitwise."""

    def __init__(
        self,
        model: Model,
        data: Data,
        *,
        steps: int,
        evaluation_steps: Sequence[int],
        save_checkpoint: Callable[[TrialCallback, Trainer], None],
        is_checkpoint_due: Callable[[int], bool],
        should_stop: Callable[[], bool],
        on_step: Callable[[int, float], None],
        measure: MeasureRunner | None = None,
        clock: TrainingClock | None = None,
    ) -> None:
        self.model = model
        self.data = data
        self.steps = steps
        self.evaluation_steps = frozenset(evaluation_steps)
        self.save_checkpoint = save_checkpoint
        self.is_checkpoint_due = is_checkpoint_due
        self.should_stop = should_stop
        self.on_step = on_step
        self.rank = ProcessRank()
        self.exchange_steps = LOSS_READ_INTERVAL  # between two exchanges of requests by processes on accelerators
        self.measure = measure
        self.unmeasured: dict[str, str] = {}  # measures without a value, and the reason
        self.step = 0
        self.losses: list[float] = []
        self.curve: list[dict[str, Any]] = []
        self.answer_scores: dict[str, list[float]] = {}  # of the last evaluation
        self.batches = ""
        self.order = ""
        self.batch_digests: dict[str, str] = {}  # at each power of two: trials of different lengths share these
        self.initial: dict[str, Any] = {}  # digests before the first step
        self.no_gradient: list[str] = []
        self.optimizer_options: dict[str, str] = {}
        self.checks = StepChecks(model)
        self._secret = secrets.token_bytes(8)  # draws steps that the trial does not know
        self.check_properties: Callable[[Batch, Context], None] | None = (
            None  # before the first and after the last step
        )
        self.clock = clock or TrainingClock()  # stands still during evaluations and checkpoints
        self.ema_decay: float | None = None
        # Made from the first weights, on the device of the training.
        self.averages: AveragedWeights | OptimizerAverages | None = None
        self.checkpoint: Checkpoint | None = None
        self._micro_batches: list[Batch] = []  # of the current step
        self._unread: list[UnreadStep] = []

    # -- state in checkpoints -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "curve": self.curve,
            "batches": self.batches,
            "order": self.order,
            "batch_digests": self.batch_digests,
            "initial": self.initial,
            "no_gradient": self.no_gradient,
            "checks": self.checks.state(),
            "seconds": self.clock.seconds,
            "spent": self.clock.spent,
            **({} if self.averages is None else {"averages": self.averages.state()}),
        }

    def resume(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint. Parameters and optimizer are restored when Lightning has made the optimizer."""
        self.checkpoint = checkpoint
        self.step = self.model.completed_steps = self.data.completed_steps = checkpoint.step
        self.losses = checkpoint.extra["losses"].tolist()
        self.curve = list(checkpoint.extra["curve"])
        self.batches, self.order = checkpoint.extra["batches"], checkpoint.extra["order"]
        self.batch_digests = dict(checkpoint.extra["batch_digests"])
        self.initial = dict(checkpoint.extra["initial"])
        self.no_gradient = list(checkpoint.extra["no_gradient"])
        self.checks.resume(checkpoint.extra["checks"])
        self.clock.seconds, self.clock.spent = checkpoint.extra["seconds"], checkpoint.extra["spent"]

    # -- Lightning hooks ------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.model.evaluates_averages = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.optimizer_options = optimizer_options(self.model, trainer.optimizers[0])
        if self.checkpoint is not None:
            restore(self.checkpoint, self.model, trainer.optimizers[0])
            trainer.precision_plugin.load_state_dict(self.checkpoint.extra["precision"])
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            self.checks.count_updates(trainer.optimizers[0], self.step)
        if self.ema_decay is not None:
            self.averages = AveragedWeights(self.model, self.ema_decay)
        elif self.model.optimizer.traits.get("averages"):
            self.averages = OptimizerAverages(self.model, self.model.optimizer, trainer.optimizers[0])
        if self.averages is not None and self.checkpoint is not None:
            self.averages.resume(self.checkpoint.extra["averages"])
        if self._is_checked():
            self.checks.store_parameters()
        self.clock.start(self.model.device)

    def _is_checked(self) -> bool:
        """Return whether hooks, generators and parameters are checked at the next step."""
        is_drawn = zlib.crc32(self._secret + str(self.step).encode()) % DRAWN_STEPS == 0
        return is_drawn or should_check_step(self.step, self.steps)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        if batch_idx == 0 and self.rank.world_size == 1:
            with self.clock.paused(self.model.device):
                if self.step == 0:
                    self.checks.repeat(batch, trainer.precision_plugin.train_step_context)
                    if self.check_properties is not None:
                        self.check_properties(batch, trainer.precision_plugin.train_step_context)
                compile_step(self.model, batch, trainer.precision_plugin.train_step_context)
        if self._is_checked() and batch_idx % trainer.accumulate_grad_batches == 0:
            with self.clock.paused(self.model.device):
                self.checks.begin_forward()
        # Of the batch on the CPU: a copy from an accelerator would wait for it. Of the whole step, so that the digest
        # does not depend on how the step is divided.
        assert self.data.host_batch is not None, "Lightning moves a batch to the device before it calls this"
        batch = self.data.host_batch
        if self.rank.world_size > 1:
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

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if self._is_checked():
            with self.clock.paused(self.model.device):
                self.checks.end_forward(self.model.draw_seed)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        if not self._is_checked():
            return
        with self.clock.paused(self.model.device):
            self.checks.compare_parameters()
            self.checks.check_optimizer(optimizer, trainer.lr_scheduler_configs)
        if not should_check_step(self.step, self.steps):
            return  # what a record has of these steps does not depend on the draw
        if self.clock.limit is None:
            self.checks.digest_rates(optimizer, self.step)
        if self.step == 0:
            never_trained = self.model.frozen if self.model.frozen_steps is None else frozenset()
            self.no_gradient = [name for name, _ in self.model.named_parameters() if name not in never_trained]
        if self.no_gradient:
            self.no_gradient = parameters_without_gradient(self.model, self.no_gradient)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if self.model.completed_steps + trainer.global_step == self.step:
            return  # not the last micro-batch of its step
        self.step = self.model.completed_steps + trainer.global_step
        if self.averages is not None:
            self.averages.update(self.step)
        if self.step & (self.step - 1) == 0:
            self.batch_digests[str(self.step)] = self.batches
        assert self.model.step_loss is not None
        is_last = self.step == self.steps or self.clock.is_over()
        loss = self.rank.sum_shares(self.model.step_loss)
        counts = {name: self.rank.sum_shares(count) for name, count in self.model.step_counts.items()}
        self._unread.append(UnreadStep(loss, counts, self.step, self.batches, self.order, is_last))
        if self._is_checked() or is_last:
            with self.clock.paused(self.model.device):
                self.checks.store_parameters()
        if self.model.device.type == "cpu" or len(self._unread) >= LOSS_READ_INTERVAL or is_last:
            self.read_losses()
        if is_last or self._is_evaluation_due():
            self._evaluate(is_last=is_last)
        if is_last:
            self._end_training(trainer)
            return  # the record follows: a checkpoint of the last step would resume without an optimizer to digest
        should_stop, is_due = self._requests()
        if should_stop or is_due:
            self.clock.pause()
            self.read_losses()
            self.checks.compare_parameters()
            if self.rank.is_first or is_sharded(self.model):
                self.save_checkpoint(self, trainer)
            if self._is_checked():
                self.checks.store_parameters()
            self.clock.start(self.model.device)
        if should_stop:
            raise InterruptedTrialError("asked to stop; the checkpoint is written")

    def _end_training(self, trainer: Trainer) -> None:
        self.checks.compare_parameters()
        if self.averages is not None:
            self.averages.copy_to_model()
        if self.check_properties is not None and self.rank.world_size == 1:
            batch = move_batch(self.data.validation_batch(0), self.model.device)
            with self.clock.paused(self.model.device):
                self.check_properties(batch, trainer.precision_plugin.train_step_context)
        trainer.should_stop = self.step < self.steps

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.clock.pause()

    def _requests(self) -> list[bool]:
        """Return if any process should stop, and if a checkpoint is due by the clock of the first process.

        The processes save a sharded model together, so they must agree. Accelerators exchange this at few steps, since
        it synchronizes.
        """
        device = self.model.device
        if self.rank.world_size > 1 and device.type != "cpu" and self.step % self.exchange_steps:
            return [False, False]
        is_due = self.rank.is_first and self.is_checkpoint_due(self.step)
        return self.rank.any_true([self.should_stop(), is_due], device)

    def read_losses(self) -> None:
        """Copy losses from the device, and raise `DivergedError` at the first one that is not finite."""
        losses, counted = read_steps(self._unread)
        for unread, value, counts in zip(self._unread, losses, counted, strict=True):
            step, batches, order = unread.step, unread.batches, unread.order
            if not math.isfinite(value):
                # Later steps must leave no trace: how many there were depends on when the losses are read.
                self.step, self.batches, self.order = step, batches, order
                self.curve = [point for point in self.curve if point["step"] < step]
                self.batch_digests = {key: digest for key, digest in self.batch_digests.items() if int(key) <= step}
                raise DivergedError(step, self.losses[-1] if self.losses else None)
            self.losses.append(value)
            self.checks.count_targets(step, counts, is_last=unread.is_last)
        self._unread.clear()
        with self.clock.paused(self.model.device):  # progress output is no part of a budget in seconds
            self.on_step(self.step, self.losses[-1])

    def _is_evaluation_due(self) -> bool:
        if self.steps < UNLIMITED_STEPS:
            return self.step in self.evaluation_steps
        return is_evaluation_due(self.clock.fraction(), len(self.curve), self.data.options.evaluations)

    def _evaluate(self, *, is_last: bool) -> None:
        self.clock.pause()
        with nullcontext() if self.averages is None else self.averages.applied():
            self.curve.append({"step": self.step, **evaluate(self.model, self.data)})
            self.checks.count_evaluated(self.model.evaluation_counts)
            self.answer_scores = self.model.answer_scores
            if self.measure is not None:
                with unsharded(self.model):
                    results = self.measure(self.curve, is_last=is_last)
                self.curve[-1].update(results.metrics)
                self.unmeasured = results.unmeasured
        self.clock.start(self.model.device)


def checkpoint_writer(folder: Path, identity: str, files: Files = FILES) -> Callable[[TrialCallback, Trainer], None]:
    """Return a function that writes a checkpoint of a trial into `folder`."""

    def write(callback: TrialCallback, trainer: Trainer) -> None:
        save(
            folder,
            callback.step,
            model=callback.model,
            optimizer=trainer.optimizers[0],
            generators={"torch": torch.get_rng_state()},
            extra={**callback.state(), "precision": trainer.precision_plugin.state_dict()},
            identity=identity,
            fingerprint=environment_fingerprint(trainer.strategy.root_device),
            write=callback.rank.is_first,
            files=files,
        )

    return write
