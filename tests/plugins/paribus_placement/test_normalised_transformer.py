"""nGPT's updates, compared with its equations and with its scaled feed-forward."""

import math
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Placement, Shape
from paribus_feedforward.gated_linear_unit import GatedLinearUnit
from paribus_norm.root_mean_square_norm import RootMeanSquareNorm
from paribus_placement.normalised_transformer import NormalisedTransformer

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]
Randomise = Callable[[Placement], Placement]


def ngpt(shape: Shape, alpha: float = 0.25) -> NormalisedTransformer:
    return NormalisedTransformer(shape, lambda: RootMeanSquareNorm(8), alpha=alpha)


def length_1(values: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in values))
    return [value / length for value in values]


def test_matches_its_equations(shape: Shape, sublayers: Sublayers, randomise: Randomise, x: Tensor) -> None:
    placement = randomise(ngpt(shape))
    state = [[length_1(token.tolist()) for token in sequence] for sequence in x]
    for name in shape.sublayers:
        read = torch.tensor(state, dtype=torch.float64) * math.sqrt(8)
        outputs = sublayers[name](read).tolist()
        s = [1 / math.sqrt(8) + value for value in placement.get_parameter(f"scales.{name}").tolist()]
        rates = [abs(value * 0.25 * math.sqrt(8)) for value in s]  # s alpha_init / alpha_scale, with scale 1 / √D
        for sequence, its_outputs in zip(state, outputs, strict=True):
            for t, (h, y) in enumerate(zip(sequence, its_outputs, strict=True)):
                moved = [a + rate * (b - a) for a, b, rate in zip(h, length_1(y), rates, strict=True)]
                sequence[t] = length_1(moved)
    torch.testing.assert_close(placement(x, sublayers), torch.tensor(state, dtype=torch.float64), atol=1e-12, rtol=0)


def test_alpha_1_replaces_the_state(shape: Shape, x: Tensor) -> None:
    y = ngpt(shape, alpha=1.0).double()(x, {"attention": torch.sin})
    expected = functional.normalize((functional.normalize(x, dim=-1) * math.sqrt(8)).sin(), dim=-1)
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=0)


def test_a_gated_feed_forward_has_the_scales_of_the_paper(shape: Shape, x: Tensor) -> None:
    """The paper multiplies only the activated part by √D; the length of the other is lost in the norm."""
    glu = GatedLinearUnit(shape, inner=5, scales=True).double()
    s_v, s_u = (torch.linspace(0.5, stop, 5, dtype=torch.float64) for stop in (2, -1))
    glu.gate_scale, glu.inner_scale = nn.Parameter(s_v), nn.Parameter(s_u)
    h = functional.normalize(x, dim=-1)
    paper = glu.outer(functional.silu(math.sqrt(8) * s_v * glu.gate(h)) * s_u * glu.inner(h))
    expected = functional.normalize(h + 0.25 * (functional.normalize(paper, dim=-1) - h), dim=-1)
    torch.testing.assert_close(
        ngpt(shape).double()(x, {"feedforward": lambda h: glu(h)[0]}), expected, atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("start", [0.05, 1.0])
def test_a_sublayer_without_an_output_keeps_the_direction(start: float, shape: Shape, x: Tensor) -> None:
    y = ngpt(shape, alpha=start / 2).double()(x, {"attention": torch.zeros_like})
    torch.testing.assert_close(y, functional.normalize(x, dim=-1), atol=1e-12, rtol=0)
