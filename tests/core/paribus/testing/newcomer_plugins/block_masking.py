"""Objective: blocks of tokens are masked and predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional

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
    Shape,
    Stream,
    TrainingExamples,
    Unembed,
    Vocabulary,
)


@final
class BlockMasking(Objective):
    """Blocks of `span` tokens are replaced by mask tokens and predicted, at a random phase: after "SpanBERT" (Joshi et
    al. 2020).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "both",
        "parts": [],
        "segments": False,
        "needs": ["mask"],
        "token_terms": ["loss"],
    }

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of blocks that are predicted", Range(above=0, high=1)] = 0.2,
        span: Annotated[int, "tokens of a block", Range(1)] = 3,
        keep: Annotated[float, "share of predicted blocks that stay visible (BERT: .1)", Range(0, below=1)] = 0.1,
    ) -> None:
        super().__init__()
        self.rate, self.span, self.keep = rate, span, keep
        self.mask_token = vocabulary.specials["mask"]
        self.reserved = sorted(vocabulary.reserved)

    def text_length(self, length: int) -> int:
        return length

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        tokens = body.tokens
        length = tokens.shape[1]
        places = torch.arange(length) + draw.below("phase", self.span, 1)  # (B, T)
        block = places // self.span
        count = length // self.span + 2
        is_text = ~torch.isin(tokens, torch.tensor(self.reserved))
        if body.special is not None:
            is_text &= ~body.special.bool()
        if body.documents is not None:
            is_text &= body.documents >= 0
        share = draw.uniform("hide", count).gather(1, block).masked_fill(~is_text, 1.0)
        hide = is_text & ((share < self.rate) | (share == share.amin(1, keepdim=True)))  # at least one block
        kept = draw.uniform("keep", count).gather(1, block) < self.keep
        labels = tokens.masked_fill(~hide, IGNORED)
        shown = tokens.masked_fill(hide & ~kept, self.mask_token)
        return TrainingExamples({**streams, "body": body._replace(tokens=shown)}, {"labels": labels})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return unembed(hidden)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        logits, labels = self.logits(run.hidden(), run.unembed), run.targets["labels"]
        total = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return {"loss": LossTerm(total, (labels != IGNORED).sum())}

    def cost(self, load: Load) -> Cost:
        return Cost()

    def head_positions(self, length: int) -> int:
        return length
