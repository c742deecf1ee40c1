"""Options of a trial that do not change its result: checkpoints and Lightning loggers. Imported without torch.

Plugins add other loggers by `configure_trainer`.
"""

from __future__ import annotations

import fcntl
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


NAME_LENGTH: Final = 80  # letters of a folder's name


@final
@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """Options of a trial, passed from the options of a run to the training loop as JSON."""

    checkpoint_seconds: float = 30.0
    checkpoint_steps: int | None = None  # checkpoint every so many steps instead; for tests
    stop_at_step: int | None = None  # interrupt the trial at this step, with a checkpoint; for a replay
    contended: bool = False  # other trials share the machine, so that measured speeds are rough
    loggers: tuple[Mapping[str, Any], ...] = ()  # Lightning loggers, by name and options

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TrialOptions:
        return cls(**{**document, "loggers": tuple(document["loggers"])})


@final
@dataclass(frozen=True)
class LoggerRun:
    """Name of a trial for loggers, and the folder of their files."""

    study: str
    variant: str
    seed: int
    identity: str
    folder: Path  # of all logs of the study

    @property
    def name(self) -> str:
        """Name with characters that every file system allows; the identity makes it unique."""
        plain = re.sub(r"[^A-Za-z0-9._=-]+", "-", self.variant).strip("-.")[:NAME_LENGTH]
        return f"{plain}-seed-{self.seed}-{self.identity[:6]}"

    def clean_folder(self, logger: str) -> Path:
        """Return the folder of a logger, without files of an earlier attempt, whose entries are written again."""
        shutil.rmtree(self.folder / logger / self.name, ignore_errors=True)
        return self.folder / logger


def _csv(run: LoggerRun, options: Mapping[str, Any]) -> Logger:
    from lightning.pytorch.loggers import CSVLogger

    return CSVLogger(run.clean_folder("csv"), name=run.name, version="", **options)


def _tensorboard(run: LoggerRun, options: Mapping[str, Any]) -> Logger:
    from lightning.pytorch.loggers import TensorBoardLogger

    return TensorBoardLogger(
        run.clean_folder("tensorboard"), name=run.name, version="", default_hp_metric=False, **options
    )


def _mlflow(run: LoggerRun, options: Mapping[str, Any]) -> Logger:
    from lightning.pytorch.loggers import MLFlowLogger

    database = run.folder / "mlflow" / "mlflow.db"
    database.parent.mkdir(parents=True, exist_ok=True)
    defaults = {"experiment_name": run.study, "tracking_uri": f"sqlite:///{database.absolute()}"}
    with (database.parent / "lock").open("wb") as lock:  # concurrent trials must not create the tables twice
        with suppress(OSError):  # some network folders have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        logger = MLFlowLogger(run_name=run.name, **{**defaults, **options})
        _ = logger.experiment
    return logger


def _wandb(run: LoggerRun, options: Mapping[str, Any]) -> Logger:
    from lightning.pytorch.loggers import WandbLogger

    folder = run.clean_folder("wandb") / run.name
    folder.mkdir(parents=True, exist_ok=True)
    return WandbLogger(name=run.name, save_dir=folder, group=run.variant, **{"project": run.study, **options})


@final
class LoggerType(NamedTuple):
    """Type of logger: constructor, options, and required package."""

    make: Callable[[LoggerRun, Mapping[str, Any]], Logger]
    options: Mapping[str, type]
    package: str = ""

    @property
    def is_installed(self) -> bool:
        return not self.package or find_spec(self.package) is not None


LOGGERS: Final[Mapping[str, LoggerType]] = {
    "csv": LoggerType(_csv, {"flush_logs_every_n_steps": int}),
    "tensorboard": LoggerType(_tensorboard, {}, "tensorboard"),
    "mlflow": LoggerType(_mlflow, {"experiment_name": str, "tracking_uri": str}, "mlflow"),
    "wandb": LoggerType(_wandb, {"project": str, "entity": str, "offline": bool}, "wandb"),
}


def make_logger(node: Mapping[str, Any], run: LoggerRun) -> Logger:
    """Make the logger that a study names; W&B is offline by default."""
    options = {key: value for key, value in node.items() if key != "name"}
    if node["name"] == "wandb":
        options = {"offline": True, **options}
    return LOGGERS[node["name"]].make(run, options)
