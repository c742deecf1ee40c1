"""Checks of optimizers, on a few tensors, and of learning rate schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from paribus.assembly.components import make
from paribus.slots.optimizer import Optimizer
from paribus.slots.schedule import Schedule
from paribus.testing.host_models import HOLDS, Case, HostModel, Verdict
from paribus.testing.small_model import noise

SHAPES: Final = ((6, 4), (3, 6), (5,))
STEPS: Final = 6
PRECISION: Final = 1e-3  # of float32, relative to the movement of a tensor


def optimizer_steps(case: Case, host: HostModel) -> Verdict:
    """Steps descend, scale with the rate of the group, resume bitwise, and depend on their own tensor only.

    Only matrices decay. Steps in float32 equal those in float64.
    """
    node = host.spec["optimizer"]
    run = OptimizerRun(case, node)
    expected = run.steps()
    single = torch.float32  # torch casts states to the dtype of the tensor when it loads them
    in_single = run.steps(dtype=single)
    torch.manual_seed(1)
    checks = (
        ("two runs of the same steps differ; expected no random draw", _differ(run.steps(), expected)),
        ("steps in another order of tensors differ", _differ(run.steps(reverse=True), expected)),
        ("steps differ after the state is saved and loaded", _differ(run.steps(resume=True, dtype=single), in_single)),
        ("a learning rate of 0 changes a tensor; use the rate of the group", _differ(run.steps(lr=0.0), run.start())),
        ("a tensor without a gradient changes", _differ(run.steps(without_gradient=True)[:1], run.start()[:1])),
        ("a vector decays; expected matrices only", _differ(run.steps(scale=0.0)[2:], run.start()[2:])),
    )
    for message, failed in checks:
        if failed:
            return message
    for tensor, start in zip(run.steps(count=1), run.start(), strict=True):
        gradient = run.gradient(0, start)
        if float(((tensor - start) * gradient).sum()) >= 0:
            return "the first step does not descend along the gradient"
    for double, rounded, start in zip(expected, in_single, run.start(), strict=True):
        error = float((double - rounded.double()).norm() / (double - start).norm())
        if not error <= PRECISION:
            return f"steps in float32 differ from steps in float64 by {error:.2g} of the movement"
    if "weight_decay" in node:
        decayed = OptimizerRun(case, {**node, "weight_decay": 0.5}).steps(scale=0.0)[:2]
        if any(
            float(tensor.norm()) >= float(start.norm()) for tensor, start in zip(decayed, run.start(), strict=False)
        ):
            return "without a gradient and with a `weight_decay` of 0.5, a matrix does not become smaller"
    return HOLDS


@final
class OptimizerRun:
    """Steps of an optimizer on two matrices and a vector, with fixed gradients."""

    def __init__(self, case: Case, node: Any) -> None:
        self.optimizer = make(case.registry, "optimizer", node, kind=Optimizer)

    @staticmethod
    def start() -> list[Tensor]:
        return [noise(f"tensor {index}", *shape) for index, shape in enumerate(SHAPES)]

    @staticmethod
    def gradient(step: int, like: Tensor) -> Tensor:
        return noise(f"gradient {step}", *like.shape).to(like.dtype)

    def steps(
        self,
        *,
        count: int = STEPS,
        dtype: torch.dtype = torch.float64,
        scale: float = 1.0,
        lr: float | None = None,
        reverse: bool = False,
        resume: bool = False,
        without_gradient: bool = False,
    ) -> list[Tensor]:
        """Return the tensors after some steps; `scale` multiplies the gradients."""
        tensors = [nn.Parameter(tensor.to(dtype)) for tensor in self.start()]
        optimizer = self._build(tensors, reverse=reverse)
        for step in range(count):
            if resume and step == count // 2:
                state = optimizer.state_dict()
                optimizer = self._build(tensors, reverse=reverse)
                optimizer.load_state_dict(state)
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] if lr is None else lr
            for tensor in tensors:
                tensor.grad = scale * self.gradient(step, tensor)
            if without_gradient:
                tensors[0].grad = None
            with torch.enable_grad():
                optimizer.step()
        return [tensor.detach() for tensor in tensors]

    def _build(self, tensors: Sequence[nn.Parameter], *, reverse: bool) -> torch.optim.Optimizer:
        matrices = [tensor for tensor in tensors if tensor.ndim >= 2]
        vectors = [tensor for tensor in tensors if tensor.ndim < 2]
        return self.optimizer.build(matrices[::-1] if reverse else matrices, vectors)


def _differ(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return any(not torch.equal(tensor, other) for tensor, other in zip(tensors, others, strict=True))


def learning_rates(case: Case, host: HostModel) -> Verdict:
    """Each factor of a schedule is finite and at least 0, and depends only on the step and the number of steps."""
    schedule, reordered_schedule = (
        make(case.registry, "schedule", host.spec["schedule"], kind=Schedule) for _ in range(2)
    )
    for steps in (1, 2, 100):
        factors = [schedule.factor(step, steps) for step in range(steps)]
        for step in sorted(range(steps), key=lambda step: step * 37 % 101):
            factor = factors[step]
            if isinstance(factor, Tensor) or not (math.isfinite(factor) and factor >= 0):
                return f"the factor at step {step} of {steps} is {factor}; expected a finite number, at least 0"
            if schedule.factor(step, steps) != factor or reordered_schedule.factor(step, steps) != factor:
                return f"two calls for step {step} of {steps} give different factors, so a run could not be resumed"
        if not any(factors):
            return f"the factor of all {steps} steps is 0; expected a positive factor at some step"
    return HOLDS
