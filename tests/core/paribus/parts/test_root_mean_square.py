"""Root-mean-square norm of queries and keys."""

import pytest
import torch

from paribus import RootMeanSquare


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_the_norm_divides_by_the_root_mean_square(eps: float) -> None:
    norm, x = RootMeanSquare(4, eps).double(), torch.randn(2, 3, 4, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -2.0, 0.5, 3.0]))
    expected = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * norm.weight
    assert torch.allclose(norm(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_norm_preserves_the_dtype_of_its_input(dtype: torch.dtype) -> None:
    assert RootMeanSquare(4)(torch.randn(2, 4, dtype=dtype)).dtype == dtype
