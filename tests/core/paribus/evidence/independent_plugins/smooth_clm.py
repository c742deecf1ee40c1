# objective smooth-clm | mistake: labels across document boundaries and of padding are not ignored: the last token of a document has to predict the first of the next | property: labels come from the document of their position; padding has no label
"""Causal language modelling with smoothed labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import (
    IGNORED,
    Cost,
    Draw,
    ForwardPass,
    GenerationTarget,
    Load,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Prompt,
    Range,
    Shape,
    Stream,
    TrainingExamples,
    Unembed,
    Vocabulary,
    hookimpl,
)


@final
class SmoothCausal(Objective):
    """Causal language modelling with smoothed labels (Szegedy et al. 2016)."""

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "past",
        "parts": [],
        "segments": False,
        "needs": [],
        "token_terms": ["loss"],
    }

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        smoothing: Annotated[float, "share of the probability that is spread over all tokens", Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        if shape.embedding_width != shape.width:
            raise ValueError("expected embeddings as wide as the stream")
        self.classes, self.smoothing, self.end = shape.vocabulary, smoothing, vocabulary.end_token

    def text_length(self, length: int) -> int:
        return length + 1

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        inputs = Stream(*(None if values is None else values[:, :-1] for values in body))
        return TrainingExamples({**streams, "body": inputs}, {"labels": body.tokens[:, 1:].clone()})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return unembed(hidden)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        labels = run.targets["labels"]
        total = run.summed_cross_entropy(
            lambda part: self.logits(part, run.unembed), run.hidden(), labels, self.classes, smoothing=self.smoothing
        )
        return {"loss": LossTerm(total, (labels != IGNORED).sum())}

    def cost(self, load: Load) -> Cost:
        return Cost()

    def head_positions(self, length: int) -> int:
        return length

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        return Prompt(tuple(ids) or (() if self.end is None else (self.end,)), stop=self.end)


@hookimpl
def objective() -> Mapping[str, type[Objective]]:
    return {"smooth-clm": SmoothCausal}
