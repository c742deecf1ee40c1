"""Optimizer and learning-rate schedule of a training run, as Lightning's `configure_optimizers` returns them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import Tensor, nn

from paribus.assembly.initialise import parameter_info
from paribus.models.training_clock import SCHEDULE_STEPS, TrainingClock
from paribus.slots.initialisation import Initialisation, OptimizerFactors
from paribus.slots.optimizer import Optimizer, TrainedTensor
from paribus.slots.schedule import Schedule

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import OptimizerLRScheduler

HALF: Final = (torch.bfloat16, torch.float16)
WEIGHT: Final = "float32"  # the copy of a parameter, among its state
FACTORS: Final = "factors"  # of a group, among its options


def build_optimizer(component: Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of a model's trainable parameters. Parameters in half precision are updated in float32.

    The initialisation of the model may give tensors learning rates of their own.
    """
    tensors, scheme = trained_tensors(model), getattr(model, "initialisation", None)
    if any(tensor.parameter.dtype in HALF for tensor in tensors):
        return Float32Updates(component, tensors, scheme)
    return build_groups(component, tensors, scheme)


def evaluated_weights(component: Optimizer, optimizer: torch.optim.Optimizer) -> Mapping[Tensor, Tensor]:
    """Return the weights that an optimizer of `build_optimizer` has evaluated in place of those of its steps.

    The keys are parameters of the model; those of the other parameters are evaluated as they are.
    """
    if isinstance(optimizer, Float32Updates):
        return optimizer.evaluated_weights(component)
    return component.evaluated_weights(optimizer)


def build_groups(
    component: Optimizer, tensors: Sequence[TrainedTensor], scheme: Initialisation | None
) -> torch.optim.Optimizer:
    """Build an optimizer, and split its groups by the factors that an initialisation has for their tensors.

    A split group has `factors`: the index of the group that it is a part of, and its factors.
    """
    optimizer = component.build(tensors)
    if scheme is None:
        return optimizer
    factors = {tensor.parameter: scheme.optimizer_factors(tensor.about) for tensor in tensors}
    if set(factors.values()) - {OptimizerFactors()}:
        groups = enumerate(optimizer.param_groups)
        optimizer.param_groups = [part for index, group in groups for part in _split(index, group, factors)]
    return optimizer


def _split(
    index: int, group: dict[str, Any], factors: Mapping[nn.Parameter, OptimizerFactors]
) -> Iterator[dict[str, Any]]:
    """Yield the parts of a group, one for each value of the factors, in the order of their first parameters."""
    parts: dict[OptimizerFactors, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        parts.setdefault(factors[parameter], []).append(parameter)
    for values, parameters in parts.items():
        scaled = {key: group[key] * factor for key, factor in values._asdict().items() if key in group}
        yield {**group, **scaled, "params": parameters, FACTORS: (index, *values)}


def trained_tensors(model: nn.Module) -> list[TrainedTensor]:
    """Return the trainable parameters of a model, with the information that its initialisation receives about each.

    A tied parameter is a table if one of its paths is that of a table.
    """
    described = parameter_info(model)
    paths: dict[int, list[str]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        if path in described:  # a module that layers share is described by its first path
            paths.setdefault(id(parameter), []).append(path)
    tensors: list[TrainedTensor] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            infos = [described[path] for path in paths[id(parameter)]]
            tensors.append(
                TrainedTensor(parameter, next((info for info in infos if info.role == "embedding"), infos[0]))
            )
    return tensors


@final
class Float32Updates(torch.optim.Optimizer):
    """Optimizer of parameters in half precision. It updates float32 copies (master weights), and rounds the results.

    In bfloat16 alone, an update of less than 0.4 % of a weight is lost, and so is that of a moving average with a
    factor of 0.999.
    """

    def __init__(
        self, component: Optimizer, tensors: Sequence[TrainedTensor], scheme: Initialisation | None = None
    ) -> None:
        copies = {tensor.parameter: nn.Parameter(_unrounded(tensor.parameter.detach())) for tensor in tensors}
        copied = [replace(tensor, parameter=copies[tensor.parameter]) for tensor in tensors]
        self.updates = build_groups(component, copied, scheme)
        rounded = {copy: parameter for parameter, copy in copies.items()}
        groups = [
            {**group, "params": [rounded[copy] for copy in group["params"]]} for group in self.updates.param_groups
        ]
        super().__init__(groups, self.updates.defaults)
        self.copies = copies
        self._weights = {parameter: copy.detach() for parameter, copy in copies.items()}  # the same memory
        self._versions = {parameter: parameter._version for parameter in copies}

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch overloads it
        loss = None if closure is None else closure()
        self._restore()
        for group, inner in zip(self.param_groups, self.updates.param_groups, strict=True):
            inner.update({key: value for key, value in group.items() if key != "params"})  # such as the learning rate
        for parameter, copy in self.copies.items():
            copy.grad = None if parameter.grad is None else parameter.grad.to(copy.dtype)
        self.updates.step()
        with torch.no_grad():
            for parameter, copy in self.copies.items():
                copy.grad = None
                parameter.copy_(copy)
                self._versions[parameter] = parameter._version
                self.state[parameter] = {**self.updates.state[copy], WEIGHT: self._weights[parameter]}
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        indices = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for index, parameter in zip(indices, parameters, strict=True):
            for key, value in state_dict["state"].get(index, {}).items():
                if isinstance(value, Tensor) and value.dtype != self.state[parameter][key].dtype:  # torch rounded it
                    self.state[parameter][key] = value.to(self.state[parameter][key].device)

    def evaluated_weights(self, component: Optimizer) -> dict[Tensor, Tensor]:
        """Return the weights that `component` has evaluated in place of those of its steps, in float32."""
        self._restore()
        weights = component.evaluated_weights(self.updates)
        return {parameter: weights[copy] for parameter, copy in self.copies.items() if copy in weights}

    @torch.no_grad()
    def _restore(self) -> None:
        """Take over state and weights that were set from outside, as from a checkpoint."""
        for parameter, copy in self.copies.items():
            state = dict(self.state.get(parameter, {}))
            weight = state.pop(WEIGHT, None)
            if weight is not None and weight is not self._weights[parameter]:
                copy.copy_(weight)
                self.updates.state[copy] = state
            if parameter._version != self._versions[parameter]:
                is_unchanged = copy.to(parameter.dtype) == parameter
                copy.copy_(torch.where(is_unchanged, copy, parameter.to(copy.dtype)))


def _unrounded(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor


def scheduled_optimizer(component: Optimizer, model: nn.Module, factor: Callable[[int], float]) -> OptimizerLRScheduler:
    """Build the optimizer of a model, with its learning rate multiplied by `factor(step)` at each step."""
    optimizer = build_optimizer(component, model)
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        # A fused step would unscale float16 gradients after they are clipped, so Lightning refuses to clip them.
        # Without the flag, the gradient scaler unscales them first.
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]  # torch sets it if fused
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def factor_by_step(schedule: Schedule, steps: int, completed_steps: int) -> Callable[[int], float]:
    """Return the factor of a schedule at each step of a run; a resumed run continues after `completed_steps`."""
    return lambda step: schedule.factor(min(completed_steps + step, steps - 1), steps)


def factor_by_time(schedule: Schedule, clock: TrainingClock) -> Callable[[int], float]:
    """Return the schedule's factor by the fraction of a time budget that is spent, whatever the step."""
    return lambda step: schedule.factor(clock.schedule_step(), SCHEDULE_STEPS)
