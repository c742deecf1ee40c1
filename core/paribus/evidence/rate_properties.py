"""Learning rate of the optimizer of a trial: each of its steps follows the rate that the schedule sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from paribus.models.lightning_module import Model

RATE: Final = "ignores its learning rate"
TENSORS: Final = 2  # the smallest matrices and vectors: the steps of a tensor depend on this tensor only
STEPS: Final = 3  # at the first rate
OTHER: Final = 0.5  # factor of the rate of the step after these


def rate_faults(model: Model) -> Iterator[tuple[str, str]]:
    """Yield a message if some tensors change by the same at half the rate, after steps at the whole rate."""
    trained = sorted(
        (parameter for parameter in model.parameters() if parameter.requires_grad), key=lambda each: each.numel()
    )
    matrices = [parameter for parameter in trained if parameter.ndim >= 2][:TENSORS]
    vectors = [parameter for parameter in trained if parameter.ndim < 2][:TENSORS]
    whole, half = (_after_steps(model, matrices, vectors, factor) for factor in (1.0, OTHER))
    for kind, start, one, other in zip(
        ["a matrix"] * len(matrices) + ["a vector"] * len(vectors), [*matrices, *vectors], whole, half, strict=True
    ):
        if torch.equal(one, other) and not torch.equal(one, start.detach().float()):
            yield RATE, f"after {STEPS} steps, {kind} changes by the same at half the rate"
            return


def _after_steps(
    model: Model, matrices: Sequence[nn.Parameter], vectors: Sequence[nn.Parameter], factor: float
) -> list[Tensor]:
    """Return tensors after steps on random gradients, the last of them at another rate."""
    copies = [[nn.Parameter(each.detach().float().clone()) for each in group] for group in (matrices, vectors)]
    optimizer = model.optimizer.build(*copies)
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS + 1):
        for parameter in (*copies[0], *copies[1]):
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)
        if step == STEPS:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor
        optimizer.step()
    return [parameter.detach() for group in copies for parameter in group]
