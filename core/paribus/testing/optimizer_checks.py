"""Checks of optimizers, on a few tensors, and of learning rate schedules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal, final

import torch
from torch import Tensor, nn

from paribus.assembly.components import make
from paribus.parts.shape import Role
from paribus.slots.optimizer import Optimizer, TrainedTensor
from paribus.slots.schedule import Schedule
from paribus.testing.host_models import HOLDS, Case, HostModel, Verdict
from paribus.testing.option_specs import Spec, option_specs
from paribus.testing.small_model import noise

TENSORS: Final[tuple[tuple[Role, tuple[int, ...]], ...]] = (
    ("weight", (6, 4)),
    ("residual", (3, 6)),
    ("bias", (5,)),
    ("embedding", (7, 4)),
    ("inner", (2, 4, 3)),  # a stack of matrices
)
VECTOR: Final = 2  # index of the tensor that does not decay
STEPS: Final = 6
HORIZON: Final = 320  # steps of a longer run
CHANGING_RATES: Final = [0.55 + 0.45 * math.cos(0.17 * step) for step in range(HORIZON)]  # relative to the first one
VALUES: Final = 1  # other values of a numeric option, for which steps are checked
RUNS: Final = (1, 2, 10, 100)  # numbers of steps
ROUNDING: Final = 1e-12
Change = Literal["", "reversed", "resumed", "one without gradient", "closure", "gradients set to 0", "evaluated"]
PRECISION: Final = 1e-3  # of float32, relative to the movement of a tensor
EPSILON: Final = torch.finfo(torch.float32).eps
LONG_PRECISION: Final = 1e-2  # the same over the longer run


def optimizer_steps(case: Case, host: HostModel) -> Verdict:
    """Steps descend, scale with the rate of the group, resume bitwise, and depend on their own tensor only.

    Only matrices decay. Steps in float32 equal those in float64. A closure is evaluated with gradients. The same holds
    for other values of the options, and over some hundred steps with changing rates.
    """
    for description, spec in option_specs(case, host, VALUES):
        fault = _steps_fault(case, spec["optimizer"]) or _horizon_fault(case, spec["optimizer"])
        if fault:
            return fault + description
    return HOLDS


def _steps_fault(case: Case, node: Any) -> str:
    run = OptimizerRun(case, node)
    expected = run.steps()
    single = torch.float32  # torch casts states to the dtype of the tensor when it loads them
    in_single = run.steps(dtype=single)
    beside_large = run.steps(large=1)
    torch.manual_seed(1)
    checks = (
        ("two runs of the same steps differ; expected no random draw", _differ(run.steps(), expected)),
        ("steps in another order of tensors differ", _differ(run.steps(change="reversed"), expected)),
        (
            "the steps of a tensor change with the scale of another matrix; expected steps of each tensor for itself",
            _differ(beside_large[:1] + beside_large[2:], expected[:1] + expected[2:]),
        ),
        (
            "steps differ after the state is saved and loaded",
            _differ(run.steps(change="resumed", dtype=single), in_single),
        ),
        (
            "a learning rate of 0 changes a tensor; use the rate of the group",
            _differ(run.steps(factors=[0.0] * STEPS), run.start()),
        ),
        ("a tensor without a gradient changes", _differ(run.steps(change="one without gradient")[:1], run.start()[:1])),
        ("a vector decays; expected matrices only", not torch.equal(run.steps(scale=0.0)[VECTOR], run.start()[VECTOR])),
        (
            "`step(closure)` takes other steps; evaluate the closure first, with gradients",
            _differ(run.steps(change="closure"), expected),
        ),
        (
            "steps change if gradients are set to 0 in place after each step; keep a copy of a gradient",
            _differ(run.steps(change="gradients set to 0"), expected),
        ),
        (
            "after some steps at a first rate, half the rate takes the same steps; read the rate of the group",
            not _differ(run.steps(factors=_halved([1.0] * STEPS, STEPS // 2)), expected),
        ),
        (
            "steps change if `evaluated_weights` is called after each; expected new tensors",
            _differ(run.steps(change="evaluated"), expected),
        ),
        (
            "`evaluated_weights` and the trait `averages` disagree; an optimizer with such weights declares it",
            run.has_averages != case.entry.traits.get("averages", False),
        ),
        ("`step(closure)` does not return the value of the closure", not run.returns_loss),
    )
    for message, failed in checks:
        if failed:
            return message
    for tensor, start in zip(run.steps(count=1), run.start(), strict=True):
        gradient = run.gradient(0, start)
        if float(((tensor - start) * gradient).sum()) >= 0:
            return "the first step does not descend along the gradient"
    error = _relative_error(in_single, expected, run.start(), STEPS)
    if not error <= PRECISION:
        return f"steps in float32 differ from steps in float64 by {error:.2g} of the movement"
    if "weight_decay" in node:
        decayed = OptimizerRun(case, {**node, "weight_decay": 0.5}).steps(scale=0.0)
        for index, (tensor, start) in enumerate(zip(decayed, run.start(), strict=True)):
            if index != VECTOR and float(tensor.norm()) >= float(start.norm()):
                return "without a gradient and with a `weight_decay` of 0.5, a matrix does not become smaller"
    return HOLDS


def _horizon_fault(case: Case, node: Any) -> str:
    """Return a message if rules do not hold over some hundred steps, with changing rates."""
    run, single = OptimizerRun(case, node), torch.float32
    expected = run.steps(count=HORIZON, factors=CHANGING_RATES)
    in_single = run.steps(count=HORIZON, factors=CHANGING_RATES, dtype=single)
    error = _relative_error(in_single, expected, run.start(), HORIZON)
    if not error <= LONG_PRECISION:
        return f"after {HORIZON} steps, float32 differs from float64 by {error:.2g} of the movement"
    step = HORIZON // 4 + int(1000 * noise("later step", 1).abs()) % (HORIZON // 2)
    resumed = run.steps(count=HORIZON, factors=CHANGING_RATES, dtype=single, change="resumed", at=step)
    if _differ(resumed, in_single):
        return f"steps differ after the state is saved and loaded at step {step}"
    if not _differ(run.steps(count=HORIZON, factors=_halved(CHANGING_RATES, step)), expected):
        return f"half the rate from step {step} on takes the same steps; read the rate of the group at each step"
    return HOLDS


def _halved(factors: Sequence[float], begin: int) -> list[float]:
    return [*factors[:begin], *(factor / 2 for factor in factors[begin:])]


def _relative_error(
    tensors: Sequence[Tensor], expected: Sequence[Tensor], start: Sequence[Tensor], steps: int
) -> float:
    """Return the largest error of a tensor, relative to its movement; NaN if one is not finite.

    Rounding of the tensor itself to float32, at each of `steps`, is no error: it is large beside small steps.
    """
    errors = [
        ((rounded.double() - double).norm() - steps * EPSILON * first.norm()).clamp(min=0) / (double - first).norm()
        for rounded, double, first in zip(tensors, expected, start, strict=True)
    ]
    return float(torch.stack(errors).max())


def steps_behaviour(case: Case, host: HostModel, spec: Spec) -> list[Any]:
    """Return the tensors after some steps."""
    return [tensor.tolist() for tensor in OptimizerRun(case, spec["optimizer"]).steps()]


def rates_of_tensors(case: Case, host: HostModel) -> Verdict:
    """Learning rates, the options with `lr` in their name, change the steps of every tensor."""
    default, unmoved = steps_behaviour(case, host, host.spec), set(range(len(TENSORS)))
    rates = [name for name in host.spec["optimizer"] if "lr" in name.split("_")]
    for _, spec in option_specs(case, host):
        if any(spec["optimizer"][name] != host.spec["optimizer"][name] for name in rates):
            tensors = steps_behaviour(case, host, spec)
            unmoved -= {index for index, tensor in enumerate(tensors) if tensor != default[index]}
    if rates and unmoved:
        return f"`{'`, `'.join(rates)}` has no effect on the steps of {describe_tensor(min(unmoved))}"
    return HOLDS


def describe_tensor(index: int) -> str:
    """Return `a tensor of shape (6, 4) with the role weight`."""
    role, shape = TENSORS[index]
    return f"a tensor of shape {shape} with the role {role}"


@final
class OptimizerRun:
    """Steps of an optimizer on a few tensors, with fixed gradients."""

    def __init__(self, case: Case, node: Any) -> None:
        self.optimizer = make(case.registry, "optimizer", node, kind=Optimizer)
        self.has_averages = False  # after the steps with the change "evaluated"
        self.returns_loss = True  # each step with a closure has returned its value

    @staticmethod
    def start() -> list[Tensor]:
        return [noise(f"tensor {index}", *shape) for index, (_, shape) in enumerate(TENSORS)]

    @staticmethod
    def gradient(step: int, like: Tensor) -> Tensor:
        return noise(f"gradient {step}", *like.shape).to(like.dtype)

    def steps(
        self,
        *,
        count: int = STEPS,
        dtype: torch.dtype = torch.float64,
        scale: float = 1.0,
        factors: Sequence[float] = (),
        change: Change = "",
        at: int | None = None,
        large: int | None = None,
    ) -> list[Tensor]:
        """Return the tensors after some steps.

        `scale` multiplies all gradients. The tensor of index `large` is 1000 times as large, and so are its gradients
        at every other step. `factors` multiply the learning rate of each step. The state is saved and loaded before
        step `at`, or in the middle.
        """
        scales = [1000.0 if index == large else 1.0 for index in range(len(TENSORS))]
        tensors = [nn.Parameter(own * tensor.to(dtype)) for own, tensor in zip(scales, self.start(), strict=True)]
        optimizer = self._build(tensors, reverse=change == "reversed")
        rates = [group["lr"] for group in optimizer.param_groups]
        for step in range(count):
            if change == "resumed" and step == (count // 2 if at is None else at):
                state = optimizer.state_dict()
                optimizer = self._build(tensors, reverse=False)
                optimizer.load_state_dict(state)
            for group, rate in zip(optimizer.param_groups, rates if factors else (), strict=bool(factors)):
                group["lr"] = rate * factors[step]
            gradients = [
                own ** (step % 2) * scale * self.gradient(step, tensor)
                for own, tensor in zip(scales, tensors, strict=True)
            ]
            if change == "closure":
                self._step_with_closure(optimizer, tensors, gradients)
                continue
            for tensor, gradient in zip(tensors, gradients, strict=True):
                tensor.grad = gradient
            if change == "one without gradient":
                tensors[0].grad = None
            with torch.enable_grad():
                optimizer.step()
            if change == "evaluated":
                self.has_averages = bool(self.optimizer.evaluated_weights(optimizer))
            for tensor in tensors if change == "gradients set to 0" else ():
                if tensor.grad is not None:
                    tensor.grad.zero_()
        return [tensor.detach() for tensor in tensors]

    def _step_with_closure(
        self, optimizer: torch.optim.Optimizer, tensors: Sequence[nn.Parameter], gradients: Sequence[Tensor]
    ) -> None:
        losses: list[float] = []

        def evaluate() -> float:
            for tensor, gradient in zip(tensors, gradients, strict=True):
                tensor.grad = gradient if torch.is_grad_enabled() else None
            losses.append(1.0 + len(losses))
            return losses[-1]

        with torch.enable_grad():
            value = optimizer.step(evaluate)
        self.returns_loss = self.returns_loss and value in losses

    def _build(self, tensors: Sequence[nn.Parameter], *, reverse: bool) -> torch.optim.Optimizer:
        trained = [TrainedTensor.of(tensor, role) for tensor, (role, _) in zip(tensors, TENSORS, strict=True)]
        return self.optimizer.build(trained[::-1] if reverse else trained)


def _differ(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return any(not torch.equal(tensor, other) for tensor, other in zip(tensors, others, strict=True))


def learning_rates(case: Case, host: HostModel) -> Verdict:
    """Each factor of a schedule is from 0 to 1, and depends only on the step and the number of steps.

    No factor of the first or last step is 0, unless the trait `idle_steps` declares it. The same holds for other values
    of the options.
    """
    for description, spec in option_specs(case, host):
        fault = _factors_fault(case, spec["schedule"])
        if fault:
            return fault + description
    return HOLDS


def _factors_fault(case: Case, node: Any) -> str:
    schedule = _schedule(case, node)
    calls = [(step, steps) for steps in RUNS for step in range(steps)]
    expected = {call: _schedule(case, node).factor(*call) for call in calls}
    for step, steps in calls:
        factor = expected[step, steps]
        if isinstance(factor, Tensor) or not (math.isfinite(factor) and factor >= 0):
            return f"the factor at step {step} of {steps} is {factor}; expected a finite number, at least 0"
        if factor > 1 + ROUNDING:
            return f"the factor at step {step} of {steps} is {factor}; expected at most 1, for the optimizer's rate"
        is_end = step in (0, steps - 1) and any(expected[other, steps] for other in range(steps))
        if factor == 0 and is_end and not case.entry.traits.get("idle_steps", False):
            return f"the factor at step {step} of {steps} is 0; expected a step, unless `idle_steps` is declared"
    for step, steps in sorted(calls, key=lambda call: (call[0] * 37 + call[1]) % 101):  # steps and runs in turn
        for _ in range(2):
            if schedule.factor(step, steps) != expected[step, steps]:
                return f"two calls for step {step} of {steps} give different factors, so a run could not be resumed"
    for steps in RUNS:
        if not any(expected[step, steps] for step in range(steps)):
            return f"the factor of all {steps} steps is 0; expected a positive factor at some step"
    return HOLDS


def factors_behaviour(case: Case, host: HostModel, spec: Spec) -> list[float]:
    """Return the factors of all steps of a run."""
    schedule = _schedule(case, spec["schedule"])
    return [schedule.factor(step, max(RUNS)) for step in range(max(RUNS))]


def _schedule(case: Case, node: Any) -> Schedule:
    return make(case.registry, "schedule", node, kind=Schedule)
