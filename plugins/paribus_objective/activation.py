"""Activations by name, for the heads of this plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from torch import Tensor
from torch.nn import functional

Activation = Literal["gelu", "gelu-tanh", "relu"]

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}
