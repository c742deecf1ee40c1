"""Optimizer of a trial: its steps follow the rate that the schedule sets, and go on after a resume as before."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from paribus.models.lightning_module import Model

RATE: Final = "ignores its learning rate"
RESUME: Final = "forgets when a trial resumes"
TENSORS: Final = 2  # the smallest matrices and vectors: the steps of a tensor depend on this tensor only
STEPS: Final = 3  # at the first rate
OTHER: Final = 0.5  # factor of the rate of the step after these


def optimizer_faults(model: Model) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the steps of some tensors, on random gradients.

    They change by the same at half the rate, after steps at the whole rate; or a step differs after the state was saved
    and loaded.
    """
    trained = sorted(
        (parameter for parameter in model.parameters() if parameter.requires_grad), key=lambda each: each.numel()
    )
    matrices = [parameter for parameter in trained if parameter.ndim >= 2][:TENSORS]
    vectors = [parameter for parameter in trained if parameter.ndim < 2][:TENSORS]
    whole, half = (_after_steps(model, matrices, vectors, factor=factor) for factor in (1.0, OTHER))
    resumed = _after_steps(model, matrices, vectors, resumes=True)
    kinds = ["a matrix"] * len(matrices) + ["a vector"] * len(vectors)
    for kind, start, one, other in zip(kinds, [*matrices, *vectors], whole, half, strict=True):
        if torch.equal(one, other) and not torch.equal(one, start.detach().float()):
            yield RATE, f"after {STEPS} steps, {kind} changes by the same at half the rate"
            break
    for kind, one, other in zip(kinds, whole, resumed, strict=True):
        if not torch.equal(one, other):
            yield (
                RESUME,
                f"after {STEPS} steps, the next step of {kind} is another one if the state was saved and loaded",
            )
            return


def _after_steps(
    model: Model,
    matrices: Sequence[nn.Parameter],
    vectors: Sequence[nn.Parameter],
    *,
    factor: float = 1.0,
    resumes: bool = False,
) -> list[Tensor]:
    """Return tensors after steps on random gradients, the last of them at another rate, or with another optimizer.

    That one has loaded the state of the first.
    """
    copies = [[nn.Parameter(each.detach().float().clone()) for each in group] for group in (matrices, vectors)]
    optimizer = model.optimizer.build(*copies)
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS + 1):
        for parameter in (*copies[0], *copies[1]):
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)
        if step == STEPS:
            if resumes:
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = model.optimizer.build(*copies)
                optimizer.load_state_dict(saved)
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor
        optimizer.step()
    return [parameter.detach() for group in copies for parameter in group]
