"""What the `transformers` library calls activations, and what they are called here."""

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
}
OF_HEADS: Mapping[str, str] = {
    theirs: ours for theirs, ours in ACTIVATIONS.items() if ours in ("gelu", "gelu-tanh", "relu")
}
"""Those that a head has as well which predicts what was hidden."""
