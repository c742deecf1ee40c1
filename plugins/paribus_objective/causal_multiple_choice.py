"""Multiple choice by a causal model: score each choice of a question from the last token of its sequence."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch

from paribus import (
    Draw,
    Norms,
    Objective,
    ObjectiveTraits,
    Range,
    Shape,
    Tokens,
    TrainingExamples,
    Vocabulary,
    labels_of,
)
from paribus_objective import choices as choice_texts
from paribus_objective import class_head, predictions


@final
class CausalMultipleChoice(Objective):
    """Multiple choice: a score for each `[bos] context [sep] choice [cls]` from its last token, and a softmax over the
    choices: "Improving Language Understanding" (Radford et al. 2018), 3.3, without the auxiliary loss.

    Their start, delimiter and extract tokens are `bos`, `sep` and `cls`. The choices of a question are documents of one
    example, which do not see each other: each has at most `dims.length` divided by their number. (B, T, D) -> (B, C).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "texts",
        "corrupts": False,
        "visibility": "past",
        "parts": [],
        "segments": True,
        "needs": ["bos", "sep", "cls", "documents", "choices"],
        "options_from_corpus": {"choices": "same"},
        "separates": True,
        "unembeds": False,
        "predicts": "choice",
    }
    example_count = choice_texts.example_count
    example_lengths = choice_texts.example_lengths
    skipped_documents = choice_texts.skipped_documents
    logits = class_head.logits
    class_logits = choice_texts.class_logits
    forward = class_head.forward
    unigram_loss = class_head.unigram_loss
    cost = class_head.cost
    head_positions = choice_texts.head_positions
    metrics = class_head.accuracy
    update_metrics = class_head.update_metrics
    predict = predictions.predict_classes

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        choices: Annotated[int, "number of choices of every question", Range(2, 64)] = 4,
    ) -> None:
        super().__init__()
        self.classes = choices
        self.texts = choice_texts.ChoiceTexts(shape, vocabulary, "choose-causal", choices, ("bos", "sep", "cls"))
        self.head = class_head.LinearHead(shape.width, 1, bias=False)  # a bias would be the same for all choices

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        index = draw.index.numpy()
        batch = self.texts(tokens, index, length)
        labels = torch.from_numpy(labels_of(tokens, index))
        return TrainingExamples({"body": batch.stream}, {"labels": labels, "scored": batch.last})
