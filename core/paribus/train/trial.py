"""Training of one trial, from its spec to its record. An interrupted trial resumes and gives the same record."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, final

from lightning import Callback, Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.profilers import PassThroughProfiler

from paribus.assembly.devices import determinism_restored
from paribus.datamodule.data import Data
from paribus.datamodule.encoding import dropped_summary
from paribus.datamodule.tokenizer_state import TextCodec, write_text
from paribus.errors import Problem, SpecError
from paribus.evidence.ablation_probe import probe_variant
from paribus.evidence.digests import initial_tensors, untrained_outputs_digest, validation_digest
from paribus.evidence.leaks import Context
from paribus.evidence.property_names import UNCHECKED
from paribus.evidence.provenance import provenance, reset_peak_memory
from paribus.models.adapt import initial_model
from paribus.models.assemble import build_data, load_corpus
from paribus.models.checkpoint import (
    Checkpoint,
    UnusableCheckpoints,
    environment_fingerprint,
    load_latest,
    save_weights,
)
from paribus.models.distributed import ProcessRank, lightning_strategy, run_distributed, set_current_device
from paribus.models.layers import configure_layers, report_compile_errors
from paribus.models.precision import matmul_precision
from paribus.models.training_clock import TrainingClock
from paribus.parts.batch import Batch
from paribus.registry import Registry
from paribus.specs.components import has_external_code
from paribus.specs.fields import EMA_DECAY
from paribus.specs.trainer_options import OWN_ARGUMENTS, max_seconds
from paribus.storage.atomic import FILES, Files, write_json
from paribus.storage.saved_model import RECORD, WEIGHTS
from paribus.storage.store import CHECKPOINTS
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
from paribus.train.trial_result import training_costs, trial_result

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
    variant: str = ""  # its name in messages
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
    with matmul_precision(spec["trainer"]), determinism_restored(), lightning_advice_silenced():
        return run_distributed(spec["trainer"] or {}, lambda rank: _run(spec, classes, context.for_rank(rank)))


@contextmanager
def lightning_advice_silenced() -> Iterator[None]:
    """Show errors of Lightning only; its advice is for interactive use."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _run(spec: Spec, classes: Registry, context: TrialContext) -> Record:
    """Run a trial in one of its processes, and return its record."""
    training = _Training(spec, classes, context)
    training.resume()
    training.store_initial_digests()
    training.compile_layers()
    diverged = training.fit()
    if diverged is None:
        training.save_model()
    record = training.record(diverged)
    training.write(record)
    return record


@final
class _Training:
    """Trial in one of its processes: its model, data, callback and trainer, and the steps to its record."""

    def __init__(self, spec: Spec, classes: Registry, context: TrialContext) -> None:
        self.spec, self.classes, self.context, self.started = spec, classes, context, time.time()
        self.text = load_corpus(spec, classes)
        self.probe = probe_variant(spec, context.changes, classes, self.text, context.baseline_values)
        reset_peak_memory()
        if self.text.built:  # once a study, not for each of its trials
            self._report_dropped("corpus", self.text.dropped)
        self.model, self.adaptation = initial_model(spec, classes, self.text, measured=True)
        self.previous_flops = self.model.flops
        self.data = build_data(spec, classes, self.text)
        self.clock = TrainingClock(max_seconds(spec["trainer"]))
        self._set_steps()
        dropped = {reason: count for reason, count in self.data.dropped.items() if reason not in self.text.dropped}
        self._report_dropped("examples", dropped)
        _check_duration(self.data)
        self.callback = self._make_callback(measure_runner(spec, classes, self.model, self.data, context.writer))
        self.logger = self._make_logger()
        callbacks = [self.callback] if self.logger is None else [self.callback, self.logger]
        self.trainer = _trainer(spec, self.max_steps or -1, callbacks, context)
        self.device = self.trainer.strategy.root_device  # that of the model is the CPU before and after the training
        set_current_device(self.device)
        reset_peak_memory(self.device)

    def _report_dropped(self, source: str, dropped: Mapping[str, int]) -> None:
        summary = dropped_summary(dropped)
        if summary:
            self.context.on_message(f"dropped from the {source}: {summary}")

    def _set_steps(self) -> None:
        """Set the number of steps, which is open where only the time is limited."""
        default = DEFAULT_STEPS if self.clock.limit is None else None
        self.max_steps: int | None = (self.spec["trainer"] or {}).get("max_steps") or default
        self.steps = self.max_steps or UNLIMITED_STEPS
        self.model.steps = self.data.steps = self.max_steps
        self.model.clock = None if self.max_steps else self.clock

    def _make_callback(self, measures: MeasureRunner | None) -> TrialCallback:
        """Return the callback of a trial, at its first step."""
        context, evaluations = self.context, self.data.options.evaluations
        callback = TrialCallback(
            self.model,
            self.data,
            steps=self.steps,
            # Each is rounded up, so that the last evaluation is after the last step.
            evaluation_steps=[-(-self.steps * (index + 1) // evaluations) for index in range(evaluations)],
            save_checkpoint=checkpoint_writer(context.folder / CHECKPOINTS, context.identity, context.files),
            is_checkpoint_due=_checkpoint_timer(context.options),
            should_stop=context.should_stop,
            on_step=context.on_step,
            measure=measures,
            clock=self.clock,
        )
        callback.rank = context.rank
        if has_external_code(self.spec, self.classes.index):  # those of Paribus have conformed
            callback.check_properties = self._check_properties
        callback.exchange_steps = math.gcd(LOSS_READ_INTERVAL, context.options.checkpoint_steps or 0)
        callback.ema_decay = (self.model.spec["trainer"] or {}).get(EMA_DECAY.name)
        return callback

    def _check_properties(self, batch: Batch, context: Context) -> None:
        """Check what the components of a model promise; what does not hold withholds the verdict later."""
        checks = self.callback.checks
        if self.callback.step == 0:
            self._report_faults(lambda: checks.check_properties(self.classes, self.data, batch, context))
            reset_peak_memory(self.device)  # which is that of the training
        else:
            self._report_faults(lambda: checks.check_trained(batch, context))

    def _report_faults(self, check: Callable[[], None]) -> None:
        """Run checks of the model, and warn of what they find."""
        checks = self.callback.checks
        known = {UNCHECKED, *(checks.properties or ())}
        check()
        for name, fault in (checks.properties or {}).items():
            if name not in known:
                self.context.on_message(f"warning: {self.context.variant or 'the model'} {name}: {fault}")

    def _make_logger(self) -> LoggerCallback | None:
        run, options = self.context.logger_run, self.context.options
        if run is None:
            return None
        return LoggerCallback(self.callback, self.spec, options.loggers, run, self.context.on_message)

    def resume(self) -> None:
        """Resume from the latest checkpoint, if there is one."""
        context = self.context
        fingerprint = environment_fingerprint(self.device)
        checkpoint = load_latest(context.folder / CHECKPOINTS, context.identity, fingerprint, files=context.files)
        if isinstance(checkpoint, (Checkpoint, UnusableCheckpoints)):
            for line in checkpoint.notes:
                context.on_message(line)
        if isinstance(checkpoint, Checkpoint):
            self.callback.resume(checkpoint)
        if self.max_steps:  # Lightning counts the steps of this process
            self.trainer.fit_loop.epoch_loop.max_steps = self.steps - self.callback.step

    def store_initial_digests(self) -> None:
        """Store digests of the untrained model and of the validation examples; they change no parameter."""
        if self.callback.initial or not self.context.rank.is_first:
            return
        self.callback.checks.store_parameters()
        self.callback.initial = {
            "tensors": initial_tensors(self.model),
            "outputs": untrained_outputs_digest(self.model, self.data),
            "validation": validation_digest(self.data),
        }
        self.callback.checks.compare_parameters()

    def compile_layers(self) -> None:
        """Compile the layers, as far as the spec and the device have them compiled."""
        self.layers = configure_layers(self.model, self.spec["trainer"], self.device)
        if self.layers.note:
            self.context.on_message(self.layers.note)

    def fit(self) -> DivergedError | None:
        """Train the model, and return the error of a training that diverged."""
        context = self.context
        if self.callback.step >= self.steps:
            return None
        if context.hooks is not None and context.rank.is_first:
            context.hooks.trial_started(spec=self.spec, model=self.model, trainer=self.trainer)
        failure: DivergedError | InterruptedTrialError | None = None  # handled below, without Lightning's frames
        status = "failed"
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module="lightning")
                # A first step that overflows in float16 is skipped; the certificate counts these.
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
                try:
                    with report_compile_errors():
                        self.trainer.fit(self.model, self.data)
                    status = "success"
                except DivergedError as error:
                    failure = error
                except InterruptedTrialError as error:
                    failure, status = error, "aborted"
        finally:
            if self.logger is not None:
                self.logger.close(status)
        if isinstance(failure, InterruptedTrialError):
            raise failure
        return failure

    def record(self, diverged: DivergedError | None) -> Record:
        """Return the record: the trial's identity, spec and result, and how it came about."""
        clock = self.clock
        return {
            "identity": self.context.identity,
            "spec": dict(self.spec),
            "result": {
                **trial_result(self.spec, self.callback, self.trainer, diverged),
                **training_costs(self.model, self.callback.step, self.data.batch_size, self.previous_flops),
                **({} if self.adaptation is None else {"from": self.adaptation.to_json()}),
            },
            "provenance": {
                **provenance(self.started, clock.seconds, self.context.options.contended, self.device),
                **({} if clock.limit is None else {"spent_seconds": clock.spent}),
                "compiled_layers": self.layers.compiled,
                "compiled_losses": self.layers.losses,
                **self.probe.to_json(),
            },
        }

    def save_model(self) -> None:
        """Write the weights, which all processes of the trial have parts of, and from the first one the tokenizer."""
        context, is_first = self.context, self.context.rank.is_first
        metadata = {"identity": context.identity}
        save_weights(context.folder / WEIGHTS, self.model, metadata, write=is_first, files=context.files)
        if is_first:
            write_text(context.folder, TextCodec.of(self.text), files=context.files)
        if self.callback.check_properties is not None and context.rank.world_size == 1:
            self._report_faults(
                lambda: self.callback.checks.check_saved(self.data, self.classes, context.folder / WEIGHTS)
            )

    def write(self, record: Record) -> None:
        """Write the record, from the first process of the trial."""
        context = self.context
        if not context.rank.is_first:
            return
        write_json(context.folder / RECORD, record, files=context.files)
        if context.hooks is not None:
            context.hooks.trial_finished(spec=self.spec, record=record)


def _checkpoint_timer(options: TrialOptions) -> Callable[[int], bool]:
    """Return a function of a step that returns whether a checkpoint is due."""
    last_save = time.monotonic()

    def is_checkpoint_due(step: int) -> bool:
        nonlocal last_save
        if options.checkpoint_steps is not None:
            return step % options.checkpoint_steps == 0
        if time.monotonic() - last_save < options.checkpoint_seconds:
            return False
        last_save = time.monotonic()
        return True

    return is_checkpoint_due


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


def _check_duration(data: Data) -> None:
    """Reject objectives that change during training where the number of steps is not known."""
    if data.steps is None and data.changes_during_training():
        message = "an objective changes during training, but a budget in seconds leaves the number of steps open"
        valid = "a budget in steps, tokens or FLOPs, or an objective that does not change"
        raise SpecError(Problem(code="does-not-fit", path="trainer.max_time", message=message, valid=valid))
