"""Measured time and memory of a forward pass, or a forward and backward pass, through one attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from paribus.complexity.counting import Node
from paribus.complexity.rounds import cpu_time
from paribus.complexity.sublayer import Size, forward, stack_of, with_weights
from paribus.parts.stack import Stack
from paribus.registry import Registry
from paribus.train.step_memory import LiveBytes

MIN_SECONDS: Final = 0.005  # of one timing: shorter passes are repeated


def make_pass(registry: Registry, node: Node, size: Size, device: str, *, backward: bool) -> Callable[[], object]:
    """Return a function that runs an attention with its initial weights, on a sequence of noise."""
    return _pass(*_inputs(registry, node, size, device, backward=backward), backward=backward)


def _inputs(registry: Registry, node: Node, size: Size, device: str, *, backward: bool) -> tuple[Stack, Tensor]:
    """Return the stack and the sequence of noise."""
    stack = with_weights(stack_of(registry, node, size), registry).to(device).train(backward)
    return stack, torch.randn(1, size.length, size.width, generator=torch.Generator().manual_seed(0)).to(device)


def _pass(stack: Stack, x: Tensor, *, backward: bool) -> Callable[[], object]:
    if not backward:
        return torch.no_grad()(lambda: forward(stack, x))
    leaf = x.requires_grad_()

    def run() -> None:
        stack.zero_grad()
        leaf.grad = None
        y = forward(stack, leaf)
        if y.requires_grad:
            y.backward(torch.ones_like(y))

    return run


def current_device(device: str) -> AbstractContextManager[Any]:
    """Return the context in which a CUDA device is the current one, on whose stream events are recorded."""
    return torch.cuda.device(device) if torch.device(device).type == "cuda" else nullcontext()


def clock(device: str) -> Callable[[Callable[[], object]], float]:
    """Return the clock of a device: CPU seconds of this process, or seconds between two events of
    the current CUDA device's stream."""
    return _cuda_time if torch.device(device).type == "cuda" else cpu_time


def _cuda_time(run: Callable[[], object]) -> float:
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    started.record()
    run()
    ended.record()
    torch.cuda.synchronize()
    return float(started.elapsed_time(ended)) / 1e3


def repeated(run: Callable[[], object], seconds: float) -> tuple[Callable[[], object], int]:
    """Return a function that repeats a pass of so many seconds until the clock can measure it, and the repetitions."""
    count = max(1, math.ceil(MIN_SECONDS / max(seconds, 1e-6)))

    def repeat() -> None:
        for _ in range(count):
            run()

    return (repeat, count) if count > 1 else (run, 1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch in one thread, whose CPU time other processes do not change."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def peak_bytes(
    registry: Registry, node: Node, size: Size, device: str, *, backward: bool, with_data: bool = False
) -> int:
    """Return the most bytes that the tensors of a pass occupy at once: input, activations, gradients, no parameters.

    On a CPU the storages of tensors are counted while they live: of tensors without data, unless the pass needs their
    values or `with_data` is set; on CUDA it is what torch's allocator has given out.
    """
    if torch.device(device).type == "cuda":
        return _cuda_peak(registry, node, size, device, backward=backward)
    with suppress(Exception):  # any, of any component: a pass that needs values runs with them
        if not with_data:
            fake = FakeTensorMode(allow_non_fake_inputs=True)
            return _live_peak(registry, node, size, fake, backward=backward)
    return _live_peak(registry, node, size, None, backward=backward)


def _live_peak(registry: Registry, node: Node, size: Size, fake: FakeTensorMode | None, *, backward: bool) -> int:
    stack = stack_of(registry, node, size).train(backward)
    mode: Any = fake or nullcontext()
    if fake is None:
        with_weights(stack, registry)
    else:
        with fake:
            stack.to_empty(device="cpu")
    live = LiveBytes()
    for tensor in (*stack.parameters(), *stack.buffers()):
        live.add(tensor)
    resting = live.now
    with mode, live:
        _pass(stack, torch.empty(1, size.length, size.width), backward=backward)()
    return live.peak - resting


def _cuda_peak(registry: Registry, node: Node, size: Size, device: str, *, backward: bool) -> int:
    stack, x = _inputs(registry, node, size, device, backward=backward)
    run = _pass(stack, x, backward=backward)
    run()  # workspaces of libraries are allocated once
    stack.zero_grad()
    x.grad = None
    torch.cuda.synchronize(device)
    resting = torch.cuda.memory_allocated(device) - x.nbytes
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device)) - resting
