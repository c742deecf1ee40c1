"""A table narrower than the stream, and a projection between the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import (
    AddPositions,
    ConvertedTensor,
    Cost,
    Embedding,
    Load,
    Norms,
    Range,
    Role,
    Shape,
    Stream,
    TokenLayout,
    Traits,
    WeightConverter,
    token_layout,
)
from paribus_embedding.tables import Tables, dropped, kept, looked_up, scored


@final
class FactorisedTable(Embedding, WeightConverter):
    """A table of width E, from which each stack widens rows to its own width D: "ALBERT" (Lan et al. 2020), "ELECTRA"
    (Clark et al. 2020).

    In order, all at width E: tokens; segments; what the position places; a norm; dropout. Then the projection, with a
    bias, which a stack of width E has none of. Rows are scored at width E, where heads bring them.
    (B, T) -> (B, T, E) -> (B, T, D), and (…, E) -> (…, V).
    """

    width: int
    traits: ClassVar[Traits] = {"widens": True}
    roles: ClassVar[Mapping[str, Role]] = {
        "tokens.weight": "embedding",
        "segments.weight": "embedding",
        "languages.weight": "embedding",
        "head.weight": "head",
    }

    def __init__(
        self,
        shape: Shape,
        norm: Norms,
        *,
        width: Annotated[int, "width of the table, E (ALBERT, ELECTRA small: 128)", Range(1)] = 128,
        segments: Annotated[int, "kinds of segments with a row each; 0: none (ALBERT: 2)", Range(0)] = 0,
        languages: Annotated[int, "languages with a row each; 0: none (XLM: 15)", Range(0)] = 0,
        normed: Annotated[bool, "whether a norm follows, behind the position (ALBERT: yes)"] = False,
        tie: Annotated[bool, "whether rows are scored by the table itself, and not by a head"] = True,
    ) -> None:
        super().__init__()
        self.vocabulary, self.width = shape.vocabulary, width
        self.tokens = nn.Embedding(shape.vocabulary, width)
        self.segments = nn.Embedding(segments, width) if segments else None
        self.languages = nn.Embedding(languages, width) if languages else None
        self.norm = norm(width) if normed else None
        self.head = None if tie or shape.scored == 0 else nn.Linear(width, shape.vocabulary, bias=False)
        self.dropout = shape.dropout

    @property
    def tables(self) -> Tables:
        return Tables(self.tokens, self.segments, self.languages, self.head)

    def own(self, shape: Shape, norm: Norms) -> nn.ModuleDict | None:
        return None if shape.width == self.width else nn.ModuleDict({"project": nn.Linear(self.width, shape.width)})

    def forward(
        self, stream: Stream, past: int, place: AddPositions, own: nn.ModuleDict | None
    ) -> tuple[Tensor, TokenLayout]:
        rows = token_layout(stream, past)
        x = place(looked_up(stream, self.tables), rows.positions)
        if self.norm is not None:
            x = self.norm(x)
        x = dropped(x, self.dropout, self.training)
        return x if own is None else own["project"](x), rows

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        return scored(h, self.tokens, self.head, bias)

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.picks * self.width * self.vocabulary)

    def own_cost(self, shape: Shape, load: Load) -> Cost:
        return Cost() if shape.width == self.width else Cost(flops=2 * load.queries * self.width * shape.width)

    def adopt(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        """Of a larger or smaller vocabulary, the ids that both have; a head of its own begins as the tied table."""
        if not isinstance(other, FactorisedTable):
            return {}
        return kept(self.tables, other.tables)
