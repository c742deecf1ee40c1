"""DenseFormer (`denseformer`): each layer reads a weighted average of all earlier outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Context, Norm, PlacementTraits, Role, Shape, StreamPlacement, Streams, Sublayer


@final
class DenseFormer(StreamPlacement):
    """DenseFormer, pre-norm with weighted averages of the embeddings and all earlier layers (Pagliardini et al. 2024).

    "DenseFormer: Enhancing Information Flow in Transformers via Depth Weighted Averaging". The input of a layer is the
    sum of these outputs with learned weights, 1 for the last and 0 for the others at the start; so is the output of the
    stack. The parameters are the differences to these starts. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True, "needs": ["layer"]}
    roles: ClassVar[Mapping[str, Role]] = {"weights": "bias", "output_weights": "bias"}

    def __init__(self, shape: Shape, norm: Callable[[], Norm]) -> None:
        super().__init__()
        assert shape.layer is not None, "validated: the trait `needs`"
        self.outputs = shape.layer + 1  # of the embedding and of the layers before this one
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})
        self.weights = nn.Parameter(torch.zeros(self.outputs)) if shape.layer else None
        is_last = shape.layer == shape.layers - 1
        self.output_weights = nn.Parameter(torch.zeros(self.outputs + 1)) if is_last else None

    def begin(self, x: Tensor) -> Streams:
        return (x,) * self.outputs

    def advance(self, streams: Streams, sublayers: Mapping[str, Sublayer], ctx: Context) -> Streams:
        x = _average(streams, self.weights)
        for name, sublayer in sublayers.items():
            x = x + sublayer(self.norms[name](x))
        return (*streams, x)

    def end(self, streams: Streams) -> Tensor:
        return _average(streams, self.output_weights)


def _average(outputs: Streams, weights: Tensor | None) -> Tensor:
    """Return the last output plus the weighted sum of all."""
    x = outputs[-1]
    if weights is not None:
        for output, weight in zip(outputs, weights, strict=True):
            x = x + weight * output
    return x
