"""What every part of a layer comes to: a model with it learns one batch by heart."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import paribus
from paribus.registry import installed

pytestmark = pytest.mark.slow

TINY = ("dims.width=32", "dims.heads=4", "dims.layers=2", "dims.length=16", "dims.vocabulary=300")
ROWS_OF_SIZE_1 = ("embedding.scale=true", "initialisation=xavier")  # for what does not norm them
SLOTS = ("norm", "placement", "feedforward", "initialisation")
STEPS = 200


def parts() -> Iterator[Any]:
    index = installed(no_plugins=True).index
    for slot in SLOTS:
        for name in index.names(slot):
            yield pytest.param(slot, name, id=f"{slot}.{name}")


@pytest.fixture(scope="module")
def text() -> Tensor:
    """(4, 16) tokens that begin differently, so that each is decided by those before it."""
    tokens = torch.randint(0, 32, (4, 16), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = torch.arange(4) + 40
    return tokens


@pytest.fixture(scope="module")
def learned(text: Tensor) -> Callable[..., float]:
    """The loss that is left after some steps, with the spec's own optimizer at a constant rate."""

    def learn(*overrides: str) -> float:
        model = paribus.assemble(paribus.spec("gpt-tiny", *TINY, *ROWS_OF_SIZE_1, *overrides))
        parameters = list(model.parameters())
        optimizer = model.optimizer.build([p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim < 2])
        for _ in range(STEPS):
            scores, _ = model(text[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert all(parameter.grad is not None for parameter in parameters)
        return loss.item()

    return learn


@pytest.mark.parametrize(("slot", "name"), list(parts()))
def test_one_batch_is_learned_by_heart(slot: str, name: str, learned: Callable[..., float]) -> None:
    assert learned(f"{slot}={name}") < 0.05


@pytest.mark.parametrize("overrides", [("feedforward=moe", "feedforward.top=1", "feedforward.softmax=all")])
def test_so_it_is_by_a_switch(overrides: tuple[str, ...], learned: Callable[..., float]) -> None:
    assert learned(*overrides) < 0.05
