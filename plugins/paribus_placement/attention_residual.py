"""Attention residuals (`attention-residual`): a softmax over depth in place of the residual sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Context, Cost, Load, Norm, PlacementTraits, Range, Role, Shape, StreamPlacement, Streams, Sublayer

EPS = 1e-6


@final
class AttentionResidual(StreamPlacement):
    """Attention over depth: the input of a sublayer is a softmax-weighted average of all earlier outputs.

    "Attention Residuals" (arXiv 2603.15031). The outputs are those of the sublayers, and the embeddings. Each sublayer
    has a learned query, which starts at 0, so that all outputs weigh the same; keys are the outputs, normalised and
    scaled. The output of the stack is such an average, too. With `block`, the outputs of successive sublayers are
    summed, and the average is of the embeddings, the sums, and the sum so far. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True, "identity_path": False, "needs": ["layer"]}

    def __init__(
        self,
        shape: Shape,
        norm: Callable[[], Norm],
        *,
        block: Annotated[
            int,
            "successive sublayers whose outputs are summed (paper: such that there are 8 blocks); 1: none",
            Range(1),
        ] = 1,
    ) -> None:
        super().__init__()
        assert shape.layer is not None, "validated: the trait `needs`"
        self.width, self.block = shape.width, block
        self.before = shape.layer * len(shape.sublayers)  # number of sublayers before this layer
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})
        self.averages = nn.ModuleDict(
            {
                name: DepthAttention(shape.width)
                for index, name in enumerate(shape.sublayers)
                if self.before + index  # the first sublayer of a stack reads the embeddings
            }
        )
        self.output_average = DepthAttention(shape.width) if shape.layer == shape.layers - 1 else None

    def begin(self, x: Tensor) -> Streams:
        return (x,) * self._outputs(self.before)

    def advance(self, streams: Streams, sublayers: Mapping[str, Sublayer], ctx: Context) -> Streams:
        for index, (name, sublayer) in enumerate(sublayers.items(), self.before):
            x = self.averages[name](streams) if name in self.averages else streams[-1]
            y = sublayer(self.norms[name](x))
            streams = (*streams, y) if index % self.block == 0 else (*streams[:-1], streams[-1] + y)
        return streams

    def end(self, streams: Streams) -> Tensor:
        """Return the average of the last layer; the plain one in layers before."""
        if self.output_average is not None:
            average: Tensor = self.output_average(streams)
            return average
        return torch.stack(streams).mean(0)

    def cost(self, load: Load) -> Cost:
        """Return the operations of the scores; sums over outputs count as none."""
        after = self.before + len(self.norms)
        scored = sum(self._outputs(index) for index in range(self.before, after) if index)
        if self.output_average is not None:
            scored += self._outputs(after)
        return Cost(2 * load.queries * self.width * scored)

    def _outputs(self, sublayers: int) -> int:
        """Return the number of outputs, or of their sums, after this number of sublayers."""
        return 1 + math.ceil(sublayers / self.block)


@final
class DepthAttention(nn.Module):
    """Softmax-weighted average of outputs of different layers, for each token."""

    roles: ClassVar[Mapping[str, Role]] = {"query": "bias", "scale": "gain"}

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, outputs: Streams) -> Tensor:
        direction = (self.query * self.scale).unsqueeze(0)
        scores: list[Tensor] = []
        for output in outputs:  # no stack of all outputs, which a backward pass would keep
            inverse_length = (output.square().mean(-1, keepdim=True) + EPS).rsqrt()
            scores.append(functional.linear(output, direction.to(output.dtype)) * inverse_length)
        weights = torch.cat(scores, -1).softmax(-1)
        return sum(
            (weight * output for weight, output in zip(weights.split(1, -1), outputs, strict=True)),
            torch.zeros_like(outputs[0]),
        )
