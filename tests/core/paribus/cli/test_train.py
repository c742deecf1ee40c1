"""`paribus train`: saved models, existing records, initial models, and errors."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from tests.fixtures.problems import raises_problem

import paribus
from paribus.cli.main import main
from paribus.errors import SpecError
from paribus.specs.trainer_options import OWN_ARGUMENTS, trainer_arguments

SMALL = ["gpt-tiny", "position=rope", "dims.width=16", "dims.length=16", "trainer.max_steps=3", "data.validation=16"]


def test_a_trial_is_trained_once_and_can_be_loaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = ["--store", str(tmp_path)]
    assert main(["train", *SMALL, *store]) == 0
    first_output = capsys.readouterr()
    assert "val/clm/loss" in first_output.out
    assert re.search(r"measured on 16 of [\d,]+ validation examples", first_output.out)
    folder = Path(first_output.out.rsplit(": ", 1)[1].strip())
    assert main(["train", *SMALL, *store, "--json"]) == 0
    second_output = capsys.readouterr()
    assert "nothing to do" in second_output.err
    result = json.loads(second_output.out)
    assert (result["state"], result["steps"]) == ("done", 3)
    model = paribus.load(folder)
    logits, states = model(torch.zeros(1, 4, dtype=torch.int64))
    assert logits.shape[:2] == (1, 4)
    assert states is None


@pytest.mark.thorough
def test_the_plugins_are_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paribus import registry

    calls, installed = [], registry.installed

    def counted(**options: Any) -> registry.Registry:
        calls.append(options)
        return installed(**options)

    monkeypatch.setattr(registry, "installed", counted)
    assert main(["train", *SMALL, "--store", str(tmp_path)]) == 0
    assert len(calls) == 1


@pytest.mark.thorough
def test_a_translation_model_is_measured_by_its_translations(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sizes = ["dims.width=16", "dims.layers=1", "trainer.max_steps=1", "data.validation=16"]
    pairs = ["corpus={name: dates, pairs: 64, held_out: 8}", "measure=[{name: translation, scores: []}]"]
    assert main(["train", "transformer-tiny", *sizes, *pairs, "--store", str(tmp_path)]) == 0
    assert "val/translation/pairs  8.0000" in capsys.readouterr().out


def test_a_folder_without_a_record_is_not_a_trial(tmp_path: Path) -> None:
    with raises_problem(paribus.StoreError, "missing-record", tmp_path):
        paribus.load(tmp_path)


@pytest.mark.thorough
def test_a_trial_that_diverges_is_reported_with_its_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    small = [word for word in SMALL if not word.startswith("trainer.max_steps")]
    words = [*small, "optimizer.lr=1e30", "trainer.max_steps=40", "--store", str(tmp_path)]
    assert main(["train", *words]) == 1
    assert "diverged at step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "problem", "value"),
    [
        ("trainer.max_step=5", "error[unknown-key] trainer.max_step", '"max_steps"'),
        ("trainer.accelerator=abacus", "error[trainer-error] trainer", "abacus"),
    ],
)
def test_an_option_that_lightning_refuses_is_a_spec_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, override: str, problem: str, value: str
) -> None:
    assert main(["train", *SMALL, override, "--store", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert value in error


def test_arguments_of_a_trainer_are_known_without_importing_it() -> None:
    parameters = inspect.signature(Trainer.__init__).parameters
    assert trainer_arguments().keys() == {*OWN_ARGUMENTS, *(name for name in parameters if name != "self")}


@pytest.mark.thorough
@pytest.mark.parametrize("threads", [None, "2"])
def test_a_single_trial_uses_one_thread_like_one_of_a_study(
    threads: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    torch.set_num_threads(2)
    assert main(["train", *SMALL, "--store", str(tmp_path)]) == 0
    assert torch.get_num_threads() == 1


def test_an_error_writes_no_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "gpt-tiny", "attention=gqaa", "--store", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert "error[unknown-component] attention" in error
    assert '"gqa"' in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_a_model_too_large_for_any_memory_is_refused_before_it_is_built(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["gpt-tiny", "dims.width=1000000", "--store", str(tmp_path / "runs")]
    assert main(["train", *words]) == 2
    assert "error[too-large] dims" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "calls"),
    [
        ((), 1),
        (("trainer.devices=2", "trainer.strategy=ddp"), 0),
        (("trainer.devices=1", "trainer.strategy=fsdp"), 0),
    ],
)
def test_free_memory_is_not_read_before_the_processes_of_a_trial_are_forked(
    words: tuple[str, ...],
    calls: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shortages: list[Any] = []
    monkeypatch.setattr("paribus.train.step_memory.memory_shortage", lambda spec, _: shortages.append(spec))

    def stop(*arguments: Any) -> None:
        raise SpecError("no training")

    monkeypatch.setattr("paribus.train.trial.run_trial", stop)
    assert main(["train", *SMALL, *words, "--store", str(tmp_path)]) == 2
    assert "no training" in capsys.readouterr().err
    assert len(shortages) == calls  # on a GPU this opens a CUDA context, which a forked process cannot use


@pytest.mark.thorough
def test_a_trial_starts_from_another_by_its_identity(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "kept")]
    assert main(["train", *SMALL, *store]) == 0
    folder = Path(capsys.readouterr().out.rsplit(": ", 1)[1].strip())
    words = [f"from={folder.name[:6]}", "trainer.max_steps=2"]
    assert main(["train", *words, *store]) == 0  # no SPEC: that of the trial
    result = capsys.readouterr().out
    assert "tensors of the saved model: 35 kept, 0 converted, 0 new, 0 dropped" in result
    assert "2 steps" in result
    assert main(["train", words[0], *store, "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["from"]["sha256"] == paribus.spec({"from": str(folder)})["from"]["sha256"]
    )
    for verb in ("check", "summary"):
        assert main([verb, f"from={folder}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["spec"]["from"]["name"] == str(folder)


@pytest.mark.parametrize("verb", ["check", "summary"])
def test_other_commands_need_a_spec_or_a_model_too(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert main([verb, "optimizer.lr=1"]) == 2
    assert "error[missing]: missing SPEC" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["optimizer.lr=1"], "error[missing]: missing SPEC"),
        (["from=abcdef"], "error[missing-record] from (abcdef)"),
    ],
)
def test_without_a_spec_an_initial_model_is_required(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], problem: str
) -> None:
    assert main(["train", *words, "--store", str(tmp_path)]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "fsdp"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_trial_on_two_devices_runs_in_two_processes(strategy: str, threads: str, tmp_path: Path) -> None:
    devices = ["trainer.accelerator=cpu", "trainer.devices=2", f"trainer.strategy={strategy}"]
    arguments = ["train", *SMALL, *devices, "--store", str(tmp_path), "--json"]
    code = "import sys; from paribus.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["state"], result["steps"]) == ("done", 3)
