"""Translation language modelling: predict masked tokens of a text and its translation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import numpy as np
from torch import Tensor

from paribus import (
    Draw,
    Norms,
    Objective,
    ObjectiveTraits,
    Range,
    Role,
    Shape,
    Tokens,
    TrainingExamples,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import masking, scoring, vocabulary_head
from paribus_objective.activation import ACTIVATIONS, Activation
from paribus_objective.parallel_sentences import ParallelLayout


@final
class TranslationLanguageModelling(Objective, WeightConverter):
    """Translation language modelling: tokens of a text and of its translation are masked, and predicted from both.
    "Cross-lingual Language Model Pretraining" (Conneau & Lample 2019).

    `[cls] A [sep] [cls] B [sep]`: the order of the sides is random, positions of the second restart, and each token has
    the language of its text. A share of the examples may be monolingual, masked as in `mlm`, which XLM alternates with.
    (B, T) -> N masked positions -> (B, N, V).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "pairs",
        "corrupts": True,
        "visibility": "both",
        "parts": [],
        "segments": False,
        "needs": ["pairs", "mask", "cls", "sep"],
    }
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES
    corrupt = masking.corrupt
    head_positions = masking.head_positions
    scored_hidden = vocabulary_head.masked_hidden
    forward = vocabulary_head.forward
    cost = vocabulary_head.cost
    metrics = vocabulary_head.metrics
    update_metrics = vocabulary_head.update_metrics
    convert_weights = vocabulary_head.convert_weights

    def __init__(  # seven options and three injected values
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        monolingual: Annotated[float, "share of examples with one side only (XLM: a half)", Range(0, 1)] = 0.0,
        rate: masking.Rate = 0.15,
        mask: masking.Mask = 0.8,
        random: masking.Random = 0.1,
        transform: Annotated[bool, "put a dense layer, an activation and a norm before the scores"] = True,
        activation: Annotated[Activation, "between dense layer and norm; gelu is exact"] = "gelu",
        bias: Annotated[bool, "add a bias for each entry of the vocabulary"] = True,
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.monolingual = monolingual
        self.layout = ParallelLayout(shape, vocabulary, "tlm")
        self.masking = masking.Masking(vocabulary, rate, mask, random)
        self.activation = ACTIVATIONS[activation]
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(
            shape, norm, transform=transform, bias=bias
        )

    def example_count(self, tokens: Tokens, length: int) -> int:
        return len(tokens.documents) - 1

    def example_lengths(self, tokens: Tokens, length: int) -> masking.Array:
        return self.layout.lengths(tokens, length)

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        """Return the number of tokens truncated from long pairs."""
        return {"tokens truncated from pairs longer than the sequence": self.layout.truncated(tokens, length)}

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        return TrainingExamples({"body": self.layout(tokens, length, self.monolingual, draw)}, {})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return vocabulary_head.logits(self, hidden, unembed, self.activation)

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        """Return the loss of predicting the token frequencies of both sides, with add-one smoothing."""
        assert train.targets is not None, "the engine checks that the corpus has pairs"
        source, target = (np.bincount(side.ids, minlength=self.classes) for side in (train, train.targets))
        return scoring.frequency_loss(np.asarray(source + target), targets["labels"])
