"""Activations by name, for every feed-forward of this plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "sigmoid", "tanh", "relu2", "leaky-relu2"]


def squared_relu(x: Tensor, slope: float = 0.0) -> Tensor:
    """Return max(x, slope x)²; slope 0: "Primer" (So et al. 2021)."""
    return functional.leaky_relu(x, slope).square()


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,  # x Φ(x), by erf: BERT
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),  # tanh approximation: GPT-2
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu2": squared_relu,
    "leaky-relu2": partial(squared_relu, slope=0.5),  # max(x, x / 2)²
}
