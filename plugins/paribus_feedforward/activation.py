"""Activations by name, for every feed-forward of this plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "sigmoid", "tanh"]

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,  # x Φ(x), by erf: BERT
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),  # tanh approximation: GPT-2
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}
