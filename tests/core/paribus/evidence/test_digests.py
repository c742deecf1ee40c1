"""Digests of tensors: their values depend on dtype, shape and bytes only."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import Tensor

from paribus.evidence.digests import tensor_digest


def reference(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + bytes(flat.tolist())).hexdigest()


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("layout", ["whole", "strided", "transposed", "row of a batch", "scalar", "empty"])
def test_digests_are_of_dtype_shape_and_bytes(dtype: torch.dtype, layout: str) -> None:
    matrix = torch.arange(24).reshape(4, 6).to(dtype)
    tensor = {
        "whole": matrix,
        "strided": matrix[::2],
        "transposed": matrix.T,
        "row of a batch": matrix[:, 1],
        "scalar": matrix[1, 2],
        "empty": matrix[:0],
    }[layout]
    assert tensor_digest(tensor) == reference(tensor)


def test_digests_ignore_gradients() -> None:
    values = torch.linspace(0, 1, 6)
    assert tensor_digest(values.clone().requires_grad_()) == tensor_digest(values)
