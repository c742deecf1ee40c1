"""What the kit says of components that do not start from draws of their own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paribus import Initialisation, ParameterInfo

Faulty = Callable[..., Any]
Found = Callable[[type[Any], str], str]


def test_a_buffer_from_the_global_generator_is_named(attention: Faulty, found: Found) -> None:
    def prepare(self: Any, keyed: Any) -> None:
        self.register_buffer("blocks", torch.randn(3))

    said = found(attention(prepare=prepare), "keyed")
    assert "`body.layers.0.attention.blocks` is drawn from the global generator" in said


def test_a_buffer_from_draws_of_its_own_is_as_it_should_be(attention: Faulty, found: Found) -> None:
    def prepare(self: Any, keyed: Any) -> None:
        self.register_buffer("blocks", keyed("blocks", (3,)))

    assert found(attention(prepare=prepare), "keyed") == ""


def test_a_parameter_that_is_drawn_anew_is_named(attention: Faulty, found: Found) -> None:
    def prepare(self: Any, keyed: Any) -> None:
        self.heads.q.weight.data.mul_(2)

    said = found(attention(prepare=prepare), "untouched")
    assert "`body.layers.0.attention.heads.q.weight` has other initial weights" in said


def test_a_scheme_that_reads_the_global_generator_is_shown(filling: Faulty, found: Found) -> None:
    lucky = filling(Initialisation, {"draw": lambda self, unit, about: torch.randn(about.shape)})
    assert "is drawn from the global generator: two models of one seed differ in it" in found(lucky, "keyed")


def test_a_scheme_that_reads_no_seed_is_shown(filling: Faulty, found: Found) -> None:
    def draw(self: Any, unit: Tensor, about: ParameterInfo) -> Tensor:
        return torch.linspace(-1, 1, unit.numel()).reshape(unit.shape)

    assert "and all others are the same for two seeds" in found(filling(Initialisation, {"draw": draw}), "keyed")
