"""Shaw's relative vectors, compared with a loop, and clipping."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paribus import Load, Pair, Shape
from paribus_position.shaw import Shaw

Randomise = Callable[[nn.Module], nn.Module]
MakePair = Callable[..., Pair]


def position_at(positions: Tensor, batch: int, row: int) -> int:
    return int(positions[batch % positions.shape[0], row])


def loop_reference(position: Shaw, pair: Pair, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the additional terms of equations 3 and 4."""
    assert pair.q is not None
    assert position.values is not None
    batch, heads, queries, keys = weights.shape
    scores, mixed = torch.zeros(weights.shape).double(), torch.zeros(pair.q.shape).double()
    for b in range(batch):
        for i in range(queries):
            for j in range(keys):
                away = position_at(pair.k_positions, b, j) - position_at(pair.q_positions, b, i)
                row = max(-position.distance, min(position.distance, away)) + position.distance
                for h in range(heads):
                    scores[b, h, i, j] = pair.q[b, h, i].dot(position.keys.weight[row]) * pair.scale
                    mixed[b, h, i] += weights[b, h, i, j] * position.values.weight[row]
    return scores, mixed


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("distance", [1, 2, 5, 40])
def test_keys_and_values_have_vectors_of_their_distance(
    distance: int, places: tuple[Tensor, Tensor], shape: Shape, randomise: Randomise, make_pair: MakePair
) -> None:
    position = Shaw(shape, distance=distance)
    randomise(position)
    pair = make_pair(position, *places)
    weights = torch.rand(2, 4, places[0].shape[1], places[1].shape[1]).double().requires_grad_()
    expected = loop_reference(position, pair, weights)
    mixed = position.mix(weights, pair)
    assert mixed is not None
    output = position.bias(pair), mixed
    assert pair.q is not None
    leaves = [pair.q, weights, *position.parameters()]
    for actual, reference in zip(output, expected, strict=True):
        assert torch.allclose(actual, reference, rtol=0, atol=1e-9)
    grads = [torch.autograd.grad(left.sin().sum() + right.sin().sum(), leaves) for left, right in (output, expected)]
    for left, right in zip(*grads, strict=True):
        assert torch.allclose(left, right, rtol=0, atol=1e-9)


def test_distances_are_clipped(shape: Shape, randomise: Randomise, make_pair: MakePair) -> None:
    position = Shaw(shape, distance=3)
    randomise(position)
    scores = position.bias(make_pair(position, torch.tensor([[10]]), torch.arange(20).unsqueeze(0)))[0, 0, 0]
    assert (scores[:8] == scores[0]).all()
    assert (scores[13:] == scores[19]).all()
    assert scores[7:14].unique().numel() == 7


def test_values_are_optional(shape: Shape, make_pair: MakePair) -> None:
    position, positions = Shaw(shape, values=False), torch.arange(3).unsqueeze(0)
    assert position.mix(torch.ones(2, 4, 3, 3), make_pair(position, positions, positions)) is None
    assert (position.uses_mix(), Shaw(shape).uses_mix()) == (False, True)
    assert {name for name, _ in position.named_parameters()} == {"keys.weight"}


@pytest.mark.parametrize("values", [True, False])
def test_the_declared_cost_has_no_quadratic_term(values: bool, shape: Shape, make_pair: MakePair) -> None:
    position, positions = Shaw(shape, distance=2, values=values), torch.arange(9).unsqueeze(0)
    pair = make_pair(position.double(), positions, positions)
    assert pair.q is not None
    with FlopCounterMode(display=False) as counter:
        position.bias(pair._replace(q=pair.q[:1]))
        position.mix(torch.rand(1, 4, 9, 9).double(), pair)
    assert counter.get_total_flops() == position.cost(Load(9, 9)).flops


def test_it_has_no_maximum_length(shape: Shape) -> None:
    assert Shaw(shape).position_limit() is None
