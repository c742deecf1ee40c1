"""Lightning callback that writes losses, evaluations and the spec of a trial to loggers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, final

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger

from paribus.specs.tree import flatten
from paribus.storage.atomic import parse_number
from paribus.train.trial_callback import TrialCallback
from paribus.train.trial_options import LoggerRun, make_logger

WRITE_SECONDS: Final = 1.0  # seconds between entries


@final
class LoggerCallback(Callback):
    """Logger callback of a trial; a resumed trial writes all entries again.

    A logger that fails is dropped with a message: it neither ends the trial nor changes its record. The state of
    torch's random generators is restored.
    """

    def __init__(
        self,
        keeper: TrialCallback,
        spec: Mapping[str, Any],
        nodes: Sequence[Mapping[str, Any]],
        run: LoggerRun,
        note: Callable[[str], None],
    ) -> None:
        self._keeper = keeper
        self._spec = spec
        self._nodes = nodes
        self._run = run
        self._note = note
        self._loggers: dict[str, Logger] = {}
        self._losses = 0  # number of losses that were written
        self._points = 0
        self._last = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for node in self._nodes:
            self._guarded(node["name"], partial(self._begin, node))

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        points = len(self._keeper.curve)
        if points > self._points or time.monotonic() - self._last >= WRITE_SECONDS:
            self._write()

    def close(self, status: str) -> None:
        """Write the remaining entries and finalize the loggers: status `success`, `failed` or `aborted`."""
        self._write()
        for name, logger in list(self._loggers.items()):
            status_name = "KILLED" if name == "mlflow" and status == "aborted" else status
            self._guarded(name, partial(logger.finalize, status_name))

    def _begin(self, node: Mapping[str, Any]) -> None:
        logger = make_logger(node, self._run)
        logger.log_hyperparams(
            {"variant": self._run.variant, "identity": self._run.identity, **dict(flatten(self._spec))}
        )
        self._loggers[node["name"]] = logger

    def _write(self) -> None:
        losses, curve = self._keeper.losses, self._keeper.curve
        entries = [({"train/loss": loss}, step) for step, loss in enumerate(losses[self._losses :], self._losses + 1)]
        entries += [
            ({key: parse_number(value) for key, value in point.items() if key != "step"}, point["step"])
            for point in curve[self._points :]
        ]
        self._losses, self._points, self._last = len(losses), len(curve), time.monotonic()
        entries.sort(key=lambda entry: entry[1])
        for name, logger in list(self._loggers.items()):
            self._guarded(name, partial(_log_entries, logger, entries))

    def _guarded(self, name: str, action: Callable[[], object]) -> None:
        try:
            with torch.random.fork_rng(devices=[]):
                action()
        except Exception as error:
            self._loggers.pop(name, None)
            first_line = next(iter(str(error).splitlines()), "")
            self._note(
                f"the logger `{name}` fails ({type(error).__name__}: {first_line}); the trial goes on without it"
            )


def _log_entries(logger: Logger, entries: Sequence[tuple[dict[str, float], int]]) -> None:
    for metrics, step in entries:
        logger.log_metrics(metrics, step)
    logger.save()
