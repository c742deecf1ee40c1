"""LayerScale."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

import paribus
from paribus import Placement, Shape
from paribus_norm.layer_norm import LayerNorm
from paribus_placement.layer_scale import LayerScale
from paribus_placement.pre_norm import PreNorm

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]
Randomise = Callable[[Placement], Placement]


def test_every_channel_has_its_own_scale(shape: Shape, sublayers: Sublayers, randomise: Randomise, x: Tensor) -> None:
    placement = randomise(LayerScale(shape, lambda: LayerNorm(8), start=0.25))
    y = x
    for name in ("attention", "cross", "feedforward"):
        gamma = 0.25 + placement.get_parameter(f"scales.{name}")
        y = y + gamma * sublayers[name](placement.get_submodule(f"norms.{name}")(y))
    torch.testing.assert_close(placement(x, sublayers), y, atol=1e-12, rtol=0)


@pytest.mark.parametrize("start", [0.1, 1e-5])
def test_start_scales_branches_initially(start: float, shape: Shape, x: Tensor) -> None:
    placement, pre = LayerScale(shape, lambda: LayerNorm(8), start=start), PreNorm(shape, lambda: LayerNorm(8))
    only = {"attention": torch.sin}
    torch.testing.assert_close(placement.double()(x, only), x + start * (pre.double()(x, only) - x))


def test_initial_weights_do_not_depend_on_start(shape: Shape) -> None:
    left, right = (
        dict(paribus.assemble(paribus.spec("gpt-tiny", "dims.width=16", *overrides)).named_parameters())
        for overrides in (("placement=layerscale",), ("placement=layerscale", "placement.start=1e-5"))
    )
    assert left.keys() == right.keys()
    assert all(torch.equal(left[path], right[path]) for path in left)
    pre = PreNorm(shape, lambda: LayerNorm(8)).state_dict().keys()
    scales = {f"scales.{name}" for name in shape.sublayers}
    assert LayerScale(shape, lambda: LayerNorm(8)).state_dict().keys() == pre | scales
    assert scales == LayerScale.roles.keys()
    assert LayerScale.traits["final_norm"] is True


def test_a_step_moves_gamma_like_a_direct_parameter(shape: Shape, x: Tensor) -> None:
    placement = LayerScale(shape, lambda: LayerNorm(8), start=1e-5).double()
    names = torch.nn.Parameter(torch.full((8,), 1e-5, dtype=torch.float64))
    weight = placement.get_parameter("scales.attention")
    optimizers = [torch.optim.Adam([item], lr=1e-3) for item in (weight, names)]
    for _ in range(3):
        placement(x, {"attention": torch.sin}).pow(3).sum().backward()
        normalised = placement.get_submodule("norms.attention")(x)
        (x + names * normalised.sin()).pow(3).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(1e-5 + weight, names, atol=1e-12, rtol=0)
