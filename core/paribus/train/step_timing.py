"""The training steps of several specs in turns, in one process on one thread: how long each takes, round by round."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, final

import torch

from paribus.registry import Registry
from paribus.train.adapt import initial_model
from paribus.train.assemble import build_data, load_corpus

TWIN: Final = "twin"  # the baseline once more, as a model of its own: what noise comes to
ROUND_SECONDS: Final = 0.02  # of one contestant
MIN_ROUNDS: Final = 8  # fewer have no interval of 95 %
MAX_ROUNDS: Final = 200
FULL_PRECISION: Final = (None, 32, "32", "32-true")  # precisions that are what torch does by itself
MIXED_PRECISION: Final = ("bf16-mixed",)

Spec = Mapping[str, Any]


@final
class TimedSteps:
    """A model in training, as it begins, whose steps can be taken one by one; nothing of it is kept."""

    def __init__(self, spec: Spec, classes: Registry, device: torch.device) -> None:
        text = load_corpus(spec, classes)
        self.model = initial_model(spec, classes, text, measured=False)[0].to(device).train()
        self.data = build_data(spec, classes, text)
        self.mixed = (spec["trainer"] or {}).get("precision") in MIXED_PRECISION
        learned = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in learned if parameter.ndim >= 2]
        self.optimizer = self.model.optimizer.build(matrices, [each for each in learned if each.ndim < 2])
        self.taken = 0

    @property
    def tokens(self) -> int:
        """Of one step."""
        return int(self.data.batch_size * self.model.spec["dims"]["length"])

    def take(self, count: int) -> None:
        for _ in range(count):
            batch = self.model.transfer_batch_to_device(self.data.step(self.taken), self.model.device, 0)
            with self._precision():
                loss = self.model.loss(batch)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.taken += 1

    def _precision(self) -> AbstractContextManager[Any]:
        if not self.mixed:
            return nullcontext()
        return torch.autocast(self.model.device.type, torch.bfloat16)


def untimed_reason(spec: Spec) -> str:
    """Why steps that are taken here would not be those of the spec's trials; nothing where they are."""
    precision = (spec["trainer"] or {}).get("precision")
    return (
        ""
        if precision in (*FULL_PRECISION, *MIXED_PRECISION)
        else f"its precision, {precision}, is Lightning's own affair"
    )


def training_device(spec: Spec) -> torch.device:
    asked = (spec["trainer"] or {}).get("accelerator", "auto")
    return torch.device("cuda" if asked in ("auto", "gpu", "cuda") and torch.cuda.is_available() else "cpu")


def time_rounds(
    contestants: Mapping[str, TimedSteps],
    seconds: float,
    device: torch.device,
    asked: Callable[[], bool] = lambda: False,
) -> dict[str, list[float]]:
    """Seconds a step of each contestant, round after round, in an order that is rotated; no round where it is `asked`
    to stop. A round has as many steps of each as take a moment."""
    clock = _clock(device)
    found: dict[str, list[float]] = {name: [] for name in contestants}
    once = {name: _timed(each, 1, clock) for name, each in contestants.items()}
    once = {name: _timed(each, 1, clock) for name, each in contestants.items()}  # the first one allocates
    count = max(1, math.ceil(ROUND_SECONDS / max(once.values())))
    names = list(contestants)
    most = _many(seconds, count * sum(once.values()))
    for number in range(most):
        if asked():
            break
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(_timed(contestants[name], count, clock) / count)
    return {name: times[: min(map(len, found.values()))] for name, times in found.items()}


def _many(seconds: float, a_round: float) -> int:
    return min(MAX_ROUNDS, max(MIN_ROUNDS, int(seconds / a_round)))


def _clock(device: torch.device) -> Callable[[], float]:
    if device.type == "cpu":
        return time.process_time

    def waited() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return waited


def _timed(steps: TimedSteps, count: int, clock: Callable[[], float]) -> float:
    collects = gc.isenabled()
    gc.disable()
    try:
        began = clock()
        steps.take(count)
        return clock() - began
    finally:
        if collects:
            gc.enable()


def time_groups(
    specs: Mapping[str, Spec],
    groups: Sequence[Sequence[str]],
    seconds: float,
    classes: Registry,
    asked: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """What a study keeps of it: for each group, whose first is its baseline, the rounds of all and of the twin.

    `seconds` is for each contestant.
    """
    device = training_device(specs[groups[0][0]])
    told: list[dict[str, Any]] = []
    tokens: dict[str, int] = {}
    for group in groups:
        contestants = {name: TimedSteps(specs[name], classes, device) for name in group}
        contestants[TWIN] = TimedSteps(specs[group[0]], classes, device)
        tokens |= {name: each.tokens for name, each in contestants.items() if name != TWIN}
        found = time_rounds(contestants, seconds * len(contestants), device, asked)
        told.append({"baseline": group[0], "rounds": found})
    return {"groups": told, "tokens": tokens, "clock": "cpu" if device.type == "cpu" else "wall"}
