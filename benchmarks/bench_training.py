"""P6: overhead of a Lightning step over a hand-written training loop, and calls of plugin libraries within a step."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, final

import pytest
import torch
from benchmarks.claims import Claim, counted
from benchmarks.paired import Estimate, difference, estimate, ratio
from lightning import Callback, LightningModule, Trainer
from omegaconf import OmegaConf
from torch import Tensor
from torch.utils.data import DataLoader

import paribus
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial

LIMIT = 400.0  # microseconds a step
STEPS = 40
SETTLED = 4  # first steps, which are not counted
WARM = 1  # warm-up rounds, which are not counted
# A model so small that an overhead of a fraction of a millisecond is measurable.
SPEC = ("encoder-tiny", "dims.width=16", "dims.length=16", "data.batch=4", f"trainer.max_steps={STEPS}")
QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "limit_val_batches": 0,
    "max_epochs": 1,
    "max_steps": STEPS,
}
WATCHED = ("pluggy", "omegaconf")

Pairs = list[tuple[float, float]]  # CPU seconds of a step, and of the loop's step right after it


@final
class PlainLoop:
    """Plain PyTorch training loop with the same optimizer and schedule."""

    def __init__(self) -> None:
        self.model, self.data = paribus.assemble(paribus.spec(*SPEC)), paribus.data(paribus.spec(*SPEC))
        configured: Any = self.model.configure_optimizers()
        self.optimizer, self.rates = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
        self.index = 0

    def step(self) -> None:
        loss = self.model.loss(self.data.step(self.index))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.rates.step()
        self.index += 1


@final
class Interleaved(Callback):
    """Callback that runs a step of the plain loop after each step, so that both are timed within a few milliseconds."""

    def __init__(self) -> None:
        self.loop = PlainLoop()
        self.pairs: Pairs = []
        self.left: float | None = None

    def record_pair(self) -> None:
        came = time.process_time()
        self.loop.step()
        ended = time.process_time()
        if self.left is not None:
            self.pairs.append((came - self.left, ended - came))
        self.left = time.process_time()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.record_pair()


@final
class StepLogger(Callback):
    """Callback that logs at each step, as most training scripts do; known to exceed the limit."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        for name in ("loss", "copy"):
            pl_module.log(name, outputs["loss"], on_step=True, on_epoch=True)


@final
class Plain(LightningModule):
    """Minimal LightningModule with the same model and no hook, which measures the share of Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.model = paribus.assemble(paribus.spec(*SPEC))
        self.data = paribus.data(paribus.spec(*SPEC))

    def training_step(self, step: Tensor, batch_idx: int) -> Tensor:
        return self.model.loss(self.data.step(batch_idx))

    def configure_optimizers(self) -> Any:
        return self.model.configure_optimizers()


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


def test_step(bench: Any, registry: Registry, tmp_path: Path) -> None:
    pairs: dict[str, list[Pairs]] = {}

    def recording(name: str, run: Callable[[], Pairs]) -> Callable[[], None]:
        return lambda: pairs.setdefault(name, []).append(run())

    runs = {
        "twin": loop_pairs,
        "Plain": module_pairs,
        "Trainer": trainer_pairs,
        "trial": lambda: trial_pairs(registry, tmp_path / str(len(pairs.get("trial", [])))),
        "contrast": lambda: trainer_pairs(StepLogger()),
    }
    bench.rounds({name: recording(name, run) for name, run in runs.items()}, minimum=6, maximum=40, warmup=WARM)
    differences: dict[str, Estimate] = {}
    ratios: dict[str, list[float]] = {}  # of a step to the loop's, one for each round
    for name, rounds in pairs.items():
        steps = [pair for round_pairs in rounds[WARM:] for pair in settled(round_pairs)]
        bench.save(
            {
                f"step of {name}": [step for step, _ in steps],
                f"loop beside {name}": [loop_seconds for _, loop_seconds in steps],
            }
        )
        differences[name] = difference([step for step, _ in steps], [loop_seconds for _, loop_seconds in steps]).times(
            1e6
        )
        ratios[name] = [median(step / loop for step, loop in settled(round_pairs)) for round_pairs in rounds[WARM:]]
    bench.claim(
        Claim(
            "P6",
            "a trial's step - a loop's",
            differences["trial"],
            "µs",
            limit=LIMIT,
            twin=differences["twin"],
            contrast=differences["contrast"],
            nothing=0.0,
        )
    )
    bench.claim(
        Claim(
            "P6",
            "a trial's step / that of the least Lightning module",
            ratio(ratios["trial"], ratios["Plain"]),
            limit=1.0,
            contrast=ratio(ratios["contrast"], ratios["Plain"]),
            note=f"the loop beside itself: {estimate(ratios['twin'])}",
        )
    )
    bench.claim(Claim("", "a Trainer's step - a loop's", differences["Trainer"], "µs"))
    bench.claim(Claim("", "the least of Lightning modules, its step - a loop's", differences["Plain"], "µs"))


def test_calls_within_a_step(bench: Any, registry: Registry, tmp_path: Path) -> None:
    calls = dict.fromkeys(WATCHED, 0)
    planted = dict.fromkeys(WATCHED, 0)
    with counting(planted):
        registry.hook.trial_started(spec={}, model=None, trainer=None)
        assert OmegaConf.create({"lr": 1.0}).lr == 1.0
    bench.once(lambda: trial(registry, tmp_path, on_step=CallCounter(calls, 5, 9)))
    for name in WATCHED:
        remark = f"{planted[name]} of {planted[name]} planted calls are counted"
        assert planted[name], f"planted calls of {name} are not counted, so a count of 0 would mean nothing"
        bench.claim(counted("P6", f"calls of {name} within four steps of a trial", calls[name], remark))


def loop_pairs() -> Pairs:
    """Time the plain loop against itself."""
    loop, beside = PlainLoop(), Interleaved()
    for _ in range(STEPS):
        loop.step()
        beside.record_pair()
    return beside.pairs


def trainer_pairs(*callbacks: Callback) -> Pairs:
    """Time a plain Trainer, with its optional features turned off."""
    beside = Interleaved()
    model, data = paribus.assemble(paribus.spec(*SPEC)), paribus.data(paribus.spec(*SPEC))
    Trainer(**QUIET, callbacks=[*callbacks, beside]).fit(model, data)  # type: ignore[arg-type]  # a mapping of its arguments
    return beside.pairs


def module_pairs() -> Pairs:
    beside = Interleaved()
    numbers = DataLoader(torch.arange(STEPS), batch_size=None)  # type: ignore[arg-type,var-annotated]  # a tensor has a length and items
    Trainer(**QUIET, callbacks=[beside]).fit(Plain(), numbers)  # type: ignore[arg-type]  # a mapping of its arguments
    return beside.pairs


def trial_pairs(registry: Registry, folder: Path) -> Pairs:
    """Time a trial as `paribus run` trains it: with digests of every batch, and all losses."""
    beside = Interleaved()
    trial(registry, folder, lambda step, loss: beside.record_pair())
    return beside.pairs


def trial(registry: Registry, folder: Path, on_step: Callable[[int, float], None]) -> None:
    spec = resolved(*SPEC, registry=registry)
    folder.mkdir(parents=True, exist_ok=True)
    run_trial(spec, registry, TrialContext("bench", folder, on_step=on_step, hooks=registry.hook))


def settled(pairs: Pairs) -> Pairs:
    """Return the pairs without the first steps, and without those after an evaluation of a trial."""
    return [pair for step, pair in enumerate(pairs, start=1) if step >= SETTLED and step % (STEPS // 4)]


@final
class CallCounter:
    """Step callback that counts calls from the end of one step to the end of another."""

    def __init__(self, calls: dict[str, int], start_step: int, end_step: int) -> None:
        self.calls, self.first, self.last = calls, start_step, end_step

    def __call__(self, step: int, loss: float) -> None:
        if step == self.first:
            sys.setprofile(counter(self.calls))
        if step == self.last:
            sys.setprofile(None)


@contextmanager
def counting(calls: dict[str, int]) -> Iterator[None]:
    sys.setprofile(counter(calls))
    try:
        yield
    finally:
        sys.setprofile(None)


def counter(calls: dict[str, int]) -> Callable[[FrameType, str, object], None]:
    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            package = frame.f_globals.get("__name__", "").partition(".")[0]
            if package in calls:
                calls[package] += 1

    return count
