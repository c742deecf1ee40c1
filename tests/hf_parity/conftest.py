"""Fixtures of parity tests: random parameters, and the table of differences."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.hf_parity.cases import TOLERANCE, table
from torch import Tensor, nn

from paribus.random_keys import key32
from paribus.registry import Registry, installed

TABLE = "PARIBUS_PARITY_TABLE"


@pytest.fixture(scope="session")
def components() -> Registry:
    return installed()


@pytest.fixture(scope="session")
def randomise() -> Callable[[nn.Module], nn.Module]:
    """Randomise parameters by name, in float64: gains of 1 and biases of 0 would hide mistakes."""

    def randomise(module: nn.Module) -> nn.Module:
        module.double().eval()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                generator = torch.Generator().manual_seed(key32("twin", name))
                values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(
                    values * (parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5) + (parameter.ndim < 2)
                )
        return module

    return randomise


@pytest.fixture(scope="session")
def differences() -> Iterator[dict[tuple[str, str], float]]:
    """Largest differences by family and comparison; `make parity` writes them to docs/parity.md."""
    largest: dict[tuple[str, str], float] = {}
    yield largest
    if TABLE in os.environ:
        Path(os.environ[TABLE]).write_text(table(largest), encoding="utf-8")


@pytest.fixture
def compare(differences: dict[tuple[str, str], float]) -> Callable[[str, str, Tensor, Tensor], None]:
    """Compare two tensors, and record the largest difference of each family for the table."""

    def compare(family: str, kind: str, actual: Tensor, expected: Tensor) -> None:
        assert actual.shape == expected.shape
        difference = float((actual - expected).abs().max().detach())
        differences[family, kind] = max(difference, differences.get((family, kind), 0.0))
        assert difference <= TOLERANCE * max(1.0, float(expected.abs().max())), f"{kind} differ by {difference:.2g}"

    return compare
