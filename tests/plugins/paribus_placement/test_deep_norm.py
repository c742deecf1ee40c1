"""DeepNorm."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import get_args

import pytest
import torch
from torch import Tensor

import paribus
from paribus import Placement, Role, Shape
from paribus_norm.layer_norm import LayerNorm
from paribus_placement.deep_norm import DeepNorm, depth_weights
from paribus_placement.post_norm import PostNorm

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]
Randomise = Callable[[Placement], Placement]

BOTH = ("attention", "feedforward")
ALL = ("attention", "cross", "feedforward")


def test_matches_the_formula(shape: Shape, sublayers: Sublayers, randomise: Randomise, x: Tensor) -> None:
    placement = randomise(DeepNorm(shape, lambda: LayerNorm(8)))
    y = x
    for name in ALL:
        y = placement.get_submodule(f"norms.{name}")(y * 6**0.25 + sublayers[name](y))
    torch.testing.assert_close(placement(x, sublayers), y, atol=1e-12, rtol=0)


# Figure 2 of the paper, with N layers of the encoder and M of the decoder.
@pytest.mark.parametrize(
    ("sublayers", "layers", "read_by", "alpha", "beta"),
    [
        (BOTH, 12, 0, (2 * 12) ** 0.25, (8 * 12) ** -0.25),  # a single stack
        (BOTH, 1000, 0, 6.687403, 0.1057371),
        (ALL, 18, 0, (3 * 18) ** 0.25, (12 * 18) ** -0.25),  # a decoder with cross-attention
        (BOTH, 6, 18, 0.81 * (6**4 * 18) ** (1 / 16), 0.87 * (6**4 * 18) ** (-1 / 16)),  # its encoder
        (BOTH, 18, 18, 0.81 * 18 ** (5 / 16), 0.87 * 18 ** (-5 / 16)),
    ],
)
def test_weights_match_the_paper(
    sublayers: tuple[str, ...], layers: int, read_by: int, alpha: float, beta: float, shape: Shape
) -> None:
    module = depth_weights(dataclasses.replace(shape, sublayers=sublayers, layers=layers, cross_layers=read_by))
    assert module == pytest.approx((alpha, beta), rel=1e-6)


def test_encoder_decoder_weights_depend_on_both_depths() -> None:
    overrides = ("dims.width=16", "parts.encoder.dims.layers=3", "parts.decoder.dims.layers=5", "placement=deepnorm")
    module = paribus.assemble(paribus.spec("seq2seq-tiny", *overrides)).parameter_info
    both = (3**4 * 5) ** (1 / 16)
    assert module["encoder.layers.0.attention.heads.v.weight"].gain == pytest.approx(0.87 / both)
    assert module["body.layers.0.cross.heads.o.weight"].gain == pytest.approx(60**-0.25)
    alone = paribus.assemble(paribus.spec("gpt-tiny", "dims.width=16", "placement=deepnorm")).parameter_info
    assert alone["body.layers.1.feedforward.inner.weight"].gain == pytest.approx(16**-0.25)
    assert alone["body.layers.1.attention.heads.q.weight"].gain == 1.0
    assert alone["embedding.tokens.weight"].gain == 1.0


def test_only_values_outputs_and_feed_forwards_start_smaller(shape: Shape) -> None:
    placement = DeepNorm(shape, lambda: LayerNorm(8))
    scaled = {role for role in get_args(Role) if placement.gain(role) != 1.0}
    assert scaled == {"value", "residual", "inner"}
    assert {placement.gain(role) for role in scaled} == {placement.beta}


def test_outputs_have_mean_0_and_variance_1(shape: Shape, sublayers: Sublayers, x: Tensor) -> None:
    y = DeepNorm(shape, lambda: LayerNorm(8, eps=1e-12)).double()(x * 5 + 1, sublayers)
    torch.testing.assert_close(y.mean(-1), torch.zeros(2, 3, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(y.var(-1, correction=0), torch.ones(2, 3, dtype=torch.float64), atol=1e-9, rtol=0)


def test_it_has_the_tensors_of_post_norm(shape: Shape) -> None:
    deep, post = DeepNorm(shape, lambda: LayerNorm(8)), PostNorm(shape, lambda: LayerNorm(8))
    assert deep.state_dict().keys() == post.state_dict().keys()
    assert DeepNorm.traits["final_norm"] is False
