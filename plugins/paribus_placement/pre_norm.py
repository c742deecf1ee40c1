"""Pre-norm (`pre`)."""

from __future__ import annotations

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
    ) -> None:
        super().__init__()
        if bare_first and shape.layer is None:
            raise ValueError(
                "`bare_first` needs layers that do not share parameters; valid: bare_first: false, or dims.groups null"
            )
        bare = "attention" if bare_first and shape.layer == 0 else ""
        self.norms = nn.ModuleDict({name: norm() for name in shape.sublayers if name != bare})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for name, sublayer in sublayers.items():
            x = x + sublayer(self.norms[name](x) if name in self.norms else x)
        return x
