"""One trial, from its spec to its record; cut anywhere and run again, it comes to the same record."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import torch
from lightning import Callback, Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException

from paribus.assembly.build import as_list
from paribus.assembly.cost import model_cost, training_flops
from paribus.errors import Problem, SpecError
from paribus.registry import Registry
from paribus.specs.trainer_options import lasting
from paribus.storage.atomic import FILES, Files, write_json
from paribus.storage.saved_model import RECORD, WEIGHTS
from paribus.train.ablation_probe import probe_variant
from paribus.train.adapt import initial_model
from paribus.train.assemble import build_data, load_corpus
from paribus.train.checkpoint import (
    Checkpoint,
    UnusableCheckpoints,
    environment_fingerprint,
    load_latest,
    optimizer_digest,
    parameter_digest,
    save_weights,
)
from paribus.train.data import Data
from paribus.train.digests import initial_tensors, tensor_digest, untrained_outputs_digest, validation_digest
from paribus.train.distributed import ProcessRank, lightning_strategy, run_distributed
from paribus.train.encoding import dropped_summary
from paribus.train.logger_callback import LoggerCallback
from paribus.train.loggers import LoggerRun
from paribus.train.measures import MeasureRunner, Writer, measure_runner
from paribus.train.model import Model
from paribus.train.provenance import provenance, reset_peak_memory
from paribus.train.sharding import unsharded
from paribus.train.tokenizer_state import TextCodec, write_text
from paribus.train.training_clock import TrainingClock
from paribus.train.trial_callback import (
    UNLIMITED_STEPS,
    DivergedError,
    InterruptedTrialError,
    TrialCallback,
    checkpoint_writer,
)
from paribus.train.unigram_baseline import unigram_baselines

CHECKPOINTS = "checkpoints"
DEFAULT_STEPS = 200

Spec = Mapping[str, Any]
Record = dict[str, Any]


@final
@dataclass(frozen=True)
class TrialContext:
    """Under what a trial runs: none of it changes what comes out."""

    identity: str
    folder: Path
    checkpoint_seconds: float = 30.0
    checkpoint_steps: int | None = None  # instead, every so many steps: for tests
    should_stop: Callable[[], bool] = lambda: False
    on_step: Callable[[int, float], None] = lambda step, loss: None
    on_message: Callable[[str], None] = lambda text: None
    contended: bool = False  # other trials share the machine, so its speed is not the trial's own
    hooks: Any = None  # the plugins' `configure_trainer`, `trial_started`, `trial_finished`
    changes: Mapping[str, Any] = field(default_factory=dict)  # what a study changed to come to this spec
    baseline_values: Mapping[str, Any] = field(default_factory=dict)  # what its baseline has in these places
    files: Files = field(default=FILES)
    loggers: Sequence[Mapping[str, Any]] = ()  # Lightning's, that are told of it
    logger_run: LoggerRun | None = None  # what they call it, where there are any
    ranks: ProcessRank = ProcessRank()  # which of the trial's processes this is
    writer: Writer | None = None  # lets measures have the model write; None: they have the reason in place of a number

    def for_rank(self, ranks: ProcessRank) -> TrialContext:
        """For one of the trial's processes: the first is the one that is heard and asked."""
        if ranks.first:
            return replace(self, ranks=ranks)
        plain = TrialContext(self.identity, self.folder)
        asked, tell, note = plain.should_stop, plain.on_step, plain.on_message
        return replace(self, ranks=ranks, logger_run=None, should_stop=asked, on_step=tell, on_message=note)


def run_trial(spec: Spec, classes: Registry, terms: TrialContext) -> Record:
    """Trains, evaluates and writes the record; a trial that diverges has a record too."""
    return run_distributed(spec["trainer"] or {}, lambda ranks: _run(spec, classes, terms.for_rank(ranks)))


def _run(spec: Spec, classes: Registry, terms: TrialContext) -> Record:
    started = time.time()
    _hush()
    text = load_corpus(spec, classes)
    found = probe_variant(spec, terms.changes, classes, text, terms.baseline_values)
    reset_peak_memory()
    if text.built and dropped_summary(text.dropped):  # once a study, not for each of its trials
        terms.on_message(f"left out of the corpus: {dropped_summary(text.dropped)}")
    model, adapted = initial_model(spec, classes, text, measured=True)
    data = build_data(spec, classes, text)
    watch = TrainingClock(lasting(spec["trainer"]))
    given = (spec["trainer"] or {}).get("max_steps") or (DEFAULT_STEPS if watch.limit is None else None)
    steps = given or UNLIMITED_STEPS
    model.steps = data.steps = given
    model.watch = None if given else watch
    flops = model.flops
    examples = dropped_summary({why: count for why, count in data.left_out.items() if why not in text.dropped})
    if examples:
        terms.on_message(f"left out of the examples: {examples}")
    began = {
        "tensors": initial_tensors(model),
        "outputs": untrained_outputs_digest(model, data),
        "validation": validation_digest(data),
    }
    _knows_its_end(data)
    keeper = _keeper(model, data, steps, watch, terms, measure_runner(spec, classes, model, data, terms.writer))
    diverged: DivergedError | None = None
    diary = (
        LoggerCallback(keeper, spec, terms.loggers, terms.logger_run, terms.on_message)
        if terms.logger_run is not None
        else None
    )
    trainer = _trainer(
        spec, steps - keeper.step if given else -1, [keeper] if diary is None else [keeper, diary], terms
    )
    status = "failed"
    try:
        if keeper.step < steps:
            _fit(spec, trainer, model, data, terms)
        status = "success"
    except DivergedError as error:
        diverged = error
    except InterruptedTrialError:
        status = "aborted"
        raise
    finally:
        if diary is not None:
            diary.close(status)
    begun = {} if adapted is None else {"from": adapted.to_json()}
    record: Record = {
        "identity": terms.identity,
        "spec": dict(spec),
        "result": {
            **_result(spec, model, data, keeper, trainer, began, diverged),
            **_flops(model, keeper.step * data.batch_size, flops),
            **begun,
        },
        "provenance": {
            **provenance(started, watch.seconds, terms.contended, model.device),
            **({} if watch.limit is None else {"spent_seconds": watch.spent}),
            **found.to_json(),
        },
    }
    if diverged is None:
        first = terms.ranks.first
        save_weights(terms.folder / WEIGHTS, model, {"identity": terms.identity}, write=first, files=terms.files)
    if not terms.ranks.first:
        return record
    if diverged is None:
        write_text(terms.folder, TextCodec.of(text), files=terms.files)
    write_json(terms.folder / RECORD, record, files=terms.files)
    if terms.hooks is not None:
        terms.hooks.trial_finished(spec=spec, record=record)
    return record


def _knows_its_end(data: Data) -> None:
    """Refuses what changes with how far the training is, where only time will tell how far that is."""
    if data.steps is None and data.changes():
        what = "an objective changes as the training goes on, and how far this one is, cut by time, is not known"
        valid = "a budget in steps, tokens or FLOPs, or an objective that stays as it is"
        raise SpecError(Problem(code="does-not-fit", path="trainer.max_time", message=what, valid=valid))


def _keeper(
    model: Model, data: Data, steps: int, watch: TrainingClock, terms: TrialContext, measures: MeasureRunner | None
) -> TrialCallback:
    fingerprint = environment_fingerprint(model.device)
    last = time.monotonic()

    def due(step: int) -> bool:
        nonlocal last
        if terms.checkpoint_steps is not None:
            return step % terms.checkpoint_steps == 0
        if time.monotonic() - last < terms.checkpoint_seconds:
            return False
        last = time.monotonic()
        return True

    checkpoints, points = terms.folder / CHECKPOINTS, data.options.evaluations
    keeper = TrialCallback(
        model,
        data,
        steps=steps,
        points=[-(-steps * (at + 1) // points) for at in range(points)],
        keep=checkpoint_writer(checkpoints, terms.identity, fingerprint, terms.files),
        due=due,
        asked=terms.should_stop,
        tell=terms.on_step,
        measure=measures,
        watch=watch,
    )
    keeper.ranks = terms.ranks
    found = load_latest(checkpoints, terms.identity, fingerprint, files=terms.files)
    if isinstance(found, (Checkpoint, UnusableCheckpoints)):
        for line in found.notes:
            terms.on_message(line)
    if isinstance(found, Checkpoint):
        keeper.resume(found)
    return keeper


def _trainer(spec: Spec, steps: int, ours: Sequence[Callback], terms: TrialContext) -> Trainer:
    own: dict[str, Any] = {
        "accelerator": "auto",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "limit_val_batches": 0,
        "max_epochs": 1,
        "plugins": LightningEnvironment(),  # processes are ours to start, whatever cluster this may be a job of
    }
    for asked in terms.hooks.configure_trainer(spec=spec) if terms.hooks is not None else ():
        own.update(asked or {})
    own.update(spec["trainer"] or {})
    own["strategy"] = lightning_strategy(own, terms.ranks.of)
    own.pop("max_time", None)  # Lightning's own clock counts evaluations, and forgets what a resumed trial took before
    if steps < 0:
        own["max_epochs"] = -1
    callbacks = [*own.pop("callbacks", []), *ours]
    try:
        return Trainer(**{**own, "max_steps": steps}, callbacks=callbacks)
    except (MisconfigurationException, TypeError, ValueError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        what = f"Lightning takes no such trainer: {first}"
        raise SpecError(
            Problem(code="trainer-refused", path="trainer", message=what, valid="what this machine has")
        ) from error


def _fit(spec: Spec, trainer: Trainer, model: Model, data: Data, terms: TrialContext) -> None:
    if terms.hooks is not None and terms.ranks.first:
        terms.hooks.trial_started(spec=spec, model=model, trainer=trainer)
    failure: list[BaseException] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")  # its advice is for people
        try:
            trainer.fit(model, data)
        except (DivergedError, InterruptedTrialError) as error:
            failure.append(error)
    if failure:
        raise failure[0]


def _result(
    spec: Spec,
    model: Model,
    data: Data,
    keeper: TrialCallback,
    trainer: Trainer,
    began: Mapping[str, Any],
    diverged: DivergedError | None,
) -> dict[str, Any]:
    """All that must come out bitwise the same when the trial is run again."""
    length = spec["dims"]["length"]
    with unsharded(model):
        cost, unigrams = model_cost(model.assembled, length), unigram_baselines(model, data)
    text = data.encoded
    result: dict[str, Any] = {
        "state": "done" if diverged is None else "diverged",
        "steps": keeper.step,
        "tokens": keeper.step * data.batch_size * length,
        "metrics": {} if diverged else {key: value for key, value in keeper.curve[-1].items() if key != "step"},
        "curve": keeper.curve,
        "losses": keeper.losses,
        "frequencies": unigrams,
        "parameters": cost.parameters,
        "flops_per_token": cost.flops_per_token,
        "cache_bytes_per_token": cost.cache_bytes_per_token(),
        "data": {
            "corpus": text.fingerprint,
            "tokenizer": text.tokenizer_fingerprint,
            "dropped": data.left_out,
            "whole": data.val_count == data.val_examples.count,  # whether all of the validation split is evaluated
            **({} if data.fill is None else {"fill": data.fill}),
        },
        "objectives": [node["name"] for node in as_list(spec["objective"])],
        "certificate": {
            **began,
            "batches": keeper.batches,
            "order": keeper.order,
            "along": keeper.along,
            "losses": tensor_digest(torch.tensor(keeper.losses, dtype=torch.float64)),
            "no_gradient": keeper.no_gradient,
            "manners": keeper.manners,
        },
    }
    if keeper.watch.limit is not None:
        result["cut"] = {"by": "seconds", "seconds": keeper.watch.limit, "clock": keeper.watch.clock}
    if keeper.unmeasured:
        result["unmeasured"] = keeper.unmeasured
    if diverged is not None:
        return {**result, "diverged": {"step": diverged.step, "last": diverged.last}}
    optimizer = trainer.optimizers[0] if trainer.optimizers else None
    digests = {"parameters": parameter_digest(model), "generators": tensor_digest(torch.get_rng_state())}
    if optimizer is not None:
        digests["optimizer"] = optimizer_digest(optimizer, model)
    return {**result, "digests": digests}


def _flops(model: Model, examples: int, before: int | None) -> dict[str, int]:
    """What the training took, and what it took with all that the model began from, where that is known."""
    length = model.spec["dims"]["length"]
    teacher = None if model.teacher is None else model.teacher.assembled
    with unsharded(model):
        own = examples * training_flops(model.assembled, length, teacher)
    return {"training_flops": own, **({} if before is None else {"total_flops": before + own})}


def _hush() -> None:
    """Lightning's advice is for people; a trial reports by its record."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
