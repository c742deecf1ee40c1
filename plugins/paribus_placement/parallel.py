"""Parallel sublayers (`parallel`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import Norm, Placement, PlacementTraits, Shape, Sublayer


@final
class Parallel(Placement):
    """Parallel sublayers, x + f(norm(x)) + g(norm(x)) (Wang & Komatsuzaki 2021).

    "GPT-J-6B", "PaLM" (Chowdhery et al. 2022). Attention, cross-attention and feed-forward read the same input, and a
    norm follows the last layer. The shared norm has the parameter path of the attention's norm. (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[PlacementTraits] = {"final_norm": True}

    def __init__(
        self,
        shape: Shape,
        norm: Callable[[], Norm],
        *,
        shared_norm: Annotated[bool, "use one norm for all sublayers (GPT-NeoX: no, one for each)"] = True,
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({name: norm() for name in (("attention",) if shared_norm else shape.sublayers)})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        normed = {name: norm(x) for name, norm in self.norms.items()}
        y = x
        for name, sublayer in sublayers.items():
            y = y + sublayer(normed.get(name, normed["attention"]))
        return y
