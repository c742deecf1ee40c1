"""Activations, compared with their closed forms."""

import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch

from paribus_feedforward.activation import ACTIVATIONS, Activation

CLOSED: dict[Activation, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu-tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "relu2": lambda x: max(x, 0.0) ** 2,
    "leaky-relu2": lambda x: max(x, 0.5 * x) ** 2,
}


@pytest.mark.parametrize("name", CLOSED)
def test_activations_match_their_closed_forms(name: Activation) -> None:
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    expected = torch.tensor([CLOSED[name](value) for value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[name](x), expected, atol=1e-12, rtol=0)


def test_every_name_is_defined() -> None:
    assert set(get_args(Activation)) == set(ACTIVATIONS) == set(CLOSED)
