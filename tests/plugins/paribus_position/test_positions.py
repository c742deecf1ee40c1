"""What positions declare of themselves, held against what they do."""

from dataclasses import replace
from typing import Literal

import pytest
import torch

from paribus import Pair, Position, Shape
from paribus_position import position


@pytest.mark.parametrize(("name", "component"), position().items())
def test_the_moments_that_it_declares_are_those_that_it_has(name: str, component: type[Position], shape: Shape) -> None:
    moments = set(component.traits["moments"])
    overridden = {moment for moment in ("embed", "rotate", "bias", "mix") if moment in vars(component)}
    assert moments == overridden
    assert (component.traits["bias"] != "none") == ("bias" in moments)
    made = component(shape)
    assert (made.reach() is not None) == component.traits.get("table", False)


@pytest.mark.parametrize(("name", "component"), position().items())
def test_each_tells_rows_apart_and_none_does_not(name: str, component: type[Position], shape: Shape) -> None:
    made = component(shape)
    torch.manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    at = torch.arange(4).unsqueeze(0)
    x, heads = torch.ones(1, 4, 8), torch.ones(1, 2, 4, 6)
    told = [made.embed(x, at)[0], made.rotate(heads, made.tables(at, 6), "key")[0, 0]]
    if "bias" in component.traits["moments"]:
        told.append(made.bias(Pair(None, None, at, at, 1.0, 2))[0, 0])
    assert any((rows[0] != rows[1]).any() for rows in told) == (name != "none")


def test_positions_of_padding_may_be_anything(shape: Shape) -> None:
    at = torch.tensor([[-7, -1, 0, 1, 15]])
    for component in position().values():
        made = component(shape)
        assert torch.isfinite(made.embed(torch.ones(1, 5, 8), at)).all()
        assert torch.isfinite(made.rotate(torch.ones(1, 2, 5, 6), made.tables(at, 6), "key")).all()


@pytest.mark.parametrize(("name", "component"), [it for it in position().items() if not it[1].traits.get("table")])
def test_far_out_nothing_is_infinite(name: str, component: type[Position], shape: Shape) -> None:
    at = torch.tensor([[-(10**6), 0, 10**6]])
    made = component(shape)
    torch.manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    sides: tuple[Literal["query", "key"], ...] = ("query", "key")
    for side in sides:
        assert torch.isfinite(made.rotate(torch.ones(1, 2, 3, 6), made.tables(at, 6), side)).all()
    if "bias" in component.traits["moments"]:
        assert torch.isfinite(made.bias(Pair(None, None, at, at, 1.0, 4))).all()


@pytest.mark.parametrize("name", [name for name, it in position().items() if it.traits["bias"] == "positions"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_bias_of_a_block_of_rows_is_a_block_of_the_whole(name: str, causal: bool, shape: Shape) -> None:
    made = position()[name](replace(shape, causal=causal))
    torch.manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    at = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [-3, -2, -1, 0, 1, 2, 3]])
    whole = made.bias(Pair(None, None, at, at, 1.0, 4))
    assert whole.shape == (2, 4, 7, 7)
    block = made.bias(Pair(None, None, at[:, 4:6], at[:, 1:5], 1.0, 4))
    assert torch.allclose(block, whole[:, :, 4:6, 1:5], rtol=0, atol=1e-6)
