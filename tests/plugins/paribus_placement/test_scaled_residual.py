"""Scaled residual connections."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from paribus import Shape
from paribus_norm.layer_norm import LayerNorm
from paribus_placement.scaled_residual import ScaledResidual

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]


def test_cross_attention_is_within_the_residual_connection_of_the_attention(
    shape: Shape, sublayers: Sublayers, x: Tensor
) -> None:
    placement = ScaledResidual(shape, lambda: LayerNorm(8))
    h = sublayers["attention"](x)
    h = (h + sublayers["cross"](h)) / math.sqrt(2)
    y = (x + h) / math.sqrt(2)
    expected = (y + sublayers["feedforward"](y)) / math.sqrt(2)
    torch.testing.assert_close(placement(x, sublayers), expected, atol=1e-12, rtol=0)


def test_a_layer_of_an_attention_alone_is_one_scaled_sum(shape: Shape, sublayers: Sublayers, x: Tensor) -> None:
    placement = ScaledResidual(replace(shape, sublayers=("attention",)), lambda: LayerNorm(8))
    actual = placement(x, {"attention": sublayers["attention"]})
    torch.testing.assert_close(actual, (x + sublayers["attention"](x)) * math.sqrt(0.5), atol=1e-12, rtol=0)


def test_it_has_no_parameters_and_no_final_norm(shape: Shape) -> None:
    assert not ScaledResidual(shape, lambda: LayerNorm(8)).state_dict()
    assert ScaledResidual.traits["final_norm"] is False
