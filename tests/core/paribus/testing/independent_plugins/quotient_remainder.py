"""Token embedding of two small tables (`quotient-remainder`)."""

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
    Range,
    Role,
    Shape,
    Stream,
    TokenLayout,
    hookimpl,
    token_layout,
)


@final
class QuotientRemainder(Embedding):
    """Quotient-remainder embedding, the sum of a vector for id // m and one for id % m (Shi et al. 2020).

    "Compositional Embeddings Using Complementary Partitions". Each token has a sum of its own, from about 2 √V vectors.
    Both tables also score tokens: the score of a token is the sum of those of its vectors. Dropout follows the
    positions. (B, T) -> (B, T, D), and (…, D) -> (…, V).
    """

    roles: ClassVar[Mapping[str, Role]] = {"quotients.weight": "embedding", "remainders.weight": "embedding"}

    def __init__(
        self,
        shape: Shape,
        norm: Norms,
        *,
        remainders: Annotated[int | None, "m, vectors for remainders; null: √V, rounded up", Range(1)] = None,
    ) -> None:
        super().__init__()
        self.modulus = math.ceil(math.sqrt(shape.vocabulary)) if remainders is None else remainders
        if self.modulus > shape.vocabulary:
            raise ValueError(f"`remainders` must be at most the vocabulary ({shape.vocabulary}), got {remainders}")
        if shape.unembed_width not in (None, 0, shape.width):
            raise ValueError(f"the tables score vectors of width {shape.width}, got {shape.unembed_width}")
        self.vocabulary, self.wide, self.dropout = shape.vocabulary, shape.width, shape.dropout
        self.quotients = nn.Embedding(-(-shape.vocabulary // self.modulus), shape.width)
        self.remainders = nn.Embedding(self.modulus, shape.width)

    def forward(
        self, stream: Stream, past: int, place: AddPositions, part: nn.ModuleDict | None
    ) -> tuple[Tensor, TokenLayout]:
        layout = token_layout(stream, past)
        x = self.quotients(stream.tokens // self.modulus) + self.remainders(stream.tokens % self.modulus)
        return functional.dropout(place(x, layout.positions), self.dropout, self.training), layout

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        quotients = functional.linear(h, self.quotients.weight).unsqueeze(-1)  # (…, Q, 1)
        remainders = functional.linear(h, self.remainders.weight).unsqueeze(-2)  # (…, 1, m)
        scores = (quotients + remainders).flatten(-2)[..., : self.vocabulary]  # id = quotient * m + remainder
        return scores if bias is None else scores + bias

    def cost(self, load: Load) -> Cost:
        vectors = self.quotients.num_embeddings + self.modulus
        return Cost(flops=2 * load.head_positions * self.wide * vectors)


@hookimpl
def embedding() -> Mapping[str, type[Embedding]]:
    return {"quotient-remainder": QuotientRemainder}
