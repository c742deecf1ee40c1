"""Multiple choice: score each choice of a question from the first token of its sequence."""

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
class MultipleChoice(Objective):
    """Multiple choice: a score for each `[cls] context [sep] choice [sep]` from its first token, and a softmax over the
    choices: "BERT" (Devlin et al. 2019), 4.4, on data like SWAG.

    The choices of a question are documents of one example, which do not see each other: each has at most `dims.length`
    divided by their number. Before the score is BERT's pooler, a dense layer with tanh, unless it is switched off.
    (B, T, D) -> (B, C).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "texts",
        "corrupts": False,
        "visibility": "both",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "documents", "choices"],
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
        pooler: Annotated[bool, "put a dense layer with tanh before the score"] = True,
    ) -> None:
        super().__init__()
        self.classes = choices
        self.texts = choice_texts.ChoiceTexts(shape, vocabulary, "choose", choices)
        head = class_head.PooledHead if pooler else class_head.LinearHead
        self.head = head(shape.width, 1, bias=False)  # a bias would be the same for all choices

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        index = draw.index.numpy()
        batch = self.texts(tokens, index, length)
        labels = torch.from_numpy(labels_of(tokens, index))
        return TrainingExamples({"body": batch.stream}, {"labels": labels, "scored": batch.first})
