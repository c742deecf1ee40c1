"""Checksums of the bits of parameters, to see which of them change."""

from __future__ import annotations

import zlib
from typing import Final

import torch
from torch import Tensor

_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def parameter_bits(model: torch.nn.Module) -> Tensor:
    """Return a checksum of the bits of each parameter, which depends on their order; comparable on one device."""
    tensors = [parameter.detach() for parameter in model.parameters()]
    return torch.stack([crc32(tensor) if tensor.device.type == "cpu" else sum_of_bits(tensor) for tensor in tensors])


def crc32(tensor: Tensor) -> Tensor:
    """Return the CRC-32 of a tensor on a CPU, where it takes a ninth of the time of `sum_of_bits`."""
    return torch.tensor(zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data))


def sum_of_bits(tensor: Tensor) -> Tensor:
    """Return a checksum of a tensor on any device, which need not be synchronized for it."""
    words = _WORDS[min(tensor.element_size(), 4)]  # a sum of larger ones loses their highest bit
    bits = tensor.contiguous().reshape(-1).view(words)
    count = max(1, tensor.shape[0]) if tensor.dim() else 1
    matrix = bits.reshape(count, bits.numel() // count)
    rows, columns = (matrix.sum(axis, dtype=torch.int64) for axis in (1, 0))
    weights = (torch.arange(1, len(sums) + 1, device=tensor.device) for sums in (rows, columns))
    return sum(
        ((sums * weight).sum() for sums, weight in zip((rows, columns), weights, strict=True)), rows.new_zeros(())
    )
