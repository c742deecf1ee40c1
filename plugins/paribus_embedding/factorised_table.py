"""Factorised token embedding (`factorised`): a narrow table and a projection to the model width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import (
    AddPositions,
    ConvertedTensor,
    Cost,
    Embedding,
    EmbeddingTraits,
    Load,
    Norms,
    Range,
    Role,
    Shape,
    Stream,
    TokenLayout,
    WeightConverter,
    token_layout,
)
from paribus_embedding.tables import Tables, convert_tables, dropout, look_up, score_tokens


@final
class FactorisedTable(Embedding, WeightConverter):
    """Factorised token embedding, a table of width E projected to the model width (Lan et al. 2020).

    "ALBERT", "ELECTRA" (Clark et al. 2020). In order, at width E: tokens; segments; positions; a norm; dropout. Then a
    projection with a bias, unless the stack has width E. Scores are computed at width E. (B, T) -> (B, T, E) -> (B, T,
    D), and (…, E) -> (…, V).
    """

    width: int
    traits: ClassVar[EmbeddingTraits] = {"any_width": True}
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
        segments: Annotated[int, "number of segment embeddings; 0: none (ALBERT: 2)", Range(0)] = 0,
        languages: Annotated[int, "number of language embeddings; 0: none (XLM: 15)", Range(0)] = 0,
        normed: Annotated[bool, "add a norm after the positions (ALBERT: yes)"] = False,
        tie: Annotated[bool, "score tokens with the table instead of a separate head"] = True,
        soft_cap: Annotated[
            float | None, "limit c of scores before a bias, c tanh(score / c) (Gemma 2: 30); null: none", Range(above=0)
        ] = None,
    ) -> None:
        super().__init__()
        self.soft_cap = soft_cap
        self.vocabulary, self.width = shape.vocabulary, width
        self.tokens = nn.Embedding(shape.vocabulary, width)
        self.segments = nn.Embedding(segments, width) if segments else None
        self.languages = nn.Embedding(languages, width) if languages else None
        self.norm = norm(width) if normed else None
        self.head = None if tie or shape.unembed_width == 0 else nn.Linear(width, shape.vocabulary, bias=False)
        self.dropout = shape.dropout

    @property
    def tables(self) -> Tables:
        return Tables(self.tokens, self.segments, self.languages, self.head)

    def stack_part(self, shape: Shape, norm: Norms) -> nn.ModuleDict | None:
        return None if shape.width == self.width else nn.ModuleDict({"project": nn.Linear(self.width, shape.width)})

    def forward(
        self, stream: Stream, past: int, place: AddPositions, part: nn.ModuleDict | None
    ) -> tuple[Tensor, TokenLayout]:
        layout = token_layout(stream, past)
        x = place(look_up(stream, self.tables), layout.positions)
        if self.norm is not None:
            x = self.norm(x)
        x = dropout(x, self.dropout, self.training)
        return x if part is None else part["project"](x), layout

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        return score_tokens(h, self.tokens, self.head, bias, self.soft_cap)

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * self.width * self.vocabulary)

    def stack_part_cost(self, shape: Shape, load: Load) -> Cost:
        return Cost() if shape.width == self.width else Cost(flops=2 * load.queries * self.width * shape.width)

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        """Convert a larger or smaller vocabulary: copy shared ids; a separate head starts as the tied table."""
        if not isinstance(other, FactorisedTable):
            return {}
        return convert_tables(self.tables, other.tables)
