"""Activation names of the `transformers` library and of Paribus."""

from __future__ import annotations

from collections.abc import Mapping

ACTIVATIONS: Mapping[str, str] = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "relu2": "relu2",
}
HEAD_ACTIVATIONS: Mapping[str, str] = {
    hf_name: name for hf_name, name in ACTIVATIONS.items() if name in ("gelu", "gelu-tanh", "relu")
}
"""Activations that the heads of masked language models have too."""
