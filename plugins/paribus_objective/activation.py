"""Activations of prediction heads, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from torch import Tensor
from torch.nn import functional

ActivationFunction = Callable[[Tensor], Tensor]
Activation = Literal["gelu", "gelu-tanh", "relu"]

ACTIVATIONS: Mapping[Activation, ActivationFunction] = {
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}
