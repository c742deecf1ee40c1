"""CoPE: counts of gates between key and query, and interpolation between whole numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paribus import Pair, Shape
from paribus_position.contextual import Contextual

Make = Callable[..., Pair]
Randomise = Callable[[nn.Module], nn.Module]


@pytest.fixture
def position(shape: Shape, randomise: Randomise) -> Contextual:
    module = randomise(Contextual(shape, positions=5))
    assert isinstance(module, Contextual)
    return module


def causal(queries: Tensor, keys: Tensor) -> Tensor:
    return (keys.unsqueeze(-2) <= queries.unsqueeze(-1)).unsqueeze(1)


def test_a_key_is_as_far_as_the_gates_from_it_to_the_query(
    position: Contextual, places: tuple[Tensor, Tensor], make_pair: Make
) -> None:
    visible = causal(*places)
    pair = make_pair(position, *places)._replace(visible=visible)
    assert pair.q is not None
    assert pair.k is not None
    actual = position.bias(pair)
    table = position.table.weight
    for b, h, t in torch.cartesian_prod(*(torch.arange(size) for size in pair.q.shape[:3])).tolist():
        row, keys = min(b, len(visible) - 1), places[1][min(b, len(places[1]) - 1)]
        q = pair.q[b, h, t]
        gates = [torch.sigmoid(q @ k * pair.scale) for k in pair.k[b, h]]
        for s in visible[row, 0, t].nonzero().flatten().tolist():
            others = (visible[row, 0, t] & after(keys, s)).nonzero().flatten().tolist()
            count = min(float(sum(gates[other].item() for other in others)), 4.0)
            whole = int(count)
            vector = table[whole] + (count - whole) * (table[min(whole + 1, 4)] - table[whole])
            torch.testing.assert_close(actual[b, h, t, s], q @ vector, atol=1e-12, rtol=0)


def after(positions: Tensor, index: int) -> Tensor:
    """Return the keys from one on: at later positions, or at the same and not before it in the sequence."""
    later = positions > positions[index]
    return later | ((positions == positions[index]) & (torch.arange(len(positions)) >= index))


def test_with_open_gates_positions_are_distances(position: Contextual) -> None:
    places = torch.arange(7).unsqueeze(0)
    q = torch.ones(1, 4, 7, 6, dtype=torch.float64)
    pair = Pair(q, 100 * q, places, places, 1.0, 4, dtype=torch.float64, visible=causal(places, places))
    vectors = position.table.weight.sum(-1)
    for i in range(7):
        for j in range(i + 1):
            torch.testing.assert_close(position.bias(pair)[0, 0, i, j], vectors[min(i - j + 1, 4)])


def test_hidden_keys_are_not_counted(position: Contextual, make_pair: Make) -> None:
    places = torch.arange(7).unsqueeze(0)
    visible = causal(places, places) & (places != 3)
    pair = make_pair(position, places, places)._replace(visible=visible)
    assert pair.k is not None
    without = [0, 1, 2, 4, 5, 6]
    fewer = pair._replace(k=pair.k[:, :, without], k_positions=places[:, without], visible=visible[..., without])
    torch.testing.assert_close(position.bias(pair)[..., without], position.bias(fewer))
