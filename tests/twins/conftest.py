"""What every twin needs: our model of a spec, and parameters that no symmetry hides."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paribus.keyed import key32
from paribus.registry import Registry, installed
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved
from paribus.train.assemble import assembled
from paribus.train.model import Model


@pytest.fixture(scope="session")
def components() -> Registry:
    return installed()


@pytest.fixture(scope="session")
def assemble(components: Registry) -> Callable[..., Model]:
    """A preset with overrides, in float64 and without dropout, for 37 tokens."""
    names = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
    vocabulary = Vocabulary(37, {name: at for at, name in enumerate(names)})

    def assemble(preset: str, *overrides: str) -> Model:
        spec = resolved(preset, "dims.vocabulary=null", "dropout=0", *overrides, registry=components)
        return assembled(spec, components, vocabulary).double().eval()

    return assemble


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
def numel() -> Callable[[nn.Module], int]:
    """How many numbers a module learns: what is tied counts once."""

    def numel(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    return numel


@pytest.fixture(scope="session")
def padded() -> Callable[..., tuple[Tensor, Tensor]]:
    """Tokens of three lengths, filled up on one side, and where they are text, both (3, 11)."""

    def padded(side: str) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(5)
        tokens = torch.randint(7, 37, (3, 11), generator=generator)
        lengths = torch.tensor([[11], [4], [7]])
        place = torch.arange(11)
        text = place < lengths if side == "right" else place >= 11 - lengths
        return tokens.where(text, 0), text

    return padded
