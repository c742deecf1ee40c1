"""How a module makes its own tensors of those that another model has in its place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn


class ConvertedTensor(NamedTuple):
    """A tensor that was made of another, and how, in a few words."""

    value: Tensor
    method: str


class WeightConverter(ABC):
    """A module that can convert. What has the same path, shape and role in both models is kept without being asked.

    `adopt` is called when a model begins from a saved one, on modules that have their first values already.
    """

    @abstractmethod
    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        """Tensors of this module's shapes, by their names in it, of what `other` has, which stood at the same path.

        Only what is to be converted: what is left out is kept where it fits, and else keeps its first value.
        """


def copy_table_rows(own: Tensor, theirs: Tensor, offset: int = 0, their_offset: int = 0) -> ConvertedTensor | None:
    """A table of more or fewer rows of the same width: the rows that both have are kept, the others are new.

    `offset` is where the first row stands that both number alike. None: they are equally long, or otherwise unlike.
    """
    if own.shape[1:] != theirs.shape[1:] or (own.shape == theirs.shape and offset == their_offset):
        return None
    rows = min(len(own) - offset, len(theirs) - their_offset)
    value = own.detach().clone()
    value[offset : offset + rows] = theirs.detach()[their_offset : their_offset + rows]
    new = len(own) - offset - rows
    how = f"the first {rows:,} of {len(theirs) - their_offset:,} rows kept"
    return ConvertedTensor(value, f"{how}, {new:,} new" if new else how)
