# objective fixed-count-mlm | mistake: the masked positions are drawn once, with the key of the first example, and used for the whole batch | property: an example depends on its own key only, not on its batch
"""Masked language modelling with a fixed number of masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    IGNORED,
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Range,
    Role,
    Shape,
    Stream,
    TrainingExamples,
    Unembed,
    Vocabulary,
    hookimpl,
)


@final
class FixedCountMasked(Objective):
    """Masked language modelling in which every text has the same number of masks, and no random replacements."""

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "both",
        "parts": [],
        "segments": False,
        "needs": ["mask"],
        "token_terms": ["loss"],
    }
    roles: ClassVar[Mapping[str, Role]] = {"bias": "bias"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of the tokens that are masked", Range(above=0, high=1)] = 0.15,
    ) -> None:
        super().__init__()
        if shape.embedding_width != shape.width:
            raise ValueError("expected embeddings as wide as the stream")
        self.classes, self.rate = shape.vocabulary, rate
        self.mask, self.reserved = vocabulary.specials["mask"], sorted(vocabulary.reserved)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        length = body.tokens.shape[1]
        order = draw.uniform("pick", length)[:1].expand(len(body.tokens), -1)
        excluded = torch.isin(body.tokens, torch.tensor(self.reserved))
        if body.special is not None:
            excluded = excluded | body.special
        if body.documents is not None:
            excluded = excluded | (body.documents < 0)
        ranked = order.masked_fill(excluded, 2.0)
        picks = ranked.topk(self.head_positions(length), dim=1, largest=False).indices.sort(1).values
        unused = excluded.gather(1, picks)
        original = body.tokens.gather(1, picks)
        masked = body.tokens.scatter(1, picks, torch.where(unused, original, self.mask))
        labels = original.masked_fill(unused, IGNORED)
        return TrainingExamples({**streams, "body": body._replace(tokens=masked)}, {"pick": picks, "labels": labels})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return unembed(hidden, self.bias)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        labels, hidden = run.targets["labels"], run.hidden()
        picked = hidden.gather(1, run.targets["pick"].unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        total = run.summed_cross_entropy(lambda part: self.logits(part, run.unembed), picked, labels, self.classes)
        return {"loss": LossTerm(total, (labels != IGNORED).sum())}

    def cost(self, load: Load) -> Cost:
        return Cost()

    def head_positions(self, length: int) -> int:
        return max(1, round(self.rate * length))


@hookimpl
def objective() -> Mapping[str, type[Objective]]:
    return {"fixed-count-mlm": FixedCountMasked}
