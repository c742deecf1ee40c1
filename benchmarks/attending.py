"""One attention by itself, at any length: as a sublayer with its projections, or only what is between these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor

from paribus import Cost, FeedForward, Load, Placement, PlacementTraits, Position, Shape, Stack, Sublayer, TokenLayout
from paribus.assembly.components import make
from paribus.kernels import KERNELS
from paribus.kernels.sdpa import Sdpa
from paribus.parts.context import AttentionPlan, Kernel
from paribus.parts.layer import Layer
from paribus.registry import Registry
from paribus.slots.attention import Attention
from paribus.specs import resolved

WIDTH, HEADS = 128, 2  # heads of 64, as in most models

Scope = Literal["sublayer", "mixing", "pass"]


class Job(NamedTuple):
    """What is run: plain values, so that another process can be told."""

    attention: str
    options: Mapping[str, Any]
    rows: int
    backward: bool
    scope: Scope = "sublayer"
    masked: bool = False  # computed with a mask for all pairs of rows, as where no kernel knows of windows


@final
class Alone(Placement):
    """The attention and nothing else."""

    traits: ClassVar[PlacementTraits] = {"final_norm": False}

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        return sublayers["attention"](x)


@final
class Idle(FeedForward):
    """Is never run."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return x, None

    def cost(self, load: Load) -> Cost:
        return Cost()


def sample(registry: Registry, name: str) -> dict[str, Any]:
    """The options that an attention cannot be built without, as its author's examples give them."""
    options = registry.index.find("attention", name).options
    return {option.name: option.sample for option in options if option.required}


def stack_of(registry: Registry, job: Job) -> Stack:
    """A stack of one layer that is one attention."""
    attention = {"name": job.attention, **job.options}
    spec = resolved("encoder-tiny", "position=none", f"dims.width={WIDTH}", f"dims.heads={HEADS}", registry=registry)
    spec = resolved({**spec, "dims": {**spec["dims"], "length": job.rows}, "attention": attention}, registry=registry)
    shape = Shape(WIDTH, HEADS, WIDTH // HEADS, job.rows, vocabulary=2, layers=1, layer=0)
    torch.manual_seed(0)
    layer = Layer(
        attention=make(registry, "attention", spec["attention"], shape, kind=Attention),
        feedforward=Idle(),
        placement=Alone(),
        dropout=0.0,
    )
    position = make(registry, "position", spec["position"], shape, kind=Position)
    kernels: Sequence[Kernel] = (Sdpa(),) if job.masked else KERNELS
    return Stack(shape, [layer], [position], [(position, None)], None, kernels)


def runner(registry: Registry, job: Job) -> Callable[[], object]:
    """Forward, or forward and backward: of a sublayer, or of what is between its projections.

    What the layers of a stack share, such as a mask, is made again in each `pass`, and has been made for `mixing`.
    """
    stack = stack_of(registry, job)
    rows = TokenLayout(torch.arange(job.rows).unsqueeze(0))
    if job.scope == "sublayer":
        x = torch.randn(1, job.rows, WIDTH)
        return _run(lambda: stack(x, rows).hidden, x, job.backward)
    q, k, v = (torch.randn(1, HEADS, job.rows, WIDTH // HEADS) for _ in range(3))
    like = torch.empty(1, job.rows, WIDTH)

    def shared() -> AttentionPlan:
        return stack.planner.plans(like, rows, rows, 0, None, False)[0]

    def mixed(plan: AttentionPlan) -> Tensor:
        return plan.kernel(q, k, v, plan, None, 0.0)

    if job.scope == "pass":
        return _run(lambda: mixed(shared()), (q, k, v), job.backward)
    made = shared()
    return _run(lambda: mixed(made), (q, k, v), job.backward)


def _run(forward: Callable[[], Tensor], leaves: Tensor | tuple[Tensor, ...], backward: bool) -> Callable[[], object]:
    given = (leaves,) if isinstance(leaves, Tensor) else leaves
    if not backward:
        return torch.no_grad()(forward)
    for leaf in given:
        leaf.requires_grad_()

    def run() -> None:
        for leaf in given:
            leaf.grad = None
        y = forward()
        y.backward(torch.ones_like(y))

    return run
