"""Training of one trial, from its spec to its record. An interrupted trial resumes and gives the same record."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

import torch
from lightning import Callback, Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.profilers import PassThroughProfiler

from paribus.assembly.build import as_list
from paribus.assembly.cost import model_cost, training_flops
from paribus.assembly.devices import determinism_restored
from paribus.datamodule.data import Data
from paribus.datamodule.encoding import dropped_summary
from paribus.datamodule.tokenizer_state import TextCodec, write_text
from paribus.errors import Problem, SpecError
from paribus.evidence.ablation_probe import probe_variant
from paribus.evidence.digests import initial_tensors, tensor_digest, untrained_outputs_digest, validation_digest
from paribus.evidence.provenance import provenance, reset_peak_memory
from paribus.evidence.step_checks import StepChecks
from paribus.models.adapt import initial_model
from paribus.models.assemble import build_data, load_corpus
from paribus.models.checkpoint import (
    Checkpoint,
    UnusableCheckpoints,
    environment_fingerprint,
    load_latest,
    optimizer_digest,
    parameter_digest,
    save_weights,
)
from paribus.models.distributed import ProcessRank, lightning_strategy, run_distributed, set_current_device, unsharded
from paribus.models.evaluate import learning_thresholds, unigram_baselines
from paribus.models.layers import configure_layers, report_compile_errors
from paribus.models.lightning_module import Model
from paribus.models.precision import matmul_precision
from paribus.models.training_clock import TrainingClock
from paribus.registry import Registry
from paribus.specs.fields import EMA_DECAY
from paribus.specs.trainer_options import OWN_ARGUMENTS, max_seconds
from paribus.storage.atomic import FILES, Files, write_json
from paribus.storage.saved_model import RECORD, WEIGHTS
from paribus.train.logger_callback import LoggerCallback
from paribus.train.measures import MeasureRunner, Writer, measure_runner
from paribus.train.trial_callback import (
    LOSS_READ_INTERVAL,
    UNLIMITED_STEPS,
    DivergedError,
    InterruptedTrialError,
    TrialCallback,
    checkpoint_writer,
)
from paribus.train.trial_options import LoggerRun, TrialOptions

CHECKPOINTS = "checkpoints"
DEFAULT_STEPS = 200

Spec = Mapping[str, Any]
Record = dict[str, Any]


@final
@dataclass(frozen=True)
class TrialContext:
    """Surroundings of a trial: nothing in them changes its result."""

    identity: str
    folder: Path
    options: TrialOptions = TrialOptions()
    should_stop: Callable[[], bool] = lambda: False
    on_step: Callable[[int, float], None] = lambda step, loss: None
    on_message: Callable[[str], None] = lambda text: None
    hooks: Any = None  # of the plugins: `configure_trainer`, `trial_started`, `trial_finished`
    changes: Mapping[str, Any] = field(default_factory=dict)  # values that a study changed to get this spec
    baseline_values: Mapping[str, Any] = field(default_factory=dict)  # values of the baseline at the same keys
    files: Files = field(default=FILES)
    logger_run: LoggerRun | None = None  # name and folder for the loggers, if there are any
    rank: ProcessRank = ProcessRank()
    writer: Writer | None = None  # generates text for measures; None: such measures have a reason instead of a value

    def for_rank(self, rank: ProcessRank) -> TrialContext:
        """Return the context of one of the trial's processes: only the first reports and can be interrupted."""
        if rank.is_first:
            return replace(self, rank=rank)
        silent = TrialContext(self.identity, self.folder)
        return replace(
            self,
            rank=rank,
            logger_run=None,
            should_stop=silent.should_stop,
            on_step=silent.on_step,
            on_message=silent.on_message,
        )


def run_trial(spec: Spec, classes: Registry, context: TrialContext) -> Record:
    """Train, evaluate and write the record; a trial that diverges has a record too."""
    with matmul_precision(spec["trainer"]), determinism_restored():
        return run_distributed(spec["trainer"] or {}, lambda rank: _run(spec, classes, context.for_rank(rank)))


def _run(spec: Spec, classes: Registry, context: TrialContext) -> Record:
    started = time.time()
    _silence_lightning()
    text = load_corpus(spec, classes)
    probe = probe_variant(spec, context.changes, classes, text, context.baseline_values)
    reset_peak_memory()
    if text.built and dropped_summary(text.dropped):  # once a study, not for each of its trials
        context.on_message(f"dropped from the corpus: {dropped_summary(text.dropped)}")
    model, adaptation = initial_model(spec, classes, text, measured=True)
    data = build_data(spec, classes, text)
    clock = TrainingClock(max_seconds(spec["trainer"]))
    max_steps = (spec["trainer"] or {}).get("max_steps") or (DEFAULT_STEPS if clock.limit is None else None)
    steps = max_steps or UNLIMITED_STEPS
    model.steps = data.steps = max_steps
    model.clock = None if max_steps else clock
    previous_flops = model.flops
    examples = dropped_summary({reason: count for reason, count in data.dropped.items() if reason not in text.dropped})
    if examples:
        context.on_message(f"dropped from the examples: {examples}")
    _check_duration(data)
    measures = measure_runner(spec, classes, model, data, context.writer)
    callback = _trial_callback(model, data, steps, clock, context, measures)
    callbacks: list[Callback] = [callback]
    logger: LoggerCallback | None = None
    if context.logger_run is not None:
        logger = LoggerCallback(callback, spec, context.options.loggers, context.logger_run, context.on_message)
        callbacks.append(logger)
    trainer = _trainer(spec, steps if max_steps else -1, callbacks, context)
    device = trainer.strategy.root_device  # that of the model is the CPU before and after the training
    set_current_device(device)
    reset_peak_memory(device)
    _resume(callback, device, context)
    if max_steps:
        trainer.fit_loop.epoch_loop.max_steps = steps - callback.step  # Lightning counts the steps of this process
    if not callback.initial and context.rank.is_first:
        callback.initial = _initial_digests(model, data, callback.checks)
    layers = configure_layers(model, spec["trainer"], device)
    if layers.note:
        context.on_message(layers.note)
    diverged = None if callback.step >= steps else _fit(spec, trainer, model, data, context, logger)
    record: Record = {
        "identity": context.identity,
        "spec": dict(spec),
        "result": {
            **_result(spec, model, data, callback, trainer, diverged),
            **_flops(model, callback.step * data.batch_size, previous_flops),
            **({} if adaptation is None else {"from": adaptation.to_json()}),
        },
        "provenance": {
            **provenance(started, clock.seconds, context.options.contended, device),
            **({} if clock.limit is None else {"spent_seconds": clock.spent}),
            "compiled_layers": layers.compiled,
            "compiled_losses": layers.losses,
            **probe.to_json(),
        },
    }
    is_first = context.rank.is_first
    if diverged is None:
        metadata = {"identity": context.identity}
        save_weights(context.folder / WEIGHTS, model, metadata, write=is_first, files=context.files)
    if not is_first:
        return record
    if diverged is None:
        write_text(context.folder, TextCodec.of(text), files=context.files)
    write_json(context.folder / RECORD, record, files=context.files)
    if context.hooks is not None:
        context.hooks.trial_finished(spec=spec, record=record)
    return record


def _trial_callback(
    model: Model, data: Data, steps: int, clock: TrainingClock, context: TrialContext, measures: MeasureRunner | None
) -> TrialCallback:
    """Return the callback of a trial, at its first step."""
    last_save = time.monotonic()

    def is_checkpoint_due(step: int) -> bool:
        nonlocal last_save
        if context.options.checkpoint_steps is not None:
            return step % context.options.checkpoint_steps == 0
        if time.monotonic() - last_save < context.options.checkpoint_seconds:
            return False
        last_save = time.monotonic()
        return True

    evaluations = data.options.evaluations
    callback = TrialCallback(
        model,
        data,
        steps=steps,
        evaluation_steps=[-(-steps * (index + 1) // evaluations) for index in range(evaluations)],
        save_checkpoint=checkpoint_writer(context.folder / CHECKPOINTS, context.identity, context.files),
        is_checkpoint_due=is_checkpoint_due,
        should_stop=context.should_stop,
        on_step=context.on_step,
        measure=measures,
        clock=clock,
    )
    callback.rank = context.rank
    callback.exchange_steps = math.gcd(LOSS_READ_INTERVAL, context.options.checkpoint_steps or 0)
    callback.ema_decay = (model.spec["trainer"] or {}).get(EMA_DECAY.name)
    return callback


def _resume(callback: TrialCallback, device: torch.device, context: TrialContext) -> None:
    """Resume from the latest checkpoint, if there is one."""
    fingerprint = environment_fingerprint(device)
    checkpoint = load_latest(context.folder / CHECKPOINTS, context.identity, fingerprint, files=context.files)
    if isinstance(checkpoint, (Checkpoint, UnusableCheckpoints)):
        for line in checkpoint.notes:
            context.on_message(line)
    if isinstance(checkpoint, Checkpoint):
        callback.resume(checkpoint)


def _initial_digests(model: Model, data: Data, checks: StepChecks) -> dict[str, Any]:
    """Return digests of the untrained model and of the validation examples, and check that they change no parameter."""
    checks.store_parameters()
    digests = {
        "tensors": initial_tensors(model),
        "outputs": untrained_outputs_digest(model, data),
        "validation": validation_digest(data),
    }
    checks.compare_parameters()
    return digests


@final
class NoProfiler(PassThroughProfiler):
    """Lightning's default profiler, without a new context for each of the 24 profiled actions of a step."""

    _nothing: Final = nullcontext()

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]  # a generator is typed
        return self._nothing


def _trainer(spec: Spec, steps: int, callbacks: Sequence[Callback], context: TrialContext) -> Trainer:
    options: dict[str, Any] = {
        "accelerator": "auto",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
        "profiler": NoProfiler(),
        "max_epochs": 1,
        "plugins": LightningEnvironment(),  # paribus starts the processes itself, also within a job of a cluster
    }
    for hook_options in context.hooks.configure_trainer(spec=spec) if context.hooks is not None else ():
        options.update(hook_options or {})
    options.update({key: value for key, value in (spec["trainer"] or {}).items() if key not in OWN_ARGUMENTS})
    if options["devices"] == "auto" and context.rank.world_size == 1:
        options["devices"] = 1  # on several GPUs, Lightning would start this program again for each of them
    options["strategy"] = lightning_strategy(options, context.rank.world_size)
    options.pop("max_time", None)  # Lightning's clock includes evaluations, and starts at 0 in a resumed trial
    if steps < 0:
        options["max_epochs"] = -1
    callbacks = [*options.pop("callbacks", []), *callbacks]
    try:
        return Trainer(**{**options, "max_steps": steps}, callbacks=callbacks)
    except (MisconfigurationException, TypeError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        message = f"Lightning rejects these options: {reason}"
        valid = "options that Lightning supports on this machine"
        raise SpecError(Problem(code="trainer-error", path="trainer", message=message, valid=valid)) from error


def _fit(
    spec: Spec, trainer: Trainer, model: Model, data: Data, context: TrialContext, logger: LoggerCallback | None
) -> DivergedError | None:
    """Train the model, and return the error of a training that diverged."""
    if context.hooks is not None and context.rank.is_first:
        context.hooks.trial_started(spec=spec, model=model, trainer=trainer)
    failure: DivergedError | InterruptedTrialError | None = None  # handled below, without Lightning's frames
    status = "failed"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            try:
                with report_compile_errors():
                    trainer.fit(model, data)
                status = "success"
            except DivergedError as error:
                failure = error
            except InterruptedTrialError as error:
                failure, status = error, "aborted"
    finally:
        if logger is not None:
            logger.close(status)
    if isinstance(failure, InterruptedTrialError):
        raise failure
    return failure


def _check_duration(data: Data) -> None:
    """Reject objectives that change during training where the number of steps is not known."""
    if data.steps is None and data.changes_during_training():
        message = "an objective changes during training, but a budget in seconds leaves the number of steps open"
        valid = "a budget in steps, tokens or FLOPs, or an objective that does not change"
        raise SpecError(Problem(code="does-not-fit", path="trainer.max_time", message=message, valid=valid))


def _silence_lightning() -> None:
    """Silence Lightning's advice, which is for interactive use."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _result(
    spec: Spec,
    model: Model,
    data: Data,
    callback: TrialCallback,
    trainer: Trainer,
    diverged: DivergedError | None,
) -> dict[str, Any]:
    """Return the part of the record that must be bitwise equal when the trial is run again."""
    length = spec["dims"]["length"]
    with unsharded(model):
        cost, baselines = model_cost(model.assembled, length), unigram_baselines(model, data)
    text = data.encoded
    result: dict[str, Any] = {
        "state": "done" if diverged is None else "diverged",
        "steps": callback.step,
        "tokens": callback.step * data.batch_size * length,
        "metrics": {} if diverged else {key: value for key, value in callback.curve[-1].items() if key != "step"},
        "curve": callback.curve,
        "losses": callback.losses,
        "unigram_baseline": baselines,
        "learned_below": learning_thresholds(model, baselines, data.encoded),
        "parameters": cost.parameters,
        "flops_per_token": cost.flops_per_token,
        "cache_bytes_per_token": cost.cache_bytes_per_token(),
        "data": {
            "corpus": text.fingerprint,
            "tokenizer": text.tokenizer_fingerprint,
            "lost_bytes": text.lost,
            "dropped": data.dropped,
            "validation_examples": [data.val_count, data.val_examples.count],  # evaluated, in the split
            "full_validation": data.val_count == data.val_examples.count,
            **({} if data.fill is None else {"fill": data.fill}),
        },
        "objectives": [node["name"] for node in as_list(spec["objective"])],
        "certificate": {
            **callback.initial,
            "batches": callback.batches,
            "order": callback.order,
            "batch_digests": callback.batch_digests,
            "losses": tensor_digest(torch.tensor(callback.losses, dtype=torch.float64)),
            "no_gradient": callback.no_gradient,
            "optimizer_options": callback.optimizer_options,
            **callback.checks.to_json(),
        },
    }
    if callback.clock.limit is not None:
        result["time_budget"] = {"seconds": callback.clock.limit, "clock": callback.clock.clock}
    if callback.unmeasured:
        result["unmeasured"] = callback.unmeasured
    if diverged is not None:
        return {**result, "diverged": {"step": diverged.step, "last_loss": diverged.last_loss}}
    optimizer = trainer.optimizers[0] if trainer.optimizers else None
    digests = {"parameters": parameter_digest(model), "generators": tensor_digest(torch.get_rng_state())}
    if optimizer is not None:
        digests["optimizer"] = optimizer_digest(optimizer, model)
    return {**result, "digests": digests}


def _flops(model: Model, examples: int, previous: int | None) -> dict[str, int]:
    """Return the FLOPs of the training, and with those of the model it started from, where they are known."""
    length = model.spec["dims"]["length"]
    teacher = None if model.teacher is None else model.teacher.assembled
    with unsharded(model):
        flops = examples * training_flops(model.assembled, length, teacher)
    return {"training_flops": flops, **({} if previous is None else {"total_flops": previous + flops})}
