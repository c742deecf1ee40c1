"""What a parameter is for, as an initialisation is told."""

from __future__ import annotations

from typing import Literal

Role = Literal[
    "query",  # scored against keys
    "key",
    "value",
    "residual",  # writes into the residual stream
    "inner",  # widens a feed-forward
    "embedding",  # a table that is looked up
    "head",  # an objective's own projection
    "weight",  # any other matrix
    "bias",  # starts at 0
    "gain",  # multiplies; starts at 1
]
