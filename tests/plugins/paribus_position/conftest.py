"""Fixtures: a shape, positions, and random queries and keys."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paribus import Heads, Pair, Position, Shape
from paribus.random_keys import key32


@pytest.fixture
def shape() -> Shape:
    return Shape(width=8, heads=4, head_width=6, length=16, vocabulary=11, layers=2)


RAMP = torch.arange(7).unsqueeze(0)
PACKED = torch.tensor([[0, 1, 2, 3, 0, 1, 2], [0, 1, 0, 1, 2, 3, 4]])
PLACES = {
    "plain": (RAMP, RAMP),
    "each": (RAMP.expand(2, -1), RAMP.expand(2, -1)),
    "padded on the left": (RAMP - torch.tensor([[3], [0]]), RAMP - torch.tensor([[3], [0]])),
    "cached": (RAMP[:, 4:], RAMP),
    "one query": (RAMP[:, 6:], RAMP),
    "packed": (PACKED, PACKED),
    "packed and cached": (PACKED[:, 5:], PACKED),
    "gaps": (RAMP * 3, RAMP * 3),
    "shuffled": (RAMP[:, [3, 1, 6, 0, 2, 5, 4]], RAMP[:, [3, 1, 6, 0, 2, 5, 4]]),
    "a longer memory": (RAMP[:, :3] + 40, RAMP),
    "a shorter memory": (RAMP, RAMP[:, :2]),
    "far apart": (RAMP + 1000, RAMP - 1000),
}


@pytest.fixture(params=list(PLACES.values()), ids=list(PLACES))
def places(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    """Positions of queries and of keys."""
    result: tuple[Tensor, Tensor] = request.param
    return result


def randn(name: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(key32(name)), dtype=torch.float64)


@pytest.fixture
def randomise() -> Callable[[nn.Module], nn.Module]:
    """Randomise the parameters of a module by name, in float64."""

    def randomise(module: nn.Module) -> nn.Module:
        module.double()
        for name, parameter in module.named_parameters():
            parameter.data = randn(name, *parameter.shape)
        return module.eval()

    return randomise


@pytest.fixture
def make_pair(shape: Shape, randomise: Callable[[nn.Module], nn.Module]) -> Callable[..., Pair]:
    """Build random queries and keys at given positions, with random projections of the layer."""

    def make_pair(position: Position, q: Tensor, k: Tensor, scale: float = 0.3, place: Shape = shape) -> Pair:
        heads = randomise(Heads(place, kv_heads=place.heads // 2, bias=True))
        assert isinstance(heads, Heads)
        part = position.layer_part(place)
        size = (2, place.heads, place.head_width)
        return Pair(
            randn("queries", *size[:2], q.shape[1], size[2]).requires_grad_(),
            randn("keys", *size[:2], k.shape[1], size[2]).requires_grad_(),
            q,
            k,
            scale,
            place.heads,
            heads.project,
            torch.float64,
            None if part is None else randomise(part),
        )

    return make_pair
