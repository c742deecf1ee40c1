"""Token embedding (`tokens`)."""

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
from paribus_embedding.ngrams import NGrams, look_up_ngrams, ngram_tables
from paribus_embedding.tables import Tables, convert_tables, dropout, look_up, score_tokens


@final
class TokenTable(Embedding, WeightConverter):
    """Token embedding, whose table also scores tokens if tied (Press & Wolf 2017).

    "Using the Output Embedding to Improve Language Models". In order: tokens and n-grams, scaled; segments; positions;
    a norm, separate for each stack; dropout, as in "BERT" (Devlin et al. 2019) and "BART" (Lewis et al. 2020). Padding
    has an ordinary vector. Streams without segments use segment 0, so every table has a gradient. (B, T) -> (B, T, D),
    and (…, D) -> (…, V).
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
        segments: Annotated[int, "number of segment embeddings; 0: none (BERT: 2)", Range(0)] = 0,
        languages: Annotated[int, "number of language embeddings; 0: none (XLM: 15)", Range(0)] = 0,
        normed: Annotated[bool, "add a norm after the positions (BERT: yes)"] = False,
        scale: Annotated[bool, "multiply token embeddings by the root of the width (Transformer: yes)"] = False,
        tie: Annotated[bool, "score tokens with the table instead of a separate head"] = True,
        scale_outputs: Annotated[
            bool, "divide hidden states by the root of the width before scoring (T5: yes)"
        ] = False,
        soft_cap: Annotated[
            float | None, "limit c of scores before a bias, c tanh(score / c) (Gemma 2: 30); null: none", Range(above=0)
        ] = None,
        ngrams: NGrams = NGrams(),
    ) -> None:
        super().__init__()
        self.ngram_options, self.reach = ngrams, ngrams.longest - 1
        self.ngrams = ngram_tables(ngrams, shape.width) if self.reach else None
        self.vocabulary, self.wide = shape.vocabulary, shape.width
        self.scale = math.sqrt(shape.width) if scale else 1.0
        self.output_scale = 1 / math.sqrt(shape.width) if scale_outputs else 1.0
        self.soft_cap = soft_cap
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.segments = nn.Embedding(segments, shape.width) if segments else None
        self.languages = nn.Embedding(languages, shape.width) if languages else None
        self.normed = normed
        self.scored = shape.width if shape.unembed_width is None else shape.unembed_width
        if tie and self.scored not in (0, shape.width):
            raise ValueError(
                f"a tied table scores vectors of its own width, {shape.width}, got {self.scored}; "
                f"valid: {shape.width}, or tie: false"
            )
        self.head = None if tie or not self.scored else nn.Linear(self.scored, shape.vocabulary, bias=False)
        self.dropout = shape.dropout

    @property
    def tables(self) -> Tables:
        return Tables(self.tokens, self.segments, self.languages, self.head)

    def stack_part(self, shape: Shape, norm: Norms) -> nn.ModuleDict | None:
        return nn.ModuleDict({"norm": norm()}) if self.normed else None

    def forward(
        self, stream: Stream, past: int, place: AddPositions, part: nn.ModuleDict | None
    ) -> tuple[Tensor, TokenLayout]:
        layout = token_layout(stream, past)
        x = look_up(stream, self.tables, self.scale)
        if self.ngrams is not None:
            x = x + self.scale * look_up_ngrams(stream, past, self.ngram_options, self.ngrams)
        x = place(x, layout.positions)
        if part is not None:
            x = part["norm"](x)
        return dropout(x, self.dropout, self.training), layout

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.output_scale != 1.0:
            h = h * self.output_scale
        return score_tokens(h, self.tokens, self.head, bias, self.soft_cap)

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * self.scored * self.vocabulary)

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        """Convert a larger or smaller vocabulary: copy shared ids; a separate head starts as the tied table."""
        if not isinstance(other, TokenTable):
            return {}
        return convert_tables(self.tables, other.tables)
