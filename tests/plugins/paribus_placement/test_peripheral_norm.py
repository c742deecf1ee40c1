"""Peripheral norm."""

import dataclasses
from collections.abc import Callable, Mapping

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus import Placement, Shape, SpecError
from paribus_norm.layer_norm import LayerNorm
from paribus_placement.peripheral_norm import PeripheralNorm
from paribus_placement.sandwich_norm import SandwichNorm

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]
Randomise = Callable[[Placement], Placement]


@pytest.mark.parametrize("layer", [0, 1])
def test_only_the_first_layer_has_an_input_norm(
    layer: int, shape: Shape, sublayers: Sublayers, randomise: Randomise, x: Tensor
) -> None:
    placement = randomise(PeripheralNorm(dataclasses.replace(shape, layer=layer), lambda: LayerNorm(8)))
    inputs_ = x if layer else placement.get_submodule("entry")(x)
    sandwich = SandwichNorm(shape, lambda: LayerNorm(8)).double()
    sandwich.load_state_dict({k: v for k, v in placement.state_dict().items() if not k.startswith("entry")})
    assert torch.equal(placement(x, sublayers), sandwich(inputs_, sublayers))


def test_matches_its_formula(shape: Shape, sublayers: Sublayers, randomise: Randomise, x: Tensor) -> None:
    placement = randomise(PeripheralNorm(dataclasses.replace(shape, layer=0), lambda: LayerNorm(8)))
    y = placement.get_submodule("entry")(x)
    for name in ("attention", "cross", "feedforward"):
        original, behind = placement.get_submodule(f"norms.{name}"), placement.get_submodule(f"behind.{name}")
        y = y + behind(sublayers[name](original(y)))
    torch.testing.assert_close(placement(x, sublayers), y, atol=1e-12, rtol=0)


def test_shared_layers_are_rejected() -> None:
    with raises_problem(SpecError, "does-not-fit", "peri"):
        paribus.spec("gpt-tiny", "placement=peri", "dims.groups=1")


@pytest.mark.thorough
def test_matches_sandwich_after_a_normed_embedding() -> None:
    tokens = torch.arange(12).view(2, 6)
    actual = paribus.assemble(paribus.spec("gpt-tiny", "dims.width=16", "placement=peri"))
    reference = paribus.assemble(
        paribus.spec("gpt-tiny", "dims.width=16", "placement=sandwich", "embedding.normed=true")
    )
    torch.testing.assert_close(actual.hidden(tokens), reference.hidden(tokens))
