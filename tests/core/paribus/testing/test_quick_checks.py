"""A model of the matrix that has one fault is told of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import Context
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.testing.host_models import SMALL_SIZES
from paribus.testing.quick_checks import quick_faults
from paribus.testing.small_model import SmallModel

Faulty = Callable[..., Any]
Told = Callable[..., list[str]]


@pytest.fixture
def told(components: Registry, attention: Faulty) -> Told:
    """What is found of a small model whose attention has these members."""

    def told(preset: str, **replaced: Any) -> list[str]:
        registry = components.with_components(attention={"faulty": attention(**replaced)})
        spec = resolved({"preset": preset, **SMALL_SIZES, "dims.layers": 1, "attention": "faulty"}, registry=registry)
        return quick_faults(SmallModel(spec, registry))

    return told


def plain(self: Any, x: Tensor, ctx: Context) -> Any:
    return self.heads.merge(self.attend(self.heads, x, ctx))


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny", "seq2seq-tiny"])
def test_one_without_a_fault_is_told_of_none(preset: str, told: Told) -> None:
    assert not told(preset)


FAULTS: dict[str, tuple[str, Any]] = {
    "before it, by": ("gpt-tiny", lambda self, x, ctx: plain(self, x, ctx) + x.flip(1)),
    "no gradient reaches `body.layers.0.attention.heads.q.weight`": (
        "encoder-tiny",
        lambda self, x, ctx: self.heads.o(self.heads.v(x).mean(1, keepdim=True) + 0 * plain(self, x, ctx).detach()),
    ),
    "decoded in chunks of (5, 1, 1) differ by": (
        "gpt-tiny",
        lambda self, x, ctx: plain(self, x, ctx) * (1 + torch.arange(x.shape[1])).unsqueeze(-1),
    ),
    "7 rows with 3 of padding on the right differ by": (
        "encoder-tiny",
        lambda self, x, ctx: plain(self, x, ctx) + x.sum(1, keepdim=True),
    ),
    "its rows are not finite": ("encoder-tiny", lambda self, x, ctx: plain(self, x, ctx) / 0),
    "changing token 0 moves no other row": ("encoder-tiny", lambda self, x, ctx: self.heads.o(self.heads.v(x))),
}


@pytest.mark.parametrize(("words", "fault"), FAULTS.items(), ids=FAULTS)
def test_a_fault_is_told_of(words: str, fault: tuple[str, Any], told: Told) -> None:
    preset, forward = fault
    assert any(words in found for found in told(preset, forward=forward))
