"""Training steps of an untrained model that can be timed, and the timing of several contestants in turns.

Timed contestants take turns in one process on one thread.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, final

import torch

from paribus.assembly.devices import move_batch, synchronize
from paribus.models.adapt import initial_model
from paribus.models.assemble import build_data, load_corpus
from paribus.models.layers import configure_layers, is_compiled_in_part, report_compile_errors
from paribus.models.optimizer_schedule import build_optimizer
from paribus.models.precision import BF16_MIXED, FLOAT32, matmul_precision, training_precision
from paribus.registry import Registry

Spec = Mapping[str, Any]

ROUND_SECONDS: Final = 0.02  # for each contestant
MIN_ROUNDS: Final = 8  # fewer give no 95 % interval
MAX_ROUNDS: Final = 200
TIMED_PRECISIONS: Final = (FLOAT32, BF16_MIXED)


class Contestant(Protocol):
    """Work that can be done several times in a row."""

    def take(self, count: int) -> None:
        """Do the work `count` times."""


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
    contestants: Mapping[str, Contestant],
    seconds: float,
    device: torch.device,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, list[float]]:
    """Return the seconds of one piece of work of each contestant, round by round, until `should_stop`.

    The order rotates from round to round, and a round has enough of each contestant's work to be timed."""
    clock = _clock(device)
    seconds_per_step: dict[str, list[float]] = {name: [] for name in contestants}
    single = {name: _timed(contestant, 1, clock) for name, contestant in contestants.items()}
    single = {name: _timed(contestant, 1, clock) for name, contestant in contestants.items()}  # the first allocates
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


def _timed(contestant: Contestant, count: int, clock: Callable[[], float]) -> float:
    gc_enabled = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        contestant.take(count)
        return clock() - start
    finally:
        if gc_enabled:
            gc.enable()
