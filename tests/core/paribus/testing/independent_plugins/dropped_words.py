"""Token embedding with dropout of whole words (`dropped-words`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    AddPositions,
    Cost,
    Embedding,
    Load,
    Norms,
    Role,
    Shape,
    Stream,
    TokenLayout,
    hookimpl,
    token_layout,
)


@final
class DroppedWords(Embedding):
    """Tied token embedding that drops entries of the vocabulary in training (Gal & Ghahramani 2016).

    "A Theoretically Grounded Application of Dropout", as in AWD-LSTM (Merity et al. 2018). An entry is dropped wherever
    it occurs in a batch, with the probability of the model's dropout, and the others are scaled up; positions and
    scores are not dropped. Every token, padding too, has an ordinary vector. (B, T) -> (B, T, D), and (…, D) -> (…, V).
    """

    roles: ClassVar[Mapping[str, Role]] = {"tokens.weight": "embedding"}

    def __init__(
        self,
        shape: Shape,
        norm: Norms,
        *,
        scale: Annotated[bool, "multiply token embeddings by the root of the width"] = False,
        normed: Annotated[bool, "add a norm after the positions, one for each stack"] = False,
    ) -> None:
        super().__init__()
        if shape.unembed_width not in (None, 0, shape.width):
            raise ValueError(f"a tied table scores vectors of width {shape.width}, got {shape.unembed_width}")
        self.vocabulary, self.wide, self.dropout = shape.vocabulary, shape.width, shape.dropout
        self.scale = math.sqrt(shape.width) if scale else 1.0
        self.normed = normed
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)

    def stack_part(self, shape: Shape, norm: Norms) -> nn.ModuleDict | None:
        return nn.ModuleDict({"norm": norm()}) if self.normed else None

    def forward(
        self, stream: Stream, past: int, place: AddPositions, part: nn.ModuleDict | None
    ) -> tuple[Tensor, TokenLayout]:
        layout = token_layout(stream, past)
        x = self.tokens(stream.tokens)
        if self.training and self.dropout:
            kept = functional.dropout(x.new_ones(self.vocabulary, 1), self.dropout)  # 0, or 1 / (1 - dropout)
            x = x * functional.embedding(stream.tokens, kept)
        x = place(x * self.scale, layout.positions)
        return x if part is None else part["norm"](x), layout

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        return functional.linear(h, self.tokens.weight, bias)

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * self.wide * self.vocabulary)


@hookimpl
def embedding() -> Mapping[str, type[Embedding]]:
    return {"dropped-words": DroppedWords}
