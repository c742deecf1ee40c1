"""Decays and gates of linear recurrences, computed from the token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Final, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import ConstantTensor, Role, RootMeanSquare, Shape

RATES: Final = (1.0, 16.0)  # A of the first and the last head
STEPS: Final = (1e-3, 0.1)  # dt of the first and the last channel


def low_rank(width: int, rank: int | None, out: int) -> nn.Module:
    """Return a linear map, or two with `rank` channels between them; the last one has a bias."""
    if rank is None:
        return nn.Linear(width, out)
    return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, out))


@final
class SoftplusDecay(nn.Module):
    """Decay of Mamba-2: log a = -A dt, with a step dt = softplus(W x + b), and a rate A of each head.

    Papers draw A and the initial dt at random. Here the rates of heads are 1 to 16, in equal ratios, and initial steps
    are 0.001 to 0.1, in equal ratios as well. Both are learned, as factors of the first and terms of the second that
    start at 1 and 0. With `channels`, each head has as many steps.
    """

    roles: ClassVar[Mapping[str, Role]] = {"log_rate": "bias"}

    def __init__(self, width: int, heads: int, *, channels: int = 1, rank: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.step = low_rank(width, rank, heads * channels)
        self.log_rate = nn.Parameter(torch.empty(heads))
        self.rates = ConstantTensor(_geometric(*RATES, heads), torch.float64)
        initial = _geometric(*STEPS, heads * channels)
        self.offsets = ConstantTensor([math.log(math.expm1(step)) for step in initial], torch.float64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return log decays and steps, in float32 or wider: (B, T, D) -> 2 x (B, H, T, E)."""
        wide = torch.promote_types(x.dtype, torch.float64)
        # softplus(x) = -logsigmoid(-x); compiled, torch 2.13 mistakes the strides of the gradient of softplus.
        steps = -functional.logsigmoid(-(self.step(x).to(wide) + self.offsets.like(x, wide)))
        steps = steps.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        rates = self.rates.like(x, wide) * self.log_rate.to(wide).exp()
        return -rates[:, None, None] * steps, steps


def _geometric(first: float, last: float, count: int) -> list[float]:
    """Return numbers in equal ratios."""
    return [first * (last / first) ** (index / max(1, count - 1)) for index in range(count)]


@final
class GatedNorm(nn.Module):
    """RMS norm of each head, times an activation of a map of the input."""

    def __init__(
        self, shape: Shape, width: int, *, rank: int | None = None, activation: Literal["silu", "sigmoid"] = "silu"
    ) -> None:
        super().__init__()
        self.norm = RootMeanSquare(width)
        self.gate = low_rank(shape.width, rank, shape.heads * width)
        self.activation = functional.silu if activation == "silu" else torch.sigmoid

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """(B, H, T, V), (B, T, D) -> (B, H, T, V)."""
        gate = self.gate(x).unflatten(-1, (y.shape[1], -1)).transpose(1, 2)
        gated: Tensor = self.norm(y) * self.activation(gate)
        return gated


def weights_of(*modules: nn.Module) -> int:
    """Return the number of weights of the linear maps in modules."""
    parts = (part for module in modules for part in module.modules() if isinstance(part, nn.Linear))
    return sum(part.weight.numel() for part in parts)
