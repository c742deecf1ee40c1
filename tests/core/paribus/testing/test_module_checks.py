"""What the kit says of components that do something else by themselves than they declare."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import Sublayer, Traits

Faulty = Callable[..., Any]
Found = Callable[[type[Any], str], str]


def traits(*moments: str, bias: str = "none") -> Any:
    return {"hooks": list(moments), "bias": bias, "owner": "stack"}


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (
            {"rotate": lambda self, x, tables, side: -x},
            "it overrides `rotate`, but its trait `hooks` does not contain it",
        ),
        ({"traits": traits("embed")}, "its trait `hooks` has `embed`, but it does not override it"),
        (
            {"traits": traits("bias"), "bias": lambda self, pair: torch.zeros(1)},
            "its trait `bias` is 'none', but `hooks` is",
        ),
    ],
)
def test_moments_that_are_not_those_declared_are_shown(
    members: Mapping[str, Any], said: str, position: Faulty, found: Found
) -> None:
    assert said in found(position(**members), "moments")


def test_a_position_that_ends_before_it_says_is_shown(position: Faulty, found: Found) -> None:
    def embed(self: Any, x: Tensor, positions: Tensor) -> Tensor:
        return x + positions.unsqueeze(-1).to(x.dtype).sqrt()

    told: Traits = traits("embed")
    assert "at position -3 it is not finite; declared limit: any" in found(position(traits=told, embed=embed), "reach")
    assert found(position(traits=told, embed=lambda self, x, at: x + at.unsqueeze(-1)), "reach") == ""


def test_a_norm_over_several_rows_is_shown(norm: Faulty, found: Found) -> None:
    assert "row 0 of 5 differs by" in found(norm(forward=lambda self, x: x - x.mean(1, keepdim=True)), "row by row")


def test_a_norm_of_another_type_is_shown(norm: Faulty, found: Found) -> None:
    said = found(norm(forward=lambda self, x: x.float()), "row by row")
    assert "(2, 5, 16) of torch.float64 becomes (2, 5, 16) of torch.float32; expected: the same" in said


def test_a_feed_forward_that_mixes_rows_is_shown(feedforward: Faulty, found: Found) -> None:
    mixing = feedforward(forward=lambda self, x: (x.cumsum(1), None))
    assert "row 1 of 5 differs by" in found(mixing, "each row")


def test_an_auxiliary_loss_that_is_no_number_is_shown(feedforward: Faulty, found: Found) -> None:
    said = found(feedforward(forward=lambda self, x: (x, x.mean(-1))), "each row")
    assert "its auxiliary loss has the shape (2, 5); expected: a scalar" in said


def first_alone(self: Any, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
    return x + next(iter(sublayers.values()))(x)


def twice(self: Any, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
    for sublayer in sublayers.values():
        x = x + sublayer(x) + sublayer(x)
    return x


def lost(self: Any, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
    for name, sublayer in sublayers.items():
        given = sublayer(x)
        x = x if name == "feedforward" else x + given
    return x


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (first_alone, "of the sublayers attention, feedforward it runs attention; expected: each once"),
        (twice, "it runs attention, attention, feedforward, feedforward; expected: each once"),
        (lost, "the output of the sublayer `feedforward` does not change the result"),
    ],
)
def test_a_placement_that_wires_otherwise_is_shown(
    forward: Callable[..., Tensor], said: str, placement: Faulty, found: Found
) -> None:
    assert said in found(placement(forward=forward), "wiring")


def test_a_placement_that_changes_the_shape_is_shown(placement: Faulty, found: Found) -> None:
    def forward(self: Any, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for sublayer in sublayers.values():
            x = x + sublayer(x)
        return x[..., :1]

    assert "(2, 3, 16) becomes (2, 3, 1); expected: the same" in found(placement(forward=forward), "wiring")


def test_a_bias_that_is_not_of_distances_alone_is_told_of(position: Faulty, found: Found) -> None:
    own = {**traits("bias", bias="positions"), "distance_bias": True}
    scaled = position(traits=own, bias=lambda self, pair: biased(pair) * pair.q_positions.max())
    assert "shifted by 31 positions, its bias differs by" in found(scaled, "distances")
    assert not found(position(traits=own, bias=lambda self, pair: biased(pair)), "distances")


def biased(pair: Any) -> Tensor:
    apart: Tensor = (pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)).unsqueeze(1).to(pair.dtype)
    return apart.expand(-1, pair.heads, -1, -1)
