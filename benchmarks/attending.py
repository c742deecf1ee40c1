"""Runs of a single attention at any length: a whole sublayer, or only the part between its projections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from benchmarks import gpu_setup
from torch import Tensor

from paribus import Position, Stack, TokenLayout
from paribus.assembly.components import make
from paribus.complexity.sublayer import Candidate, Size, node_of
from paribus.kernels import KERNELS
from paribus.kernels.sdpa import Sdpa
from paribus.parts.context import AttentionPlan, Kernel
from paribus.parts.stack import Layer
from paribus.registry import Registry
from paribus.slots.attention import Attention
from paribus.specs.fields import NO_POSITION

WIDTH, HEADS = 128, 2  # heads of 64, as in most models

Scope = Literal["sublayer", "mixing", "pass"]


class Job(NamedTuple):
    """Attention and sizes of a run, as plain values that another process can receive."""

    attention: str
    options: Mapping[str, Any]
    rows: int
    backward: bool
    scope: Scope = "sublayer"
    masked: bool = False  # use a mask of all pairs, as without a kernel for windows


def sample(registry: Registry, name: str) -> dict[str, Any]:
    """Return sample values of the required options of an attention."""
    options = registry.index.find("attention", name).options
    return {option.name: option.sample for option in options if option.required}


def stack_of(
    registry: Registry, job: Job, *, width: int = WIDTH, heads: int = HEADS, kernels: Sequence[Kernel] = KERNELS
) -> Stack:
    """Return a stack of one layer with only an attention."""
    size = Size(job.rows, width, heads)
    node = node_of(registry, Candidate(job.attention, job.attention, job.options), size)
    torch.manual_seed(0)
    layer = Layer(
        attention=make(registry, "attention", node, size.shape, kind=Attention),
        feedforward=None,
        placement=None,
        dropout=0.0,
    )
    position = make(registry, "position", {"name": NO_POSITION}, size.shape, kind=Position)
    return Stack(size.shape, [layer], [position], [(position, None)], None, (Sdpa(),) if job.masked else kernels)


def mixer(registry: Registry, job: Job, *, heads: int = HEADS) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the part of an attention between its projections, with heads of 64: a function of q, k and v.

    Data that layers share, such as a mask, is computed within each `pass`, and in advance for `mixing`.
    """
    width = heads * WIDTH // HEADS
    stack = stack_of(registry, job, width=width, heads=heads)
    rows, like = TokenLayout(torch.arange(job.rows).unsqueeze(0)), torch.empty(1, job.rows, width)

    def shared() -> AttentionPlan:
        return stack.planner.plans(like, rows, rows, 0, None, False)[0]

    def mixed(q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan | None = None) -> Tensor:
        plan = plan or shared()
        return plan.kernel(q, k, v, plan, None, 0.0)

    return mixed if job.scope == "pass" else partial(mixed, plan=shared())


def runner(registry: Registry, job: Job) -> Callable[[], object]:
    """Return a function that runs forward, or forward and backward, in the scope of a job."""
    if job.scope == "sublayer":
        stack = stack_of(registry, job)
        rows, x = TokenLayout(torch.arange(job.rows).unsqueeze(0)), torch.randn(1, job.rows, WIDTH)
        return runnable(lambda x: stack(x, rows).hidden, x, backward=job.backward)
    mixed = mixer(registry, job)
    return runnable(mixed, *(torch.randn(1, HEADS, job.rows, WIDTH // HEADS) for _ in range(3)), backward=job.backward)


def peak_job(*, small: bool, **job: Any) -> Callable[[], object]:
    """Return the runner of a job that `peak.py` measures, or of a small one that loads the libraries."""
    read = Job(**job)
    return runner(gpu_setup.registry(), read._replace(rows=512) if small else read)


def runnable(forward: Callable[..., Tensor], *inputs: Tensor, backward: bool) -> Callable[[], object]:
    """Return a function that runs forward, or forward and backward."""
    if not backward:
        return torch.no_grad()(lambda: forward(*inputs))
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        y = forward(*leaves)
        y.backward(torch.ones_like(y))

    return run
