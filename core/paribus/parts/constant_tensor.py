"""Tensors of numbers that a component computes from its options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

Numbers: TypeAlias = Sequence[float] | Sequence[Sequence[float]]


@final
class ConstantTensor:
    """Numbers as a tensor, copied once to each device.

    `torch.tensor(numbers, device=…)` in a forward pass makes the CPU wait for the device each time. A buffer would be
    cast with the model, and is part of its state.
    """

    def __init__(self, numbers: Numbers, dtype: torch.dtype) -> None:
        self.numbers = numbers
        self.dtype = dtype
        self._copies: dict[tuple[Any, ...], Tensor] = {}  # by the kind and device of the tensors it is used with

    def __reduce__(self) -> tuple[type[ConstantTensor], tuple[Numbers, torch.dtype]]:
        return ConstantTensor, (self.numbers, self.dtype)  # without the copies, which are no value of it

    def like(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return the numbers on the device of a tensor, in a dtype other than their own if given."""
        if torch.compiler.is_compiling() or isinstance(tensor, FakeTensor) or tensor.is_meta:
            return self._copied(tensor.device, dtype)
        key = (type(tensor), tensor.device, dtype)
        if key not in self._copies:
            with torch.inference_mode(
                False
            ):  # a copy that is made in a forward pass without gradients is used in others
                self._copies[key] = self._copied(tensor.device, dtype)
        return self._copies[key]

    def _copied(self, device: torch.device, dtype: torch.dtype | None) -> Tensor:
        return torch.tensor(self.numbers, dtype=self.dtype, device=device).to(dtype or self.dtype)
