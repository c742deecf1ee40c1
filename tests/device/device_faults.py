"""Faults of components that a CPU hides: each works there, and fails or is slow on an accelerator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, final

import torch
from torch import Tensor

from paribus import (
    Context,
    ForwardPass,
    KeyedDraws,
    LossTerm,
    Norm,
    Optimizer,
    Pair,
    Position,
    PositionTraits,
    Shape,
    State,
    TrainedTensor,
)
from paribus_attention.multi_query import MultiQuery
from paribus_norm.root_mean_square_norm import RootMeanSquareNorm
from paribus_objective.causal_language_modelling import CausalLanguageModelling

TWO_DEVICES: Final = "at least two devices"
WAITS: Final = "waits for the device"
DIFFERS: Final = "differ from those on a CPU"


class PlainNorm(RootMeanSquareNorm):  # type: ignore[misc]  # a fault in a final class
    """Root mean square norm, whose output a fault changes nowhere on a CPU."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.cache: dict[str, Tensor] = {}

    def prepare(self, keyed: KeyedDraws) -> None:
        self.ones = torch.ones(self.weight.shape, dtype=torch.float64)  # no buffer

    def forward(self, x: Tensor) -> Tensor:
        return self.change(super().forward(x))

    def change(self, y: Tensor) -> Tensor:
        return y


def norm(change: Callable[[Any, Tensor], Tensor]) -> type[Norm]:
    return final(
        type("FaultyNorm", (PlainNorm,), {"change": change, "__doc__": "Faulty norm.", "__module__": __name__})
    )


def assign_by_mask(self: PlainNorm, y: Tensor) -> Tensor:
    y = y.clone()
    y[y > 9] = y[y > 9] + 1
    return y


def add_to_number(self: PlainNorm, y: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    total += y.detach().sum()
    return y + 0 * total


def count_in_table(self: PlainNorm, y: Tensor) -> Tensor:
    table = torch.ones(3, dtype=torch.float64)
    return y * table[torch.zeros(y.shape[-1], dtype=torch.long, device=y.device)]


def histogram(self: PlainNorm, y: Tensor) -> Tensor:
    counts, _ = torch.histogram(y.detach(), bins=4)
    return y + 0 * counts.sum()


def integer_product(self: PlainNorm, y: Tensor) -> Tensor:
    counts = (y.detach()[0] > 0).long()
    return y + 0 * (counts.t() @ counts).sum()


def inverse(self: PlainNorm, y: Tensor) -> Tensor:
    identity: Tensor = torch.linalg.inv(torch.eye(y.shape[-1], dtype=y.dtype, device=y.device))
    return y @ identity


def draw_on_device(self: PlainNorm, y: Tensor) -> Tensor:
    generator = torch.Generator(device=y.device).manual_seed(0)
    return y + 0 * torch.rand(y.shape, device=y.device, generator=generator)


def by_device(self: PlainNorm, y: Tensor) -> Tensor:
    return y if y.device.type == "cpu" else 1.001 * y


def draw_with_own_generator(self: PlainNorm, y: Tensor) -> Tensor:
    return y + 0 * torch.rand(y.shape, device=y.device, generator=torch.Generator().manual_seed(0))


NORMS: Final[Mapping[str, tuple[Callable[[Any, Tensor], Tensor], str]]] = {
    "a tensor of the CPU": (lambda self, y: y * torch.ones(y.shape[-1]), TWO_DEVICES),
    "a tensor that is no buffer": (lambda self, y: y * self.ones, TWO_DEVICES),
    "a cache of the first device": (
        lambda self, y: y * self.cache.setdefault("gain", torch.ones_like(y[0, 0]).detach()), TWO_DEVICES
    ),
    "a mask of the CPU": (lambda self, y: y.masked_fill(torch.zeros(y.shape[-1], dtype=torch.bool), 0), TWO_DEVICES),
    "a generator of the CPU": (draw_with_own_generator, "device type for generator"),
    "a number of the CPU that it adds to": (add_to_number, TWO_DEVICES),
    "a table of the CPU": (count_in_table, "same device as the indexed tensor"),
    "two numbers of the CPU": (lambda self, y: y.clamp(torch.tensor(-9.0), torch.tensor(9.0)), TWO_DEVICES),
    "a number of the CPU among tensors": (
        lambda self, y: y * torch.stack([torch.tensor(1.0).double(), y.detach().sum()])[0], TWO_DEVICES
    ),
    "a comparison with the CPU": (
        lambda self, y: y if torch.equal(y.detach()[0, 0], torch.zeros(y.shape[-1])) else y.clone(), TWO_DEVICES
    ),
    "a product of integers": (integer_product, "not implemented"),
    "a histogram": (histogram, "not implemented"),
    "an inverse": (inverse, WAITS),
    "draws without replacement": (lambda self, y: y + 0 * y.detach()[0].abs().multinomial(2).sum(), WAITS),
    "an item": (lambda self, y: y / max(1.0, y.detach().abs().amax().item() / 1e9), WAITS),
    "a branch on a number": (lambda self, y: y if float(y.detach().mean()) < 9 else -y, WAITS),
    "a branch on a mask": (lambda self, y: y if (y.detach().abs() < 1e9).all() else -y, WAITS),
    "a list": (lambda self, y: y * float(any(y.detach()[0, 0].isfinite().flatten().tolist())), WAITS),
    "an assignment by a mask": (assign_by_mask, WAITS),
    "the positions of a mask": (lambda self, y: y + 0 * len(y.detach().isnan().nonzero()), WAITS),
    "unique values": (lambda self, y: y + 0 * y.detach().sign().unique().sum(), WAITS),
    "repeats of unknown number": (
        lambda self, y: y[..., torch.arange(y.shape[-1], device=y.device).repeat_interleave(
            torch.ones(y.shape[-1], dtype=torch.long, device=y.device)
        )], WAITS
    ),
    "numbers copied in each pass": (lambda self, y: y * torch.tensor([1.0] * y.shape[-1], device=y.device), WAITS),
    "an index of the CPU": (lambda self, y: y[..., torch.arange(y.shape[-1])], WAITS),
    "a visit to the CPU": (lambda self, y: y.cpu().to(y.device), WAITS),
    "a visit to numpy": (lambda self, y: y + 0 * float(y.numpy(force=True).mean()), WAITS),
    "a comparison of two tensors": (lambda self, y: y if torch.equal(y.detach(), y.detach()) else -y, WAITS),
    "another formula than on a CPU": (by_device, DIFFERS),
    "a copy that is read too early": (
        lambda self, y: y / y.detach().abs().amax().to("cpu", non_blocking=True).clamp(max=1, min=1), DIFFERS
    ),
}  # fmt: skip


CORRECT: Final[Mapping[str, Callable[[Any, Tensor], Tensor]]] = {
    "nothing": lambda self, y: y,
    "a generator of the device": draw_on_device,
    "a number of the CPU": lambda self, y: y * torch.tensor(1.0) + torch.tensor(0.0),
    "a fill by a mask": lambda self, y: y.masked_fill(y > 1e9, 0.0),
    "a choice by a mask": lambda self, y: torch.where(y > 1e9, 0.0, y),
    "positions": lambda self, y: y + 0 * torch.arange(y.shape[-1], device=y.device),
    "an index of the device": lambda self, y: y[..., torch.arange(y.shape[-1], device=y.device)],
    "zeros like its input": lambda self, y: y + y.new_zeros(y.shape[-1]) + torch.zeros_like(y),
    "a text": lambda self, y: y if f"{y.shape} {y.dtype} {y.device}" else -y,
}


@final
class OffsetsOfTheCpu(Position):
    """Linear biases, whose distances are made on the CPU."""

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "positions", "distance_bias": True, "owner": "stack"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def bias(self, pair: Pair) -> Tensor:
        queries, keys = (torch.arange(positions.shape[-1]) for positions in (pair.q_positions, pair.k_positions))
        distance = (queries[:, None] - keys).abs().to(pair.dtype)
        return (0 * pair.q_positions[0, 0] - distance)[None, None].expand(-1, pair.heads, -1, -1)

    def position_limit(self) -> int | None:
        return None


class CacheOfTheCpu(MultiQuery):  # type: ignore[misc]  # a fault in a final class
    """Attention whose decoding state is on the CPU."""

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {name: value.cpu() for name, value in super().start(batch, length, like).items()}


class ReadsTheLength(MultiQuery):  # type: ignore[misc]  # the same
    """Attention that reads the largest position in each pass."""

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        assert int(ctx.layout.positions.max()) >= 0
        return super().forward(x, ctx)


class Steps(torch.optim.Optimizer):
    """Steps along the gradient, which `move` changes."""

    def __init__(self, groups: Any, move: Callable[[Tensor], Tensor], lr: float) -> None:
        super().__init__(groups, {"lr": lr})
        self.move = move

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch overloads it
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(self.move(parameter.grad), alpha=-group["lr"])


@final
class MeanOfTheCpu(Optimizer):
    """Gradient descent whose state is on the CPU."""

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        return Steps(
            [{"params": [tensor.parameter for tensor in tensors]}],
            lambda gradient: gradient + torch.zeros(gradient.shape),
            1e-3,
        )


@final
class ClipsByANumber(Optimizer):
    """Gradient descent that reads the norm of each gradient."""

    def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
        return Steps(
            [{"params": [tensor.parameter for tensor in tensors]}],
            lambda gradient: gradient / max(1.0, float(gradient.norm())),
            1e-3,
        )


class WeightsOfTheCpu(CausalLanguageModelling):  # type: ignore[misc]  # a fault in a final class
    """Causal language modelling with the weights of its examples on the CPU."""

    def forward(self, run: ForwardPass) -> dict[str, LossTerm]:
        terms = super().forward(run)
        return {name: term._replace(total=(term.total * torch.ones(1)).sum()) for name, term in terms.items()}


class CountsLabels(CausalLanguageModelling):  # type: ignore[misc]  # the same
    """Causal language modelling that counts its labels on the CPU."""

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        assert len(run.targets["labels"].flatten().nonzero()) >= 0
        return super().forward(run)


def faults() -> Iterator[tuple[str, type[Any], str]]:
    """Yield the name of each fault, the component, and what its report says."""
    for name, (change, message) in NORMS.items():
        yield f"a norm with {name}", norm(change), message
    yield "a position with offsets of the CPU", OffsetsOfTheCpu, TWO_DEVICES
    yield "an attention with a cache on the CPU", CacheOfTheCpu, "the same device type"
    yield "an attention that reads a position", ReadsTheLength, WAITS
    yield "an optimizer with a mean on the CPU", MeanOfTheCpu, TWO_DEVICES
    yield "an optimizer that reads norms", ClipsByANumber, WAITS
    yield "an objective with weights of the CPU", WeightsOfTheCpu, TWO_DEVICES
    yield "an objective that counts labels", CountsLabels, WAITS
