"""Activations by name, for the heads of this plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from torch import Tensor
from torch.nn import functional

Curve = Callable[[Tensor], Tensor]
Activation = Literal["gelu", "gelu-tanh", "relu"]

ACTIVATIONS: Mapping[Activation, Curve] = {
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}
