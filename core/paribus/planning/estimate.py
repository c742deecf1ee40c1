"""Estimate of a study's parameters, FLOPs, memory and time, from a few timed steps of each variant."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch

from paribus.assembly.cost import ModelCost, model_cost, training_flops
from paribus.assembly.devices import move_batch, synchronize, training_device
from paribus.assembly.freezing import untrained_parameters
from paribus.evidence.provenance import peak_memory, reset_peak_memory
from paribus.evidence.step_checks import StepChecks
from paribus.models.assemble import meta_model
from paribus.models.checkpoint import save_weights
from paribus.models.evaluate import compute_metrics, evaluation_mode
from paribus.planning.plan import Plan, first_step
from paribus.planning.settings import TUNING, Setting
from paribus.planning.worth import OWN
from paribus.registry import Registry
from paribus.specs.components import has_external_code
from paribus.specs.trainer_options import max_seconds
from paribus.storage.store import FINISHED, Trial
from paribus.studies.designs import BASELINE
from paribus.train.step_memory import Shortage, memory_shortage, step_memory
from paribus.train.timed_steps import TimedSteps
from paribus.train.trial import DEFAULT_STEPS

TIMED: Final = 5


class Row(NamedTuple):
    """Estimate of one variant at one stage. Trials that it shares with an earlier variant belong to that one."""

    variant: str
    stage: str
    trials: int
    pending: int
    parameters: int
    flops_per_token: float  # of a forward pass
    training_flops: float  # of a trial; nan where only time ends it
    cache_bytes_per_token: float
    peak_bytes: int  # of this process during the timed steps; where none was timed, predicted for one
    startup_seconds: float  # of a trial: building model and data, compiling layers
    training_seconds: float
    evaluation_seconds: float
    matched: str
    check_seconds: float = 0.0  # of the properties that components of plugins promise
    faults: Mapping[str, str] = MappingProxyType({})  # properties that do not hold, by name
    setting: str = ""  # ends with `tuning` for tuning trials
    free_bytes: int = 0  # memory that was free, where a step needs more and none was timed

    @property
    def is_timed(self) -> bool:
        """Whether steps were timed: not where they would need more memory than is free."""
        return not math.isnan(self.startup_seconds)

    @property
    def seconds_per_trial(self) -> float:
        """Start, training, evaluation and checks of one trial."""
        return self.startup_seconds + self.training_seconds + self.evaluation_seconds + self.check_seconds

    @property
    def seconds(self) -> float:
        """All pending trials."""
        return self.pending * self.seconds_per_trial


def estimate(plan: Plan, registry: Registry, states: Mapping[str, str], *, timed: bool = True) -> list[Row]:
    """Return a row for each variant.

    Steps are timed on one thread, as in trials, on models that are thrown away; or not at all.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [
            _row(setting, variant.name, stage.name, trials, registry, states, timed=timed)
            for setting in plan.settings
            for stage in plan.study.stages
            for variant in setting.variants
            if (trials := plan.new_trials(variant.name, stage.name, setting.name))
        ]
        return [*rows, *_tuning_rows(plan, rows, states), *_curve_rows(plan, rows, states)]
    finally:
        torch.set_num_threads(threads)


def _tuning_rows(plan: Plan, rows: Sequence[Row], states: Mapping[str, str]) -> Iterator[Row]:
    """Yield rows of tuning trials, which take as long as the variant's other trials."""
    for tuned in plan.tuned:
        for row in rows:
            trials = [
                trial
                for trial in tuned.trials
                if trial.stage == row.stage and plan.trial_by_identity[trial.identity] is trial
            ]
            if trials and (row.setting, row.variant) == (tuned.setting, tuned.variant):
                pending = sum(states[trial.identity] not in FINISHED for trial in trials)
                setting = ", ".join(filter(None, (plan.setting(tuned.setting).label, TUNING)))
                yield row._replace(trials=len(trials), pending=pending, setting=setting)


def _curve_rows(plan: Plan, rows: Sequence[Row], states: Mapping[str, str]) -> Iterator[Row]:
    """Yield rows of the baseline at other budgets, whose training takes a multiple of its own time."""
    for curve in plan.curves:
        own = [row for row in rows if (row.setting, row.variant) == (curve.setting, BASELINE)]
        for factor, row in product(curve.trials, own):
            trials = [trial for trial in curve.trials[factor] if trial.stage == row.stage]
            if factor != OWN and trials:
                yield row._replace(
                    trials=len(trials),
                    pending=sum(states[trial.identity] not in FINISHED for trial in trials),
                    setting=trials[0].setting,
                    training_flops=row.training_flops * factor,
                    training_seconds=row.training_seconds * factor,
                )


def _row(
    setting: Setting,
    variant: str,
    stage: str,
    trials: Sequence[Trial],
    registry: Registry,
    states: Mapping[str, str],
    *,
    timed: bool,
) -> Row:
    spec = trials[0].spec
    sample = (_timed_sample if timed else _untimed_sample)(first_step(trials[0]).spec, registry)
    limit, steps = max_seconds(spec["trainer"]), spec["trainer"].get("max_steps")
    seconds = sample.step * (steps or DEFAULT_STEPS) if limit is None or steps else math.inf
    max_steps = None if limit and seconds > limit else steps or DEFAULT_STEPS
    matched = setting.matched.get(variant)
    match = setting.study.match
    return Row(
        variant,
        stage,
        len(trials),
        sum(states[trial.identity] not in FINISHED for trial in trials),
        sample.costs.parameters,
        sample.costs.flops_per_token,
        math.nan if max_steps is None else max_steps * spec["data"]["batch"] * sample.flops,
        sample.costs.cache_bytes_per_token(),
        sample.peak_bytes,
        sample.startup,
        min(seconds, limit or math.inf),
        sample.evaluation * _batches(spec) * spec["data"]["evaluations"],
        f"{match.by}={matched.value:g} ({matched.residual_text} {match.on})" if matched and match else "",
        sample.check_seconds,
        sample.faults,
        setting.name,
        sample.free_bytes,
    )


class Sample(NamedTuple):
    """Costs and timings from a few steps of a variant."""

    costs: ModelCost
    flops: float  # of training on one example
    startup: float  # seconds
    step: float
    evaluation: float  # of a batch
    peak_bytes: int
    free_bytes: int = 0
    check_seconds: float = 0.0
    faults: Mapping[str, str] = MappingProxyType({})


def _untimed_sample(spec: Mapping[str, Any], registry: Registry, shortage: Shortage | None = None) -> Sample:
    """Return the costs without timings, and the predicted memory."""
    needed, free = shortage or (step_memory(spec, registry).total, 0)
    model, length = meta_model(spec, registry), spec["dims"]["length"]
    frozen = untrained_parameters(model, spec.get("freeze"))
    flops = training_flops(model, length, frozen=frozen) if spec.get("teacher") is None else math.nan
    return Sample(model_cost(model, length), flops, math.nan, math.nan, math.nan, needed, free)


def _timed_sample(spec: Mapping[str, Any], registry: Registry) -> Sample:
    """Build a model, take steps, evaluate a batch, and throw the model away; only costs where it would not fit."""
    shortage = memory_shortage(spec, registry)
    if shortage is not None:
        return _untimed_sample(spec, registry, shortage)
    device = training_device(spec)
    reset_peak_memory(device)
    start = time.perf_counter()
    steps = TimedSteps(spec, registry, device)
    startup = time.perf_counter() - start
    if steps.compiled:  # each trial compiles again, with the code that the first time left in torch's cache
        steps.take(1)
        torch.compiler.reset()
        startup += _clocked(partial(steps.take, 1), device)
    seconds = sorted(_clocked(partial(steps.take, 1), device) for _ in range(TIMED))
    batch = steps.data.validation_batch(0)

    def evaluated() -> None:
        with evaluation_mode(steps.model):
            compute_metrics(steps.model, [batch])

    evaluation = min(_clocked(evaluated, device) for _ in range(2))
    peak = peak_memory(device)
    check_seconds, faults = _checked(steps, registry, device)
    model, length = steps.model, spec["dims"]["length"]
    teacher = None if model.teacher is None else model.teacher.assembled
    return Sample(
        model_cost(model.assembled, length),
        training_flops(model.assembled, length, teacher, untrained_parameters(model.assembled, spec.get("freeze"))),
        startup,
        seconds[TIMED // 2],
        evaluation,
        peak,
        check_seconds=check_seconds,
        faults=faults,
    )


def _checked(steps: TimedSteps, registry: Registry, device: torch.device) -> tuple[float, dict[str, str]]:
    """Check the properties of a model with components of plugins, as its trials do; return the time, and faults."""
    if not has_external_code(steps.model.spec, registry.index):
        return 0.0, {}
    checks, batch = StepChecks(steps.model), move_batch(steps.data.step(0), device)
    context = partial(steps.precision.context, device)
    seconds = _clocked(lambda: checks.check_properties(registry, steps.data, batch, context), device)
    seconds += _clocked(lambda: checks.check_trained(batch, context), device)
    with TemporaryDirectory() as folder:
        save_weights(weights := Path(folder) / "weights", steps.model, {})
        seconds += _clocked(lambda: checks.check_saved(steps.data, registry, weights), device)
    return seconds, dict(checks.properties or {})


def _clocked(run: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def _batches(spec: Mapping[str, Any]) -> int:
    """Return the maximum number of validation batches."""
    return -(-int(spec["data"]["validation"]) // int(spec["data"]["batch"]))
