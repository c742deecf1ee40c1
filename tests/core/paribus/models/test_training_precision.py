"""The types of a precision are those that Lightning uses."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
from lightning import Trainer
from lightning.fabric.plugins.precision.precision import (
    _PRECISION_INPUT_INT,
    _PRECISION_INPUT_STR,
    _PRECISION_INPUT_STR_ALIAS,
)

import paribus
from paribus.models.checkpoint import parameter_digest
from paribus.models.precision import FLOAT32, PRECISIONS, training_precision
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.storage.saved_model import trained_dtype
from paribus.train.trial import TrialContext, run_trial

OF_A_LIBRARY = {"transformer-engine", "transformer-engine-float16"}  # which is not installed
ACCEPTED = sorted({*get_args(_PRECISION_INPUT_STR), *get_args(_PRECISION_INPUT_STR_ALIAS)} - OF_A_LIBRARY)


@pytest.mark.filterwarnings("ignore")  # about float16 on a CPU
@pytest.mark.parametrize("given", [*ACCEPTED, *get_args(_PRECISION_INPUT_INT), None])
def test_a_precision_has_the_types_of_lightning(given: str | int | None) -> None:
    try:
        plugin = Trainer(accelerator="cpu", precision=given, logger=False, barebones=True).precision_plugin  # type: ignore[arg-type]  # any
    except ValueError:
        pytest.skip("not on a CPU")
    precision = training_precision({"precision": given})
    assert precision is not None
    with plugin.forward_context():
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    assert precision.autocast in {autocast, torch.float16 if autocast == torch.bfloat16 else autocast}
    assert precision.parameters == plugin.convert_module(torch.nn.Linear(1, 1)).weight.dtype


def test_libraries_choose_their_own_types() -> None:
    assert {training_precision({"precision": given}) for given in OF_A_LIBRARY} == {None}
    assert set(PRECISIONS) == {*ACCEPTED, "None"}
    assert training_precision(None) == training_precision({}) == FLOAT32


@pytest.mark.parametrize("name", [*ACCEPTED, *get_args(_PRECISION_INPUT_INT), None])
def test_the_type_of_saved_weights_follows_from_the_precision(name: str | int | None) -> None:
    precision = training_precision({"precision": name})
    assert precision is not None
    assert trained_dtype({"trainer": {"precision": name}}) == str(precision.parameters).removeprefix("torch.")


@pytest.mark.filterwarnings("ignore")  # about float16 on a CPU
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "16-true", "64-true"])
def test_a_model_is_loaded_with_the_weights_of_its_precision(
    precision: str, components: Registry, tmp_path: Path
) -> None:
    sizes = ("dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=16", "data.batch=4", "data.validation=4")
    steps = ("trainer.max_steps=1", "trainer.accelerator=cpu", f"trainer.precision={precision}")
    spec = resolved("gpt-tiny", *sizes, *steps, registry=components)
    record = run_trial(spec, components, TrialContext("0" * 24, tmp_path))
    model = paribus.load(tmp_path, registry=components)
    assert parameter_digest(model) == record["result"]["digests"]["parameters"]
    paribus.save(model, tmp_path / "saved")
    assert parameter_digest(paribus.load(tmp_path / "saved", registry=components)) == parameter_digest(model)
