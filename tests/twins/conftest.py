"""What every twin needs: parameters that no symmetry hides, and a place for what was measured."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.twins.cases import TOLERANCE, table
from torch import Tensor, nn

from paribus.keyed import key32
from paribus.registry import Registry, installed

TABLE = "PARIBUS_PARITY_TABLE"


@pytest.fixture(scope="session")
def components() -> Registry:
    return installed()


@pytest.fixture(scope="session")
def shake() -> Callable[[nn.Module], nn.Module]:
    """A module in float64, every parameter drawn by its name: gains of 1 and biases of 0 hide what is wrong."""

    def shake(module: nn.Module) -> nn.Module:
        module.double().eval()
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                generator = torch.Generator().manual_seed(key32("twin", name))
                drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(
                    drawn * (parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5) + (parameter.ndim < 2)
                )
        return module

    return shake


@pytest.fixture(scope="session")
def differences() -> Iterator[dict[tuple[str, str], float]]:
    """The largest, by family and by what was compared; `make parity` writes them down."""
    found: dict[tuple[str, str], float] = {}
    yield found
    if TABLE in os.environ:
        Path(os.environ[TABLE]).write_text(table(found), encoding="utf-8")


@pytest.fixture
def note(differences: dict[tuple[str, str], float]) -> Callable[[str, str, Tensor, Tensor], None]:
    """Holds two tensors against one another, and keeps the largest difference of each family for the table."""

    def note(family: str, what: str, one: Tensor, other: Tensor) -> None:
        assert one.shape == other.shape
        by = float((one - other).abs().max().detach())
        differences[family, what] = max(by, differences.get((family, what), 0.0))
        assert by <= TOLERANCE * max(1.0, float(other.abs().max())), f"{what} differ by {by:.2g}"

    return note
