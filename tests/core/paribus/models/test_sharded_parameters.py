"""Units of a sharded model. Their training is tested in `runner/test_distributed.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import nn

from paribus.errors import SpecError
from paribus.models.assemble import meta_model
from paribus.models.distributed import full_tensor, is_sharded, shard, shard_like, shard_units, unsharded
from paribus.registry import Registry, installed
from paribus.specs.resolve import resolved

SMALL = ("dims.width=16", "dims.heads=2", "dims.length=16", "dims.layers=2")


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


def unit_paths(registry: Registry, preset: str, *overrides: str) -> set[str]:
    """Return the paths of a preset's units."""
    spec = resolved(preset, *SMALL, *overrides, registry=registry)
    model = nn.ModuleDict(meta_model(spec, registry).children())
    units = shard_units(model)
    return {name for name, module in model.named_modules() if any(module is unit for unit in units)}


def test_units_are_attentions_and_feedforwards(registry: Registry) -> None:
    body_units = {f"body.layers.{layer}.{part}" for layer in (0, 1) for part in ("attention", "feedforward")}
    assert unit_paths(registry, "gpt-tiny") == body_units
    crossing = body_units | {f"body.layers.{layer}.cross" for layer in (0, 1)}
    encoder = {name.replace("body", "encoder") for name in body_units}
    assert unit_paths(registry, "seq2seq-tiny") == crossing | encoder


def test_modules_with_tied_parameters_are_not_units() -> None:
    from paribus.parts.stack import Layer

    def layer(attention: Any, feedforward: Any) -> Layer:
        return Layer(attention=attention, feedforward=feedforward, placement=None, dropout=0.0)

    shared, alone, unshared = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    borrows, tied = nn.Linear(4, 4), nn.Linear(4, 4)
    borrows.weight = alone.weight
    head = nn.Linear(4, 4)
    head.weight = tied.weight
    layers = nn.ModuleList(
        [layer(shared, alone), layer(shared, borrows), layer(unshared, tied), layer(unshared, nn.Identity())]
    )
    units = shard_units(nn.ModuleDict({"layers": layers, "head": head}))
    assert len(units) == 2
    assert units[0] is shared  # a module shared by two layers is gathered twice
    assert units[1] is unshared


def test_a_scalar_parameter_is_rejected() -> None:
    model = nn.Module()
    model.gate = nn.Parameter(torch.tensor(0.5))
    with raises_problem(SpecError, "trainer-error", "trainer.strategy"):
        shard(model, torch.device("cpu"))


def test_an_unsharded_tensor_is_returned_unchanged() -> None:
    model = nn.Linear(2, 2)
    assert full_tensor(model.weight) is model.weight
    assert shard_like(model.bias, model.weight) is model.bias
    assert not is_sharded(model)
    with unsharded(model):
        assert full_tensor(model.weight) is model.weight
