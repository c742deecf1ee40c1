"""Random draws, and descriptions of parameters."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paribus import ParameterInfo, Role


@pytest.fixture
def parameter_info() -> Callable[..., ParameterInfo]:
    def make(
        role: Role = "weight",
        shape: tuple[int, ...] = (300, 200),
        branches: int = 24,
        gain: float = 1.0,
        path: str = "body.layers.0.some.weight",
    ) -> ParameterInfo:
        return ParameterInfo(path, role, shape, layers=12, branches=branches, gain=gain, width=200, head_width=25)

    return make


@pytest.fixture
def unit() -> Tensor:
    """Draw 60 000 numbers: their standard deviation is within 1 % of 1, at three standard errors."""
    return torch.randn(300, 200, generator=torch.Generator().manual_seed(3))
