"""Loggers of a trial: the logged values, and the isolation of the trial from logger failures."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, Logger

from paribus.registry import Registry, installed
from paribus.specs.resolve import resolved
from paribus.train import trial_options
from paribus.train.trial import Record, TrialContext, run_trial
from paribus.train.trial_callback import InterruptedTrialError
from paribus.train.trial_options import LoggerRun, LoggerType, TrialOptions

Train = Callable[..., Record]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


@pytest.fixture
def train(registry: Registry, tmp_path: Path) -> Train:
    """Train eight steps in a separate folder; all logs are in `logs`."""
    sizes = ("dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=16", "data.batch=4", "data.validation=8")
    spec = resolved("gpt-tiny", *sizes, "corpus=copy", "tokenizer=symbols", "trainer.max_steps=8",
                    "data.evaluations=2", registry=registry)  # fmt: skip

    def train(folder: str, nodes: Sequence[Mapping[str, Any]], **over: Any) -> Record:
        (tmp_path / folder).mkdir(exist_ok=True)
        called = LoggerRun("study", "attention=gqa(kv_heads=2) /../x", 0, "0123456789ab", tmp_path / "logs")
        options = TrialOptions(loggers=tuple(nodes))
        terms = TrialContext("0123456789ab", tmp_path / folder, options, logger_run=called, **over)
        return run_trial(spec, registry, terms)

    return train


def rows(tmp_path: Path) -> list[dict[str, str]]:
    (path,) = (tmp_path / "logs" / "csv").glob("*/metrics.csv")
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.thorough
def test_a_logger_changes_no_bit_of_the_record(train: Train) -> None:
    assert train("without", [])["result"] == train("with", [{"name": "csv"}])["result"]


@pytest.mark.thorough
def test_every_loss_and_evaluation_is_logged(train: Train, tmp_path: Path) -> None:
    result = train("a", [{"name": "csv"}])["result"]
    logged_losses = [float(row["train/loss"]) for row in rows(tmp_path) if row["train/loss"]]
    assert logged_losses == pytest.approx(result["losses"])
    points = {int(row["step"]): float(row["val/clm/loss"]) for row in rows(tmp_path) if row["val/clm/loss"]}
    assert points == {point["step"]: pytest.approx(point["val/clm/loss"]) for point in result["curve"]}


def test_a_resumed_trial_logs_all_values_again(train: Train, tmp_path: Path) -> None:
    stop_answers = iter([False, False, True])
    with pytest.raises(InterruptedTrialError, match="asked to stop"):
        train("a", [{"name": "csv"}], should_stop=lambda: next(stop_answers))
    assert len([row for row in rows(tmp_path) if row["train/loss"]]) == 3
    train("a", [{"name": "csv"}])
    steps = [int(row["step"]) for row in rows(tmp_path) if row["train/loss"]]
    assert steps == list(range(1, 9))


def test_an_interrupted_trial_is_finalized_as_aborted(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[str] = []
    monkeypatch.setattr(CSVLogger, "finalize", lambda logger, status: statuses.append(status))
    csv_logger = trial_options.LOGGERS["csv"]
    monkeypatch.setattr(trial_options, "LOGGERS", {"csv": csv_logger, "mlflow": csv_logger})
    nodes = [{"name": "csv"}, {"name": "mlflow"}]
    stop_answers = iter([False, True])
    with pytest.raises(InterruptedTrialError, match="checkpoint"):
        train("a", nodes, should_stop=lambda: next(stop_answers))
    train("a", nodes)
    assert statuses == ["aborted", "KILLED", "success", "success"]  # `KILLED` is the status that mlflow accepts


@pytest.mark.thorough
def test_a_logger_that_fails_or_draws_does_not_stop_the_trial(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bad(Logger):
        name, version = "bad", ""

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            torch.rand(3)
            raise OSError("the disk of the logger is full")

        def log_hyperparams(self, *params: Any, **options: Any) -> None:
            torch.rand(3)

    monkeypatch.setattr(trial_options, "LOGGERS", {"bad": LoggerType(lambda run, options: Bad(), {})})
    notes: list[str] = []
    assert train("a", [{"name": "bad"}], on_message=notes.append)["result"] == train("b", [])["result"]
    (note,) = [note for note in notes if "logger" in note]
    assert "`bad` fails (OSError: the disk of the logger is full); the trial goes on without it" in note


def test_run_names_are_valid_on_every_file_system(tmp_path: Path) -> None:
    name = LoggerRun("s", "attention=gqa(kv_heads=2) /../x", 3, "0123456789ab", tmp_path).name
    assert name == "attention=gqa-kv_heads=2-..-x-seed-3-012345"
    assert Path(name).name == name


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")  # the libraries' own deprecations
@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_loggers_of_other_packages_are_written_where_they_are_installed(
    name: str, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    notes: list[str] = []
    assert train("a", [{"name": name}], on_message=notes.append)["result"] == train("b", [])["result"]
    if name == "wandb":
        library.teardown()  # its service process and threads
    assert not [note for note in notes if "logger" in note]
    assert any(path.is_file() for path in (tmp_path / "logs" / name).rglob("*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "logs"]
