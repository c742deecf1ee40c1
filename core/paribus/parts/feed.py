"""What a row reads in place of its own token, where a model that writes is fed its own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Fed(NamedTuple):
    """What the rows of one place read."""

    tokens: Tensor  # (B,)
    rest: Tensor | None = None  # (B, V): what is to be added to those tokens' weights; each row sums to nothing


Feed = Callable[[int, Tensor], Fed | None]
"""Of a place, and of what was said at the one before it, (B, R): what is read there; None: the tokens that it has."""
