"""The types of a precision are those that Lightning uses."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from lightning import Trainer
from lightning.fabric.plugins.precision.precision import (
    _PRECISION_INPUT_INT,
    _PRECISION_INPUT_STR,
    _PRECISION_INPUT_STR_ALIAS,
)

from paribus.models.precision import FLOAT32, PRECISIONS, training_precision

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
