"""LayerScale (`layerscale`): pre-norm with learned channel scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Norm, Placement, PlacementTraits, Range, Role, Shape, Sublayer


@final
class LayerScale(Placement):
    """LayerScale, x + gamma f(norm(x)) with a learned gamma for each channel (Touvron et al. 2021).

    "Going deeper with Image Transformers". gamma starts small, and a norm follows the last layer. The parameter is the
    difference to `start`. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True}
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
            float, "initial gamma (CaiT: 0.1 to 18 layers, 1e-5 to 24, 1e-6 for more)", Range(above=0)
        ] = 0.1,
    ) -> None:
        super().__init__()
        self.start = start
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers})
        # A difference that starts at 0: initial weights, and so an optimizer's steps, are the same for any `start`.
        self.scales = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape.width)) for name in shape.sublayers})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = x + (self.start + self.scales[name]) * sublayer(self.norms[name](x))
        return x
