"""Optimizer of a trial: its steps follow the rate that the schedule sets, and go on after a resume as before."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from paribus.models.lightning_module import Model
from paribus.models.optimizer_schedule import trained_tensors
from paribus.slots.optimizer import TrainedTensor

RATE: Final = "ignores its learning rate"
RESUME: Final = "forgets when a trial resumes"
COUNT: Final = 2  # the smallest tensors of each kind: the steps of a tensor depend on this tensor only
MAX_ELEMENTS: Final = 2**20  # of a tensor outside of stacks, such as a table, which may be much larger than the others
STEPS: Final = 3  # at the first rate
OTHER: Final = 0.5  # factor of the rate of the step after these


def optimizer_faults(model: Model) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the steps of some tensors, on random gradients.

    They change by the same at half the rate, after steps at the whole rate; or a step differs after the state was saved
    and loaded.
    """
    tensors = _checked_tensors(model)
    whole, half = (_after_steps(model, tensors, factor=factor) for factor in (1.0, OTHER))
    resumed = _after_steps(model, tensors, resumes=True)
    kinds = ["a matrix" if tensor.is_matrix else "a vector" for tensor in tensors]
    for kind, start, one, other in zip(kinds, tensors, whole, half, strict=True):
        if torch.equal(one, other) and not torch.equal(one, start.parameter.detach().float()):
            yield RATE, f"after {STEPS} steps, {kind} changes by the same at half the rate"
            break
    for kind, one, other in zip(kinds, whole, resumed, strict=True):
        if not torch.equal(one, other):
            yield (
                RESUME,
                f"after {STEPS} steps, the next step of {kind} is another one if the state was saved and loaded",
            )
            return


def _checked_tensors(model: Model) -> list[TrainedTensor]:
    """Return the smallest hidden matrices, other matrices and vectors: an optimizer may have a rule for each."""
    trained = sorted(trained_tensors(model), key=lambda tensor: tensor.parameter.numel())
    hidden = [tensor for tensor in trained if tensor.is_hidden_matrix]
    others = [tensor for tensor in trained if tensor.is_matrix and not tensor.is_hidden_matrix]
    vectors = [tensor for tensor in trained if not tensor.is_matrix]
    small = [tensor for tensor in others if not hidden or tensor.parameter.numel() <= MAX_ELEMENTS]
    return [*hidden[:COUNT], *small[:COUNT], *vectors[:COUNT]]


def _after_steps(
    model: Model, tensors: Sequence[TrainedTensor], *, factor: float = 1.0, resumes: bool = False
) -> list[Tensor]:
    """Return tensors after steps on random gradients, the last of them at another rate, or with another optimizer.

    That one has loaded the state of the first.
    """
    parameters = [nn.Parameter(tensor.parameter.detach().float().clone()) for tensor in tensors]
    copies = [replace(tensor, parameter=parameter) for tensor, parameter in zip(tensors, parameters, strict=True)]
    optimizer = model.optimizer.build(copies)
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS + 1):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)
        if step == STEPS:
            if resumes:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = model.optimizer.build(copies)
                optimizer.load_state_dict(saved)
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor
        optimizer.step()
    return [parameter.detach() for parameter in parameters]
