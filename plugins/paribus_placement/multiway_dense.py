"""MUDD (`mudd`): sublayers read averages of all earlier outputs, with weights that depend on the token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    Context,
    Cost,
    Load,
    Norm,
    PlacementTraits,
    Role,
    Shape,
    StreamPlacement,
    Streams,
    Sublayer,
    at_least_float32,
)

EPS = 1e-6


@final
class MultiwayDense(StreamPlacement):
    """MUDD connections: queries, keys, values and the residual stream are four averages of all earlier outputs.

    "MUDDFormer: Breaking Residual Bottlenecks in Transformers via Multiway Dynamic Dense Connections" (Xiao et al.
    2025). Outputs are those of the layers, and the embeddings. Weights are read from the last output, normalised, by a
    small network, plus a learned constant; at the start, they are 1 for the last output and 0 for the others. The
    output of the stack is one such average. All layers have feed-forwards of the same width, unlike the paper's.
    (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {
        "final_norm": True,
        "identity_path": False,
        "separate_inputs": True,
        "needs": ["layer"],
    }

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()
        assert shape.layer is not None, "validated: the trait `needs`"
        self.outputs = shape.layer + 1  # of the embedding and of the layers before this one
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})
        self.key_norm, self.value_norm = (norm() if shape.layer else None for _ in "kv")
        self.averages = DenseAverages(shape.width, 4, self.outputs) if shape.layer else None
        is_last = shape.layer == shape.layers - 1
        self.output_average = DenseAverages(shape.width, 1, self.outputs + 1) if is_last else None

    def begin(self, x: Tensor) -> Streams:
        return (x,) * self.outputs

    def advance(self, streams: Streams, sublayers: Mapping[str, Sublayer], ctx: Context) -> Streams:
        if self.averages is None:
            return (*streams, self._run(streams[-1], None, sublayers))
        q, k, v, x = self.averages(streams)
        assert self.key_norm is not None
        assert self.value_norm is not None
        inputs = self.norms["attention"](q), self.key_norm(k), self.value_norm(v)
        return (*streams, self._run(x, inputs, sublayers))

    def _run(self, x: Tensor, inputs: tuple[Tensor, ...] | None, sublayers: Mapping[str, Sublayer]) -> Tensor:
        """Return the output of the layer: of a residual stream, and of the inputs of queries, keys and values."""
        for name, sublayer in sublayers.items():
            x = x + sublayer(inputs if inputs is not None and name == "attention" else self.norms[name](x))
        return x

    def end(self, streams: Streams) -> Tensor:
        """Return the average of the last layer; the last output in layers before."""
        if self.output_average is None:
            return streams[-1]
        average: Tensor = self.output_average(streams)[0]
        return average

    def cost(self, load: Load) -> Cost:
        """Return the operations of the weights; sums over outputs count as none."""
        averages = [part for part in (self.averages, self.output_average) if part is not None]
        return Cost(load.queries * sum(part.flops() for part in averages))


@final
class DenseAverages(nn.Module):
    """Averages of outputs, each with own weights for each token: GELU(norm(x) W1) W2 + a, where x is the last output.

    W2 starts at 0, and the parameter of a is the difference to its start.
    """

    roles: ClassVar[Mapping[str, Role]] = {"read.weight": "weight", "write": "bias", "weights": "bias"}

    def __init__(self, width: int, averages: int, outputs: int) -> None:
        super().__init__()
        self.averages, self.outputs = averages, outputs
        self.read = nn.Linear(width, averages * outputs, bias=False)
        self.write = nn.Parameter(torch.zeros(averages * outputs, averages * outputs))
        self.weights = nn.Parameter(torch.zeros(averages * outputs))

    def forward(self, outputs: Streams) -> tuple[Tensor, ...]:
        x = outputs[-1]
        normalised = functional.rms_norm(at_least_float32(x), x.shape[-1:], eps=EPS).to(x.dtype)
        weights = functional.gelu(self.read(normalised)) @ self.write + self.weights
        columns = weights.to(x.dtype).split(1, -1)
        return tuple(
            x + sum((weight * output for weight, output in zip(own, outputs, strict=True)), torch.zeros_like(x))
            for own in (columns[index : index + self.outputs] for index in range(0, len(columns), self.outputs))
        )

    def flops(self) -> int:
        """Return the operations for one token."""
        return 2 * (self.read.weight.numel() + self.write.numel())
