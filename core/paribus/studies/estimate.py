"""What a study will take, before any of it runs: counted on the meta device, and five steps of each variant timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from paribus.assembly.cost import costs
from paribus.registry import Registry
from paribus.specs.lasting import lasting
from paribus.studies.plan import Plan
from paribus.studies.settings import TUNING, Setting
from paribus.studies.store import FINISHED, Trial
from paribus.train.assemble import assembled, data_of, text_of
from paribus.train.trial import DEFAULT_STEPS

TIMED: Final = 5


class Row(NamedTuple):
    """One variant of a plan, at one stage; trials that an earlier variant has as well are that one's."""

    variant: str
    stage: str
    trials: int
    left: int
    parameters: int
    flops_per_token: float
    seconds_a_trial: float
    matched: str
    setting: str = ""  # of a study with several; `tuning` of the trials that only choose

    @property
    def seconds(self) -> float:
        return self.left * self.seconds_a_trial


def estimate(plan: Plan, registry: Registry, states: Mapping[str, str]) -> list[Row]:
    """A row for each variant. It trains copies that are thrown away, on one thread, as trials do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [
            _row(setting, variant.name, stage.name, trials, registry, states)
            for setting in plan.settings
            for stage in plan.study.stages
            for variant in setting.variants
            if (trials := plan.own(variant.name, stage.name, setting.name))
        ]
        return [*rows, *_tuning(plan, rows, states)]
    finally:
        torch.set_num_threads(threads)


def _tuning(plan: Plan, rows: Sequence[Row], states: Mapping[str, str]) -> Iterator[Row]:
    """The trials that only choose a value: each takes what the variant's own takes."""
    for tuned in plan.tuned:
        for row in rows:
            trials = [
                trial for trial in tuned.trials if trial.stage == row.stage and plan.known[trial.identity] is trial
            ]
            if trials and (row.setting, row.variant) == (tuned.setting, tuned.variant):
                left = sum(states[trial.identity] not in FINISHED for trial in trials)
                setting = ", ".join(filter(None, (plan.setting(tuned.setting).before, TUNING)))
                yield row._replace(trials=len(trials), left=left, setting=setting)


def _row(
    setting: Setting,
    variant: str,
    stage: str,
    trials: Sequence[Trial],
    registry: Registry,
    states: Mapping[str, str],
) -> Row:
    spec = trials[0].spec
    seconds, parameters, flops = _timed(spec, registry)
    matched = setting.matched.get(variant)
    match = setting.study.match
    return Row(
        variant,
        stage,
        len(trials),
        sum(states[trial.identity] not in FINISHED for trial in trials),
        parameters,
        flops,
        lasting(spec["trainer"]) or seconds * (spec["trainer"].get("max_steps") or DEFAULT_STEPS),
        f"{match.by}={matched.value:g} ({matched.residual:+.2%} {match.on})" if matched and match else "",
        setting.name,
    )


def _timed(spec: Mapping[str, Any], registry: Registry) -> tuple[float, int, float]:
    """Seconds a step, parameters, operations a token."""
    text = text_of(spec, registry)
    model, data = assembled(spec, registry, text.vocabulary), data_of(spec, registry, text)
    model.steps = spec["trainer"].get("max_steps") or DEFAULT_STEPS
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = model.optimizer.build(matrices, others)
    taken: list[float] = []
    for step in range(TIMED):
        began = time.perf_counter()
        model.loss(data.step(step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append(time.perf_counter() - began)
    cost = costs(model.assembled, spec["dims"]["length"])
    return statistics.median(taken), cost.parameters, cost.flops_per_token
