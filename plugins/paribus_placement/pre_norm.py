"""Pre-norm (`pre`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import Norm, Placement, PlacementTraits, Shape, Sublayer


@final
class PreNorm(Placement):
    """Pre-norm, x + f(norm(x)) with a norm after the last layer (Radford et al. 2019).

    "Language Models are Unsupervised Multitask Learners", studied in "On Layer Normalization in the Transformer
    Architecture" (Xiong et al. 2020). (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True}

    def __init__(
        self,
        shape: Shape,
        norm: Callable[[], Norm],
        *,
        bare_first: Annotated[
            bool, "omit the norm of the first attention, as the embedding has one (ModernBERT: yes)"
        ] = False,
        by_depth: Annotated[
            bool, "divide the outputs of the norms of layer l by √l, as in LayerNorm Scaling (Sun et al. 2025)"
        ] = False,
    ) -> None:
        super().__init__()
        if bare_first and shape.layer is None:
            raise ValueError(
                "`bare_first` needs layers that do not share parameters; valid: bare_first: false, or dims.groups null"
            )
        if by_depth and shape.layer is None:
            raise ValueError(
                "`by_depth` needs layers that do not share parameters; valid: by_depth: false, or dims.groups null"
            )
        self.scale = 1 / math.sqrt(1 + shape.layer) if by_depth and shape.layer is not None else 1.0
        bare = "attention" if bare_first and shape.layer == 0 else ""
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers if name != bare})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = x + sublayer(self._normalise(x, name) if name in self.norms else x)
        return x

    def _normalise(self, x: Tensor, name: str) -> Tensor:
        normalised: Tensor = self.norms[name](x)
        return normalised if self.scale == 1.0 else normalised * self.scale
