"""Sublayers side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import Norm, Placement, Shape, Sublayer, Traits


@final
class Parallel(Placement):
    """x + f(norm(x)) + g(norm(x)), attention and feed-forward reading the same rows, and a norm after the last layer:
    "GPT-J-6B" (Wang & Komatsuzaki 2021), "PaLM" (Chowdhery et al. 2022).

    A cross-attention is one more of the terms. The one norm has the path that the attention's has elsewhere.
    (B, T, D) -> (B, T, D).
    """

    traits: ClassVar[Traits] = {"final": True}

    def __init__(
        self,
        shape: Shape,
        norm: Callable[[], Norm],
        *,
        shared_norm: Annotated[bool, "whether all read the same normed rows (GPT-NeoX: no, each has a norm)"] = True,
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({name: norm() for name in (("attention",) if shared_norm else shape.sublayers)})

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        normed = {name: norm(x) for name, norm in self.norms.items()}
        y = x
        for name, sublayer in sublayers.items():
            y = y + sublayer(normed.get(name, normed["attention"]))
        return y
