"""Tracing of a training step's loss as one graph: a quick check, which `test_compile` makes for every kind of model."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from paribus.datamodule.data import Data
from paribus.models.lightning_module import Model

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # dynamo's own
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # the same
]


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.few(1)
@pytest.mark.parametrize("preset", ["gpt-tiny", "bert-tiny", "deberta-tiny"])
def test_the_loss_is_traced_into_one_graph(
    preset: str, assemble: Callable[..., Model], feed: Callable[..., Data]
) -> None:
    model, batch = assemble(preset), feed(preset).step(0)
    loss: Any = torch.compile(model.loss, backend="eager", fullgraph=True)
    assert torch.equal(loss(batch), model.loss(batch))
