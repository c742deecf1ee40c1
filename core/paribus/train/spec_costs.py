"""Costs of a spec: parameters, FLOPs and decoding state by counting, and training steps by timing.

A study can match the counted quantities; they are counted without allocating the model. Timed specs take turns in one
process on one thread.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import torch

from paribus.assembly.build import ModelParts
from paribus.assembly.components import Classes
from paribus.assembly.cost import constant_state, count_parameters, decoding_state, model_cost, training_flops
from paribus.assembly.devices import move_batch, synchronize, training_device
from paribus.assembly.freezing import untrained_parameters
from paribus.models.adapt import initial_model
from paribus.models.assemble import build_data, load_corpus, meta_model
from paribus.models.layers import configure_layers, is_compiled_in_part, report_compile_errors
from paribus.models.optimizer_schedule import build_optimizer
from paribus.models.precision import BF16_MIXED, FLOAT32, matmul_precision, training_precision
from paribus.registry import Registry
from paribus.storage.saved_model import read_model

Spec = Mapping[str, Any]

BYTES: Final = 4  # per element, in float32
TWIN: Final = "twin"  # a second model of the baseline, which shows the noise
ROUND_SECONDS: Final = 0.02  # for each spec
MIN_ROUNDS: Final = 8  # fewer give no 95 % interval
MAX_ROUNDS: Final = 200
TIMED_PRECISIONS: Final = (FLOAT32, BF16_MIXED)

QUANTITIES: Final[Mapping[str, Callable[[ModelParts, int], int]]] = {
    "params": lambda model, length: count_parameters(model.children()),
    "flops": lambda model, length: model_cost(model, length).flops,
    "kv": lambda model, length: BYTES * decoding_state(model, length),
    "state": lambda model, length: BYTES * constant_state(model),
}


def count_quantity(on: str, spec: Spec, classes: Classes) -> int:
    """Return parameters, FLOPs per example, bytes of decoding state, or those that do not grow with the length."""
    return QUANTITIES[on](meta_model(spec, classes), spec["dims"]["length"])


def flops_per_step(spec: Spec, classes: Classes) -> int:
    """Return the FLOPs of one step of a resolved spec, including forward passes of its teacher."""
    teacher_node = spec.get("teacher") or {}
    teacher = meta_model(read_model(teacher_node["name"]).spec, classes) if "name" in teacher_node else None
    examples: int = spec["data"]["batch"]
    model = meta_model(spec, classes)
    frozen = untrained_parameters(model, spec.get("freeze"))
    return examples * training_flops(model, spec["dims"]["length"], teacher, frozen)


# -- timing ---------------------------------------------------------------------------------------------------------


@final
class TimedSteps:
    """Untrained model whose training steps can be taken one by one."""

    def __init__(self, spec: Spec, classes: Registry, device: torch.device) -> None:
        text = load_corpus(spec, classes)
        self.model = initial_model(spec, classes, text, measured=False)[0].to(device).train()
        configure_layers(self.model, spec["trainer"], device)
        self.compiled = is_compiled_in_part(self.model)
        self.data = build_data(spec, classes, text)
        self.precision = training_precision(spec["trainer"]) or FLOAT32
        self.optimizer = build_optimizer(self.model.optimizer, self.model)
        self.taken = 0

    @property
    def tokens(self) -> int:
        """Number of tokens in a step."""
        return int(self.data.batch_size * self.model.spec["dims"]["length"])

    def take(self, count: int) -> None:
        for _ in range(count):
            batch = move_batch(self.data.step(self.taken), self.model.device)
            with report_compile_errors(), matmul_precision(self.model.spec["trainer"]):
                with self.precision.context(self.model.device):
                    loss = self.model.loss(batch)
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.taken += 1


def untimed_reason(spec: Spec) -> str:
    """Return the reason why these steps would differ from those of the spec's trials; empty if they are the same."""
    if training_precision(spec["trainer"]) in TIMED_PRECISIONS:
        return ""
    return f"its precision, {spec['trainer']['precision']}, is implemented by Lightning"


def time_rounds(
    contestants: Mapping[str, TimedSteps],
    seconds: float,
    device: torch.device,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, list[float]]:
    """Return the seconds per step of each spec, round by round, until `should_stop`.

    The order rotates from round to round, and a round has enough steps of each spec to be timed."""
    clock = _clock(device)
    seconds_per_step: dict[str, list[float]] = {name: [] for name in contestants}
    single = {name: _timed(steps, 1, clock) for name, steps in contestants.items()}
    single = {name: _timed(steps, 1, clock) for name, steps in contestants.items()}  # the first step allocates
    count = max(1, math.ceil(ROUND_SECONDS / max(single.values())))
    names = list(contestants)
    round_count = _round_count(seconds, count * sum(single.values()))
    for number in range(round_count):
        if should_stop():
            break
        offset = number % len(names)
        for name in names[offset:] + names[:offset]:
            seconds_per_step[name].append(_timed(contestants[name], count, clock) / count)
    complete = min(map(len, seconds_per_step.values()))
    return {name: times[:complete] for name, times in seconds_per_step.items()}


def _round_count(seconds: float, round_seconds: float) -> int:
    return min(MAX_ROUNDS, max(MIN_ROUNDS, int(seconds / round_seconds)))


def _clock(device: torch.device) -> Callable[[], float]:
    if device.type == "cpu":
        return time.process_time

    def synchronized() -> float:
        synchronize(device)
        return time.perf_counter()

    return synchronized


def _timed(steps: TimedSteps, count: int, clock: Callable[[], float]) -> float:
    gc_enabled = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        steps.take(count)
        return clock() - start
    finally:
        if gc_enabled:
            gc.enable()


def time_groups(
    specs: Mapping[str, Spec],
    groups: Sequence[Sequence[str]],
    seconds: float,
    classes: Registry,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Return the rounds of each group of specs, as a study stores them. The first spec of a group is its baseline.

    `seconds` is the time for each spec. A twin of the baseline is timed as well.
    """
    device = training_device(specs[groups[0][0]])
    results: list[dict[str, Any]] = []
    tokens: dict[str, int] = {}
    for group in groups:
        contestants = {name: TimedSteps(specs[name], classes, device) for name in group}
        contestants[TWIN] = TimedSteps(specs[group[0]], classes, device)
        tokens |= {name: steps.tokens for name, steps in contestants.items() if name != TWIN}
        times = time_rounds(contestants, seconds * len(contestants), device, should_stop)
        results.append({"baseline": group[0], "rounds": times})
        contestants.clear()
        gc.collect()  # models may refer to themselves
    return {"groups": results, "tokens": tokens, "clock": "cpu" if device.type == "cpu" else "wall"}
