"""Pre-norm, with branches that start small in every channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Placement, Range, Role, Shape, Sublayer, Traits


@final
class LayerScale(Placement):
    """x + gamma f(norm(x)), with a learnt gamma for each channel of each branch, small at first, and a norm after the
    last layer: "Going deeper with Image Transformers" (Touvron et al. 2021).

    What is learnt of gamma is how far it is from `start`. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[Traits] = {"final": True}
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
        start: Annotated[
            float, "gamma at first (CaiT: 0.1 to 18 layers, 1e-5 to 24, 1e-6 for more)", Range(above=0)
        ] = 0.1,
    ) -> None:
        super().__init__()
        self.start = start
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})
        # From 0 and not from `start`: first values are then the same for any option, and an optimiser's steps are too.
        self.scales = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape.width)) for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = x + (self.start + self.scales[name]) * sublayer(self.norms[name](x))
        return x
