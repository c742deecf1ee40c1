"""Post-norm."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from paribus import Shape
from paribus_norm.layer_norm import LayerNorm
from paribus_placement.post_norm import PostNorm
from paribus_placement.pre_norm import PreNorm

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]


def test_every_sublayer_has_its_own_norm(shape: Shape, sublayers: Sublayers) -> None:
    placement = PostNorm(shape, lambda: LayerNorm(8)).double()
    for index, parameter in enumerate(placement.parameters()):
        parameter.data = torch.linspace(0.5, 1.5 + index, 8, dtype=torch.float64)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    a = placement.norms["attention"](x + sublayers["attention"](x))
    b = placement.norms["cross"](a + sublayers["cross"](a))
    c = placement.norms["feedforward"](b + sublayers["feedforward"](b))
    torch.testing.assert_close(placement(x, sublayers), c, atol=1e-12, rtol=0)


def test_outputs_have_mean_0_and_variance_1(shape: Shape, sublayers: Sublayers) -> None:
    placement = PostNorm(shape, lambda: LayerNorm(8, eps=1e-12)).double()
    y = placement(torch.randn(2, 3, 8, dtype=torch.float64) * 5 + 1, sublayers)
    torch.testing.assert_close(y.mean(-1), torch.zeros(2, 3, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(y.var(-1, correction=0), torch.ones(2, 3, dtype=torch.float64), atol=1e-9, rtol=0)


def test_no_norm_follows_the_last_layer() -> None:
    assert PostNorm.traits["final_norm"] is False


def test_tensor_names_match_pre_norm(shape: Shape) -> None:
    post, pre = PostNorm(shape, lambda: LayerNorm(8)), PreNorm(shape, lambda: LayerNorm(8))
    assert post.state_dict().keys() == pre.state_dict().keys()
