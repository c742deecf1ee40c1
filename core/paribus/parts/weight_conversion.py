"""Conversion of the weights of another model's module at the same path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn


class ConvertedTensor(NamedTuple):
    """Converted tensor, with the method of conversion in a few words."""

    value: Tensor  # of the shape of the target
    method: str  # for the report: "2 heads repeated to 8"


class WeightConverter(ABC):
    """Module that can convert weights of another. Tensors with equal path, shape and role are copied without it.

    `convert_weights` is called when a model starts from a saved one, on modules that have their initial weights. With
    another value of an option that adds parameters, the converted model has the same output, and a conversion back
    restores the weights; the trait `exact_conversions: False` declares exceptions.
    """

    @abstractmethod
    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        """Return converted tensors of this module by name, made from `other`, the saved model's module at the same
        path.

        A tensor that is left out is copied if it fits, and otherwise keeps its initial weights.
        """


def copy_table_rows(target: Tensor, source: Tensor, offset: int = 0, source_offset: int = 0) -> ConvertedTensor | None:
    """Return a table with the rows that both tables share copied from `source`; None if no conversion is needed or
    possible.

    The tables have the same width; `offset` and `source_offset` are the first rows with the same number.
    """
    if target.shape[1:] != source.shape[1:] or (target.shape == source.shape and offset == source_offset):
        return None
    rows = min(len(target) - offset, len(source) - source_offset)
    value = target.detach().clone()
    value[offset : offset + rows] = source.detach()[source_offset : source_offset + rows]
    new_rows = len(target) - offset - rows
    method = f"the first {rows:,} of {len(source) - source_offset:,} rows kept"
    return ConvertedTensor(value, f"{method}, {new_rows:,} new" if new_rows else method)
