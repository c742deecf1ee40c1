"""ReZero."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

import paribus
from paribus import Shape
from paribus_norm.layer_norm import LayerNorm
from paribus_placement.re_zero import ReZero

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]


def test_one_scale_applies_to_all_sublayers(shape: Shape, sublayers: Sublayers, x: Tensor) -> None:
    placement = ReZero(shape, lambda: LayerNorm(8)).double()
    placement.scale.data = torch.tensor([0.7], dtype=torch.float64)
    a = x + 0.7 * sublayers["attention"](x)
    b = a + 0.7 * sublayers["cross"](a)
    c = b + 0.7 * sublayers["feedforward"](b)
    torch.testing.assert_close(placement(x, sublayers), c, atol=1e-12, rtol=0)


def test_it_has_no_norms(shape: Shape) -> None:
    assert ReZero(shape, lambda: LayerNorm(8)).state_dict().keys() == {"scale"}
    assert ReZero.traits["final_norm"] is False


@pytest.mark.thorough
def test_layers_start_as_the_identity_and_get_gradients() -> None:
    model = paribus.assemble(paribus.spec("gpt-tiny", "dims.width=16", "placement=rezero"))
    bare = paribus.assemble(paribus.spec("gpt-tiny", "dims.width=16", "dims.layers=1", "placement=rezero"))
    tokens = torch.arange(12).view(2, 6)
    assert torch.equal(model.hidden(tokens), bare.hidden(tokens))
    model.hidden(tokens).square().sum().backward()
    assert all(model.get_parameter(f"body.layers.{layer}.placement.scale").grad.any() for layer in (0, 1))  # type: ignore[union-attr]  # backward has run
