"""P6: what a step costs more under Lightning than in a loop written by hand, and who is called within it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, final

import pytest
import torch
from benchmarks.claims import Claim, counted
from benchmarks.paired import Estimate, difference
from lightning import Callback, LightningModule, Trainer
from omegaconf import OmegaConf
from torch import Tensor
from torch.utils.data import DataLoader

import paribus
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial

LIMIT = 350.0  # microseconds a step
STEPS = 40
SETTLED = 4  # steps that are left out at the beginning
WARM = 1  # rounds that are left out
# A model so small that a fraction of a millisecond is seen beside it.
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

Pairs = list[tuple[float, float]]  # CPU seconds of a step, and of the loop's step right behind it


@final
class ByHand:
    """The loop that everybody writes, with the same optimizer and schedule."""

    def __init__(self) -> None:
        self.model, self.data = paribus.assemble(paribus.spec(*SPEC)), paribus.data(paribus.spec(*SPEC))
        configured: Any = self.model.configure_optimizers()
        self.optimizer, self.rates = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
        self.at = 0

    def step(self) -> None:
        loss = self.model.loss(self.data.step(self.at))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.rates.step()
        self.at += 1


@final
class Beside(Callback):
    """Takes a step of the loop behind each step of whatever calls it: both within the same few milliseconds."""

    def __init__(self) -> None:
        self.loop = ByHand()
        self.pairs: Pairs = []
        self.left: float | None = None

    def stepped(self) -> None:
        came = time.process_time()
        self.loop.step()
        ended = time.process_time()
        if self.left is not None:
            self.pairs.append((came - self.left, ended - came))
        self.left = time.process_time()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self.stepped()


@final
class Chatty(Callback):
    """Logs at each step, as most training scripts do: known to cost more than what is allowed."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        for name in ("loss", "copy"):
            pl_module.log(name, outputs["loss"], on_step=True, on_epoch=True)


@final
class Plain(LightningModule):
    """The least that Lightning can be given, which tells its own share: the same model, and no hook."""

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

    def kept(name: str, run: Callable[[], Pairs]) -> Callable[[], None]:
        return lambda: pairs.setdefault(name, []).append(run())

    runs = {
        "twin": looped,
        "Plain": plain,
        "Trainer": fitted,
        "trial": lambda: besides_a_trial(registry, tmp_path / str(len(pairs.get("trial", [])))),
        "contrast": lambda: fitted(Chatty()),
    }
    bench.rounds({name: kept(name, run) for name, run in runs.items()}, least=6, most=40, warm=WARM)
    over: dict[str, Estimate] = {}
    for name, found in pairs.items():
        steps = [pair for each in found[WARM:] for pair in settled(each)]
        bench.save({f"step of {name}": [step for step, _ in steps], f"loop beside {name}": [by for _, by in steps]})
        over[name] = difference([step for step, _ in steps], [by for _, by in steps]).times(1e6)
    for name, what in (("Trainer", "a Trainer's step - a loop's"), ("trial", "a trial's step - a loop's")):
        bench.claim(
            Claim(
                "P6",
                what,
                over[name],
                "µs",
                limit=LIMIT,
                twin=over["twin"],
                contrast=over["contrast"],
                nothing=0.0,
            )
        )
    bench.claim(Claim("", "the least of Lightning modules, its step - a loop's", over["Plain"], "µs"))


def test_calls_within_a_step(bench: Any, registry: Registry, tmp_path: Path) -> None:
    calls = dict.fromkeys(WATCHED, 0)
    planted = dict.fromkeys(WATCHED, 0)
    with counting(planted):
        registry.hook.trial_started(spec={}, model=None, trainer=None)
        assert OmegaConf.create({"lr": 1.0}).lr == 1.0
    bench.once(lambda: trial(registry, tmp_path, tell=Between(calls, 5, 9)))
    for name in WATCHED:
        note = f"of {planted[name]} planted ones, {planted[name]} are seen"
        assert planted[name], f"calls of {name} are not seen, so that none were counted would mean nothing"
        bench.claim(counted("P6", f"calls of {name} within four steps of a trial", calls[name], note))


def looped() -> Pairs:
    """The loop against itself."""
    loop, beside = ByHand(), Beside()
    for _ in range(STEPS):
        loop.step()
        beside.stepped()
    return beside.pairs


def fitted(*callbacks: Callback) -> Pairs:
    """Anybody's Trainer, with what costs time turned off."""
    beside = Beside()
    model, data = paribus.assemble(paribus.spec(*SPEC)), paribus.data(paribus.spec(*SPEC))
    Trainer(**QUIET, callbacks=[*callbacks, beside]).fit(model, data)  # type: ignore[arg-type]  # a mapping of its arguments
    return beside.pairs


def plain() -> Pairs:
    beside = Beside()
    numbers = DataLoader(torch.arange(STEPS), batch_size=None)  # type: ignore[arg-type,var-annotated]  # a tensor has a length and items
    Trainer(**QUIET, callbacks=[beside]).fit(Plain(), numbers)  # type: ignore[arg-type]  # a mapping of its arguments
    return beside.pairs


def besides_a_trial(registry: Registry, folder: Path) -> Pairs:
    """As `paribus run` does it: with digests of every batch, and every loss kept."""
    beside = Beside()
    trial(registry, folder, lambda step, loss: beside.stepped())
    return beside.pairs


def trial(registry: Registry, folder: Path, tell: Callable[[int, float], None]) -> None:
    spec = resolved(*SPEC, registry=registry)
    folder.mkdir(parents=True, exist_ok=True)
    run_trial(spec, registry, TrialContext("bench", folder, on_step=tell, hooks=registry.hook))


def settled(pairs: Pairs) -> Pairs:
    """Without the steps at the beginning, and those behind one of a trial's evaluations."""
    return [pair for at, pair in enumerate(pairs, start=1) if at >= SETTLED and at % (STEPS // 4)]


@final
class Between:
    """Counts calls from the end of one step to the end of another; it is told of every step."""

    def __init__(self, calls: dict[str, int], first: int, last: int) -> None:
        self.calls, self.first, self.last = calls, first, last

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
