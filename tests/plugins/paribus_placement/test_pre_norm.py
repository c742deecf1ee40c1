"""Norms before the sublayers."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from paribus import Shape
from paribus_norm.layer_norm import LayerNorm
from paribus_placement.pre_norm import PreNorm

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]


def distinct(placement: PreNorm) -> None:
    """Gives each norm a gain of its own, so that using the wrong one shows."""
    for index, parameter in enumerate(placement.parameters()):
        parameter.data = torch.linspace(0.5, 1.5 + index, 8, dtype=torch.float64)


def test_each_sublayer_reads_its_own_normed_rows_and_adds_to_the_stream(shape: Shape, sublayers: Sublayers) -> None:
    placement = PreNorm(shape, lambda: LayerNorm(8)).double()
    distinct(placement)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    a = x + sublayers["attention"](placement.norms["attention"](x))
    b = a + sublayers["cross"](placement.norms["cross"](a))
    c = b + sublayers["feedforward"](placement.norms["feedforward"](b))
    torch.testing.assert_close(placement(x, sublayers), c, atol=1e-12, rtol=0)


def test_it_is_the_identity_where_sublayers_give_nothing(shape: Shape) -> None:
    placement = PreNorm(shape, lambda: LayerNorm(8)).double()
    distinct(placement)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    assert torch.equal(placement(x, dict.fromkeys(shape.sublayers, torch.zeros_like)), x)


def test_a_norm_follows_the_last_layer() -> None:
    assert PreNorm.traits["final"] is True


def test_it_has_a_norm_for_each_sublayer_by_its_name(shape: Shape) -> None:
    paths = {name for name, _ in PreNorm(shape, lambda: LayerNorm(8, bias=False)).named_parameters()}
    assert paths == {"norms.attention.weight", "norms.cross.weight", "norms.feedforward.weight"}
