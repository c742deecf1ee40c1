"""Units of a sharded model. Their training is tested in `studies/test_ranks.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from paribus.errors import SpecError
from paribus.registry import Registry, installed
from paribus.specs.resolve import resolved
from paribus.train.assemble import meta_model
from paribus.train.distributed import full_tensor, is_sharded, shard, shard_like, shard_units, unsharded

SMALL = ("dims.width=16", "dims.heads=2", "dims.length=16", "dims.layers=2")


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


def cuts(registry: Registry, preset: str, *overrides: str) -> set[str]:
    """Return the paths of a preset's units."""
    spec = resolved(preset, *SMALL, *overrides, registry=registry)
    model = nn.ModuleDict(meta_model(spec, registry).children())
    units = shard_units(model)
    return {name for name, module in model.named_modules() if any(module is unit for unit in units)}


def test_a_model_is_cut_into_its_attentions_and_feedforwards(registry: Registry) -> None:
    body_units = {f"body.layers.{layer}.{part}" for layer in (0, 1) for part in ("attention", "feedforward")}
    assert cuts(registry, "gpt-tiny") == body_units
    crossing = body_units | {f"body.layers.{layer}.cross" for layer in (0, 1)}
    encoder = {name.replace("body", "encoder") for name in body_units}
    assert cuts(registry, "seq2seq-tiny") == crossing | encoder


def test_what_shares_a_parameter_with_anything_else_stays_with_the_rest() -> None:
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
    assert units[0] is shared  # one module at work in two layers is gathered for each
    assert units[1] is unshared


def test_a_parameter_that_is_a_single_number_is_named() -> None:
    model = nn.Module()
    model.gate = nn.Parameter(torch.tensor(0.5))
    with pytest.raises(SpecError, match=r"trainer-refused.*trainer.strategy.*gate"):
        shard(model, torch.device("cpu"))


def test_what_is_not_in_pieces_is_itself() -> None:
    model = nn.Linear(2, 2)
    assert full_tensor(model.weight) is model.weight
    assert shard_like(model.bias, model.weight) is model.bias
    assert not is_sharded(model)
    with unsharded(model):
        assert full_tensor(model.weight) is model.weight
