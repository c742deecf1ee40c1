"""The LightningModule that `paribus.assemble` returns; any Lightning Trainer can fit it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from lightning import LightningModule
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torchmetrics import Metric

from paribus.assembly.build import ModelParts
from paribus.assembly.devices import move_batch, seed_generators
from paribus.assembly.forward_pass import BatchForward
from paribus.assembly.freezing import frozen_parameters
from paribus.datamodule.examples import form_batch
from paribus.errors import Problem, SpecError
from paribus.models.distributed import is_sharded, shard
from paribus.models.optimizer_schedule import factor_by_step, factor_by_time, scheduled_optimizer
from paribus.models.step_updates import StepUpdates
from paribus.models.training_clock import TrainingClock
from paribus.parts.batch import Batch, Stream
from paribus.parts.chunked_loss import LossCall
from paribus.parts.context import Capture, States, merge_captures
from paribus.parts.random_draws import Draw
from paribus.parts.stack import Output
from paribus.random_keys import key32
from paribus.slots.initialisation import Initialisation, ParameterInfo
from paribus.slots.objective import LossTerm, Objective
from paribus.slots.optimizer import Optimizer
from paribus.slots.schedule import Schedule
from paribus.slots.topology import Topology, memory_of

if TYPE_CHECKING:
    from typing import Self

    from lightning.pytorch.core.optimizer import LightningOptimizer
    from lightning.pytorch.utilities.types import OptimizerLRScheduler

    from paribus.datamodule.tokenizer_state import TextCodec


@final
class Model(LightningModule):
    """A topology with its objectives. Parameter paths start at embedding, body and objectives, without a wrapper."""

    def __init__(
        self,
        assembled: ModelParts,
        *,
        spec: Any,
        initialisation: Initialisation,
        optimizer: Optimizer,
        schedule: Schedule,
        trained: Sequence[str],
        evaluated: Sequence[str],
        seed: int,
        steps: int | None,
    ) -> None:
        super().__init__()
        for name, child in assembled.children().items():
            self.add_module(name, child)
        self._assembled = (assembled,)  # in a tuple, since its modules are registered above
        self._objectives: dict[str, Objective] = {}  # also registered above
        for name, objective in assembled.objectives.items():
            assert isinstance(objective, Objective)
            self._objectives[name] = objective
        self.spec = spec
        self.trained = tuple(trained)
        self.evaluated = tuple(evaluated)
        self.seed = seed
        self.steps = steps
        self.clock: TrainingClock | None = None  # set where the budget is a time
        self.completed_steps = 0  # before this fit, in a resumed run
        self.initialisation = initialisation
        self.optimizer = optimizer
        self.evaluates_averages = False  # True in a trial, which evaluates and saves the averages of an optimizer
        self._schedule = schedule
        freeze = spec.get("freeze") or {}
        self.frozen = frozen_parameters(assembled, freeze)  # paths
        self.frozen_steps: int | None = freeze.get("steps")  # None: they are never trained
        self._set_frozen(self.frozen_steps is None)  # else when training starts, since the optimizer needs all
        self.parameter_info: dict[str, ParameterInfo] = {}  # by path, as the initialisation received it
        self.transferred_tensors: Mapping[str, str] = {}  # conversion of each tensor from a saved model, by path
        self.source_sha256 = ""  # of that saved model
        self.flops: int | None = None  # of all training so far, where known
        self.tokenizer = ""  # fingerprint of its tokenizer, where known
        self.text: TextCodec | None = None  # its tokenizer, where available
        self.compiled_losses: Mapping[str, LossCall] = {}  # by objective, for training
        self._teacher: tuple[Model, ...] = ()  # in a tuple: not a submodule, never saved
        self.step_loss: Tensor | None = None  # sum over the micro-batches of the current step
        self.step_counts: dict[str, Tensor] = {}  # targets of the current step, by loss term
        self.evaluation_counts: dict[str, Tensor] = {}  # targets of the last evaluation, by loss term
        self.answer_scores: dict[str, list[float]] = {}  # of each example in the last evaluation, by metric
        self._step_updates = StepUpdates(self)
        self.draw_seed = 0  # of torch's generator, at the current step
        self._metrics: dict[str, Metric] = {}
        self._sum: Tensor | None = None  # of losses since the last log entry; stays on the device
        self._summed = 0

    def _set_frozen(self, is_frozen: bool) -> None:
        for path, parameter in self.named_parameters() if self.frozen else ():
            if path in self.frozen:
                parameter.requires_grad_(not is_frozen)

    @property
    def assembled(self) -> ModelParts:
        return self._assembled[0]

    @property
    def topology(self) -> Topology:
        return self._assembled[0].topology

    @property
    def teacher(self) -> Model | None:
        """Frozen model that objectives learn from; it is no submodule of this one."""
        return next(iter(self._teacher), None)

    def set_teacher(self, teacher: Model) -> None:
        """Set the teacher of the objectives that need one, and freeze it."""
        self._teacher = (teacher.eval().requires_grad_(False),)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for teacher in self._teacher:  # follows to the same device and dtype
            teacher._apply(fn, recurse)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def run(self, batch: Batch, names: Sequence[str] | None = None, *, capture: Capture | None = None) -> BatchForward:
        """Return a lazy forward pass over a batch, for the named objectives or all of them."""
        heads = self._objectives
        objectives = [heads[name] for name in (heads if names is None else names)]
        captures = merge_captures(objective.captures for objective in objectives) if capture is None else capture
        teacher_run = None
        if self.teacher is not None:
            teacher_captures = merge_captures(objective.teacher_captures for objective in objectives)
            teacher_run = self.teacher.run(batch, capture=teacher_captures)
        losses = self.compiled_losses if self.training else {}
        return BatchForward(self.topology, batch, capture=captures, heads=heads, teacher=teacher_run, losses=losses)

    def objective(self, name: str) -> Objective:
        return self._objectives[name]

    def forward(
        self, tokens: Tensor, states: States | None = None, *, source: Tensor | None = None
    ) -> tuple[Tensor, States | None]:
        """(B, T) -> (B, T, V) logits of the first objective's head, and the updated `states`, if any.

        To decode step by step: `states = model.start(batch)`, then `model(tokens, states)` repeatedly.
        """
        hidden = self.hidden(tokens, states, source=source)
        return self.objective(self.trained[0]).logits(hidden, self.topology.embedding.unembed), states

    def hidden(self, tokens: Tensor, states: States | None = None, *, source: Tensor | None = None) -> Tensor:
        """(B, T) -> (B, T, D): the output of the body."""
        return self._output(tokens, states, source, capture=False).hidden

    def attention(
        self, tokens: Tensor, states: States | None = None, *, source: Tensor | None = None, part: str = "body"
    ) -> list[dict[str, Tensor]]:
        """Attention weights of each layer, whatever kernel the model uses otherwise.

        `weights` are those of self-attention, (B, H, T, S), and `cross` those of cross-attention. A layer whose
        attention has no weights has neither; a model without any is an error. `part`: a stack such as `encoder`.
        """
        if part == "body":
            return list(self._output(tokens, states, source, capture=True).captured)
        paths = [topology_part.path for topology_part in self.topology.parts]
        if part not in paths:
            raise ValueError(f"unknown stack `{part}`; valid: {', '.join(paths)}")
        return list(self.topology.run({part: Stream(tokens)}, part, capture=True).captured)

    def _output(self, tokens: Tensor, states: States | None, source: Tensor | None, *, capture: bool) -> Output:
        streams = {"body": Stream(tokens)}
        cross = next(part.cross for part in self.topology.parts if part.path == "body")
        memory = states.memory if states is not None else None
        if cross is not None and memory is None:
            if source is None:
                raise ValueError(f"this topology reads a source: model(tokens, source=…), (B, S) for `{cross}`")
            memory = memory_of(self.topology.run({cross: Stream(source)}, cross))
            if states is not None:
                states.memory = memory
        return self.topology.run(streams, "body", memory=memory, states=states, capture=capture)

    def start(self, batch: int, length: int | None = None) -> States:
        """Return an empty decoding state for `batch` sequences of at most `length` tokens (default: dims.length)."""
        return self.topology.start(batch, length or int(self.spec["dims"]["length"]))

    def terms(self, run: BatchForward, names: Sequence[str]) -> dict[str, LossTerm]:
        """Return the loss terms of the named objectives: `mlm/loss`, `nsp/loss`."""
        return {f"{name}/{term}": value for name in names for term, value in self.objective(name)(run.of(name)).items()}

    def batch(self, tokens: Tensor | Stream, *, step: int = 0) -> Batch:
        """Return a batch of your own token ids for `loss`, (B, T), as the objectives form and corrupt it in training.

        `clm` predicts each token but the first. Masks and other draws depend on the seed of the spec and on `step`. A
        `Stream` has more than ids: documents (or padding), positions, segments.
        """
        stream = tokens if isinstance(tokens, Stream) else Stream(tokens)
        objectives = {name: self.objective(name) for name in self.trained}
        for name, objective in objectives.items():
            needs_sentences = "sentences" in objective.traits.get("needs", []) and stream.sentences is None
            if objective.traits.get("example_kind") or needs_sentences:
                raise SpecError(_needs_documents(name))
        count = len(stream.tokens)
        index = torch.arange(step * count, (step + 1) * count)
        draw = Draw(self.seed, 0, index, min(1.0, step / self.steps) if self.steps else 0.0)
        on_cpu = stream.apply(lambda vector: vector.cpu())
        formed = form_batch({"body": on_cpu}, {}, objectives, draw)
        return move_batch(formed, self.device)

    def loss(self, batch: Batch) -> Tensor:
        """Return the training loss: the sum of each term over its count in the whole step."""
        return self.loss_and_counts(batch)[0]

    def loss_and_counts(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the training loss, and the targets in this batch of each of its terms."""
        run = self.run(batch, self.trained)
        loss: Tensor | None = None
        counts: dict[str, Tensor] = {}
        for name, term in self.terms(run, self.trained).items():
            count = term.count if batch.counts is None else batch.counts[name]
            part = (term.total if term.weight == 1 else term.weight * term.total) / count.clamp(min=1)
            loss = part if loss is None else loss + part
            counts[name] = term.count
        assert loss is not None, "a spec has at least one objective"
        auxiliary = run.auxiliary()
        return (loss if auxiliary is None else loss + auxiliary / batch.micro_batches), counts

    # -- Lightning hooks ------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning sets this for each hook, fifty times a step; torch would check whether it is a parameter.
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def configure_model(self) -> None:
        strategy = self.trainer.strategy
        if isinstance(strategy, ModelParallelStrategy) and not is_sharded(self):
            shard(self, strategy.root_device)

    def on_fit_start(self) -> None:
        if self.optimizer.traits.get("averages") and not self.evaluates_averages:
            raise SpecError(_needs_trial(self.spec["optimizer"]["name"]))
        self.flops = None  # unknown after training by a Trainer other than a trial's
        self.zero_grad()

    def on_train_start(self) -> None:
        if self.frozen_steps is not None:
            self._set_frozen(self.completed_steps < self.frozen_steps)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        trainer = self.trainer
        if batch_idx % trainer.accumulate_grad_batches == 0:
            # Dropout of a step depends on (seed, step, rank) only: a swapped component shifts no later draw.
            step = self.completed_steps + trainer.global_step
            self.draw_seed = key32(self.seed, "step", step, trainer.global_rank)
            seed_generators(self.draw_seed, self.device)
            self.step_loss, self.step_counts = None, {}
            if step == self.frozen_steps:
                self._set_frozen(False)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        with self._step_updates.collecting():
            loss, counts = self.loss_and_counts(batch)
        for name, count in counts.items():
            self.step_counts[name] = self.step_counts[name] + count if name in self.step_counts else count
        share = loss.detach()
        self.step_loss = share if self.step_loss is None else self.step_loss + share
        if batch.micro_batches > 1:  # Lightning and DDP average over the shares of a step's sum
            loss, share = loss * batch.micro_batches, share * batch.micro_batches
        self._log_sometimes(share, batch_idx)
        return loss

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: torch.optim.Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Take a step and set the gradients to None, so that the next forward pass does not keep them in memory."""
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        optimizer.zero_grad()
        self._step_updates.finish_step(self, self.parameter_info, self._total)

    def _total(self, share: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        total: Tensor = self.trainer.strategy.reduce(share, reduce_op="sum")
        return total

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: torch.optim.Optimizer) -> None:
        """Do nothing: `optimizer_step` has set the gradients to None."""

    def _log_sometimes(self, loss: Tensor, batch_idx: int) -> None:
        # self.log takes as long as a step of a small model, so it is called every few steps only.
        self._sum = loss if self._sum is None else self._sum + loss
        self._summed += 1
        trainer = self.trainer
        every = getattr(trainer, "log_every_n_steps", 50)
        if (trainer.global_step + 1) % every == 0 and (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.log("train/loss", self._sum / self._summed, sync_dist=True)
            self._sum, self._summed = None, 0

    def on_validation_epoch_start(self) -> None:
        self._metrics = self.metrics()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.observe(batch, self._metrics)

    def on_validation_epoch_end(self) -> None:
        self.log_dict({name: metric.compute() for name, metric in self._metrics.items()}, sync_dist=True)

    def metrics(self, names: Sequence[str] | None = None) -> dict[str, Metric]:
        """Return new metrics of the evaluated objectives, or of `names`: `val/<objective>/<name>`."""
        metrics: dict[str, Metric] = {}
        for name in self.evaluated if names is None else names:
            for term in self.objective(name).terms:
                metrics[f"val/{name}/{term}"] = Mean()
            for metric_name, metric in self.objective(name).metrics().items():
                metrics[f"val/{name}/{metric_name}"] = metric
        return {name: metric.to(self.device) for name, metric in metrics.items()}

    def observe(self, batch: Batch, metrics: Mapping[str, Metric], names: Sequence[str] | None = None) -> None:
        """Update metrics with one batch of the validation split."""
        evaluated = self.evaluated if names is None else names
        run = self.run(batch, evaluated)
        for name, term in self.terms(run, evaluated).items():
            metrics[f"val/{name}"].update(term.total, term.count)
        for name in evaluated:
            prefix = f"val/{name}/"
            selected = {key.removeprefix(prefix): metric for key, metric in metrics.items() if key.startswith(prefix)}
            self.objective(name).update_metrics(run.of(name), selected)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        if self.clock is not None:
            factor = factor_by_time(self._schedule, self.clock)
        else:
            steps = self.steps or int(self.trainer.estimated_stepping_batches)
            factor = factor_by_step(self._schedule, steps, self.completed_steps)
        return scheduled_optimizer(self.optimizer, self, factor)


# Lightning inspects the signature at each step, and Python builds it each time, which takes 60 µs.
Model.training_step.__signature__ = inspect.signature(Model.training_step)  # type: ignore[attr-defined]  # mypy knows functions without it


def _needs_documents(objective: str) -> Problem:
    message = f"the objective `{objective}` forms its examples from documents, not from (B, T) token ids"
    valid = "a `paribus.Batch` with its streams and targets, or the batches of `paribus.data(spec)`"
    return Problem(code="does-not-fit", path="objective", message=message, valid=valid)


def _needs_trial(optimizer: str) -> Problem:
    message = f"Lightning's Trainer would validate and save the weights of the steps of `{optimizer}`, not its averages"
    valid = "`paribus train`, a study, or an optimizer without the trait `averages`"
    return Problem(code="does-not-fit", path="optimizer", message=message, valid=valid)


@final
class Mean(Metric):
    """Sum over count: independent of the batch size, and not finite where one of the losses is not.

    torchmetrics' `MeanMetric` skips NaN, or else ignores weights.
    """

    full_state_update = False
    higher_is_better = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, total: Tensor, count: Tensor) -> None:
        self.total += total.detach()
        self.count += count

    def compute(self) -> Tensor:
        return self.total / self.count
