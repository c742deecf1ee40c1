"""P1: overhead of a model that is assembled from components over a hand-written one."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from benchmarks import floors
from benchmarks.claims import Claim, counted
from benchmarks.paired import ratio
from torch import Tensor, nn

import paribus
from paribus.parts.batch import Batch

LIMIT = 1.02
DELAY = 0.05  # share by which the contrast is slower than the floor


class Case(NamedTuple):
    """Preset with a topology and objective, and the floor with the same mathematics."""

    preset: str
    floor: Callable[..., nn.Module]


class Size(NamedTuple):
    """Sizes of a model; the small one shows the overhead of Python, the large one that of a study."""

    width: int
    layers: int
    length: int
    batch: int
    vocabulary: int | None  # None: bytes

    def __str__(self) -> str:
        words = "bytes" if self.vocabulary is None else f"V {self.vocabulary}"
        return f"d {self.width}, L {self.layers}, n {self.length}, batch {self.batch}, {words}"


CASES = {
    "encoder, mlm": Case("encoder-tiny", floors.Encoder),
    "decoder, clm": Case("gpt-tiny", floors.Decoder),
    "encoder-decoder, span-corruption": Case("seq2seq-tiny", floors.EncoderDecoder),
}
LARGE, SMALL = Size(256, 4, 128, 1, 8192), Size(64, 2, 64, 32, None)
HEADS = 4


@pytest.mark.parametrize("size", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("case", CASES)
def test_step_eager(bench: Any, case: str, size: Size) -> None:
    assembled, floor, batch = build_case(case, size)
    twin = copy.deepcopy(floor)
    measure(
        bench,
        f"{case}, eager, {size}",
        assembled=step(assembled.loss, assembled, batch),
        floor=step(floor, floor, batch),
        twin=step(twin, twin, batch),
    )


@pytest.mark.parametrize("case", CASES)
def test_step_compiled(bench: Any, case: str) -> None:
    assembled, floor, batch = build_case(case, LARGE)
    torch.compiler.reset()
    breaks: int = torch._dynamo.explain(assembled.loss)(batch).graph_break_count
    bench.claim(counted("P1", f"{case}, graph breaks", breaks))
    torch.compiler.reset()
    hand = torch.compile(floor, fullgraph=True)
    measure(
        bench,
        f"{case}, compiled, {LARGE}",
        assembled=step(torch.compile(assembled.loss, fullgraph=True), assembled, batch),
        floor=step(hand, floor, batch),
        twin=step(hand, floor, batch),
    )


def build_case(case: str, size: Size) -> tuple[Any, nn.Module, Batch]:
    """Return a model, its floor with the same weights, and a batch; loss and gradients of both are equal."""
    preset, make = CASES[case]
    overrides = [
        f"dims.width={size.width}",
        f"dims.layers={size.layers}",
        f"dims.heads={HEADS}",
        f"dims.length={size.length}",
        f"data.batch={size.batch}",
        *([f"dims.vocabulary={size.vocabulary}"] if size.vocabulary else []),
    ]
    spec = paribus.spec(preset, *overrides)
    assembled, batch = paribus.assemble(spec), paribus.data(spec).step(0)
    tensors = assembled.state_dict()
    floor = make(size.width, size.layers, HEADS, size.length, len(tensors["embedding.tokens.weight"]))
    names = floors.copy_weights(tensors, floor)
    assert_equal_gradients(assembled, floor, batch, names)
    return assembled, floor, batch


def assert_equal_gradients(assembled: Any, floor: nn.Module, batch: Batch, names: dict[str, str]) -> None:
    """Assert that both have the same loss and gradients, so that their times are comparable."""
    losses = assembled.loss(batch), floor(batch)
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    by_hand = dict(floor.named_parameters())
    for name, parameter in assembled.named_parameters():
        torch.testing.assert_close(parameter.grad, by_hand[names[name]].grad, rtol=1e-3, atol=1e-5)


def step(loss: Callable[[Batch], Tensor], module: nn.Module, batch: Batch) -> Callable[[], None]:
    """Return a function that runs forward and backward; the optimizer step is equal for both and left out."""

    def run() -> None:
        module.zero_grad(set_to_none=True)
        loss(batch).backward()

    return run


def measure(
    bench: Any, claim_name: str, *, assembled: Callable[[], None], floor: Callable[[], None], twin: Callable[[], None]
) -> None:
    def delayed() -> None:
        start = time.process_time()
        floor()
        end = start + (time.process_time() - start) * (1 + DELAY)
        while time.process_time() < end:
            pass

    times = bench.rounds({"assembled": assembled, "floor": floor, "twin": twin, "contrast": delayed})
    bench.claim(
        Claim(
            "P1",
            claim_name,
            ratio(times["assembled"], times["floor"]),
            limit=LIMIT,
            twin=ratio(times["twin"], times["floor"]),
            contrast=ratio(times["contrast"], times["floor"]),
        )
    )
