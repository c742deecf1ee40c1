"""A table with a row for each token."""

from __future__ import annotations

import math
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
    WeightConverter,
    token_layout,
)
from paribus_embedding.tables import Tables, dropped, kept, looked_up, scored


@final
class TokenTable(Embedding, WeightConverter):
    """Rows looked up in a table that scores rows as well, where tied: "Using the Output Embedding to Improve Language
    Models" (Press & Wolf 2017).

    In order: tokens, scaled; segments; what the position places; a norm, which each stack has for itself; dropout, as
    in "BERT" (Devlin et al. 2019) and "BART" (Lewis et al. 2020).
    Padding is a row like any other. A stream without segments is all of segment 0, so every table has a gradient.
    (B, T) -> (B, T, D), and (…, D) -> (…, V).
    """

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
        segments: Annotated[int, "kinds of segments with a row each; 0: none (BERT: 2)", Range(0)] = 0,
        languages: Annotated[int, "languages with a row each; 0: none (XLM: 15)", Range(0)] = 0,
        normed: Annotated[bool, "whether a norm follows, behind the position (BERT: yes)"] = False,
        scale: Annotated[bool, "whether tokens are multiplied by the root of the width (Transformer: yes)"] = False,
        tie: Annotated[bool, "whether rows are scored by the table itself, and not by a head"] = True,
        damp: Annotated[bool, "whether rows are divided by the root of the width to be scored (T5: yes)"] = False,
    ) -> None:
        super().__init__()
        self.vocabulary, self.wide = shape.vocabulary, shape.width
        self.scale = math.sqrt(shape.width) if scale else 1.0
        self.damp = 1 / math.sqrt(shape.width) if damp else 1.0
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.segments = nn.Embedding(segments, shape.width) if segments else None
        self.languages = nn.Embedding(languages, shape.width) if languages else None
        self.normed = normed
        self.scored = shape.width if shape.scored is None else shape.scored
        if tie and self.scored not in (0, shape.width):
            raise ValueError(
                f"a table scores rows as wide as its own, {shape.width}, but those that come are {self.scored} wide; "
                "valid: as wide, or tie: false"
            )
        self.head = None if tie or not self.scored else nn.Linear(self.scored, shape.vocabulary, bias=False)
        self.dropout = shape.dropout

    @property
    def tables(self) -> Tables:
        return Tables(self.tokens, self.segments, self.languages, self.head)

    def own(self, shape: Shape, norm: Norms) -> nn.ModuleDict | None:
        return nn.ModuleDict({"norm": norm()}) if self.normed else None

    def forward(
        self, stream: Stream, past: int, place: AddPositions, own: nn.ModuleDict | None
    ) -> tuple[Tensor, TokenLayout]:
        rows = token_layout(stream, past)
        x = place(looked_up(stream, self.tables, self.scale), rows.positions)
        if own is not None:
            x = own["norm"](x)
        return dropped(x, self.dropout, self.training), rows

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.damp != 1.0:
            h = h * self.damp
        return scored(h, self.tokens, self.head, bias)

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.picks * self.scored * self.vocabulary)

    def adopt(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        """Of a larger or smaller vocabulary, the ids that both have; a head of its own begins as the tied table."""
        if not isinstance(other, TokenTable):
            return {}
        return kept(self.tables, other.tables)
