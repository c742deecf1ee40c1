"""Normalised residual updates (`ngpt`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Norm, Placement, PlacementTraits, Range, Role, Shape, Sublayer, at_least_float32


@final
class NormalisedTransformer(Placement):
    """Normalised residual updates, h = unit(h + rate (unit(f(h)) - h)), with rates by channel (Loshchilov et al. 2024).

    "nGPT: Normalized Transformer with Representation Learning on the Hypersphere". Hidden states have length 1 between
    sublayers, which read them times √D. After each training step, rows of matrices along the stream have length 1, too;
    `initialisation=unit` starts so. The queries and keys of the paper are those of `attention.scores.qk_norm`, but for
    its scales, one vector of each head for both, after the rotation. Instead of a scale of the score of each token,
    which starts at 1, the final norm has a gain for each channel, and √D. The scales of the feed-forward are those of
    `feedforward.glu.scales`. Biases, decay and warm-up are those of the spec; the paper has none.

    The rate is |alpha + alpha √D s| with the parameter s, which starts at 0. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True, "identity_path": False, "unit_weights": True}
    roles: ClassVar[Mapping[str, Role]] = {
        "scales.attention": "bias",
        "scales.cross": "bias",
        "scales.feedforward": "bias",
    }

    def __init__(
        self,
        shape: Shape,
        norm: Callable[[], Norm],
        *,
        alpha: Annotated[float | None, "initial rate of updates (nGPT: 0.05); null: 1 / layers", Range(above=0)] = None,
    ) -> None:
        super().__init__()
        self.alpha, self.root = 1 / shape.layers if alpha is None else alpha, math.sqrt(shape.width)
        self.scales = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape.width)) for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        h = unit(at_least_float32(x))
        for name, sublayer in sublayers.items():
            y = unit(at_least_float32(sublayer((h * self.root).to(x.dtype))))
            rate = (self.alpha + self.alpha * self.root * self.scales[name]).abs()
            h = unit(h + rate * (y - h))
        return h.to(x.dtype)


def unit(x: Tensor) -> Tensor:
    """Return the vectors with length 1: (…, D) -> (…, D)."""
    return functional.normalize(x, dim=-1)
