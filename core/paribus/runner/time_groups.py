"""What a timing pass measures: training steps and inference of several specs, which take turns with their baseline."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from paribus.assembly.devices import training_device
from paribus.inference.timed_inference import BATCHES, TimedInference, can_generate
from paribus.planning.paired_ratio import FORWARD, GENERATION, TWIN
from paribus.registry import Registry
from paribus.train.timed_steps import TimedSteps, time_rounds

Spec = Mapping[str, Any]
Rounds = Mapping[str, list[float]]  # contestant -> seconds of each round

INFERENCE_SHARE: Final = 0.25  # of the time of the training steps, for each size of a batch


def time_groups(
    specs: Mapping[str, Spec],
    groups: Sequence[Sequence[str]],
    seconds: float,
    classes: Registry,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    inference: bool = False,
) -> dict[str, Any]:
    """Return the rounds of each group of specs, as a study stores them. The first spec of a group is its baseline.

    `seconds` is the time for the training steps of each spec. A twin of the baseline is timed as well, which shows the
    noise. With `inference`, each size of `BATCHES` has a document of its own.
    """
    device = training_device(specs[groups[0][0]])
    clock = "cpu" if device.type == "cpu" else "wall"
    passes: list[dict[str, Any]] = [
        {"batch": size, "groups": [], "tokens": {}, "bytes": {}} for size in BATCHES if inference
    ]
    training: dict[str, Any] = {"groups": [], "tokens": {}}
    for group in groups:
        contestants = {name: TimedSteps(specs[name], classes, device) for name in group}
        contestants[TWIN] = TimedSteps(specs[group[0]], classes, device)
        training["tokens"] |= {name: steps.tokens for name, steps in contestants.items() if name != TWIN}
        times = time_rounds(contestants, seconds * len(contestants), device, should_stop)
        training["groups"].append({"baseline": group[0], "rounds": times})
        if passes:
            limit = INFERENCE_SHARE * seconds * len(contestants)
            results = _time_inference(contestants, limit, device, should_stop)
            for document, result in zip(passes, results, strict=True):
                document["tokens"] |= result.pop("tokens")
                document["bytes"] |= result.pop("bytes")
                document["groups"].append({"baseline": group[0], **result})
        contestants.clear()
        gc.collect()  # models may refer to themselves
    return {**training, "clock": clock, **({"inference": passes} if passes else {})}


def _time_inference(
    steps: Mapping[str, TimedSteps], seconds: float, device: torch.device, should_stop: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """Yield the rounds of each size of a batch; all contestants generate, or none of them."""
    examples = {name: contestant.data.step(0) for name, contestant in steps.items()}
    generates = all(can_generate(contestant.model, examples[name]) for name, contestant in steps.items())
    for size in BATCHES:
        contestants = {
            name: TimedInference(contestant.model, examples[name], size, generates=generates)
            for name, contestant in steps.items()
        }
        own = {name: contestant for name, contestant in contestants.items() if name != TWIN}
        yield {
            "task": GENERATION if generates else FORWARD,
            "tokens": {name: contestant.tokens for name, contestant in own.items()},
            "bytes": {name: contestant.peak_bytes() for name, contestant in own.items()},
            "rounds": time_rounds(contestants, seconds, device, should_stop),
        }
