"""Text classification by a causal model, with an auxiliary language modelling loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch

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
    Tokens,
    TrainingExamples,
    Vocabulary,
    labels_of,
)
from paribus_objective import class_head, labelled, predictions, scoring
from paribus_objective.projection import OutputProjection


@final
class CausalClassification(Objective):
    """Text classification from the last token of `[bos] A [cls]`, or of `[bos] A [sep] B [cls]` for a corpus of pairs,
    with next-token prediction as an auxiliary loss: "Improving Language Understanding" (Radford et al. 2018).

    Their start, delimiter and extract tokens are `bos`, `sep` and `cls`; as theirs, these are new to a pretrained
    language model. (B, T, D) -> (B, C), and (B, T, V) for the auxiliary loss.
    """

    terms: ClassVar[Mapping[str, str]] = {"loss": "labels", "auxiliary": "next_tokens"}
    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "texts",
        "corrupts": False,
        "visibility": "past",
        "parts": [],
        "segments": True,
        "needs": ["bos", "sep", "cls", "documents", "labels"],
        "options_from_corpus": {"classes": "least"},
        "predicts": "class",
    }
    example_lengths = labelled.example_lengths
    skipped_documents = labelled.skipped_documents
    logits = class_head.logits
    class_logits = class_head.pooled_logits
    unigram_loss = class_head.unigram_loss
    head_positions = class_head.one_position
    metrics = class_head.metrics
    update_metrics = class_head.update_metrics
    predict = predictions.predict_classes

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        classes: Annotated[int, "number of classes, at least as many as the corpus has", Range(2, 65536)] = 2,
        auxiliary: Annotated[float, "weight of the language modelling loss; 0: it is only measured", Range(0)] = 0.5,
        smoothing: Annotated[float, "label smoothing: share spread over all classes", Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.vocabulary_size = shape.vocabulary
        self.pool: class_head.Pool = "last"
        self.auxiliary = auxiliary
        self.smoothing = smoothing
        self.texts = labelled.LabelledTexts(shape, vocabulary, "classify-causal", ("bos", "sep", "cls"))
        self.head = class_head.LinearHead(shape.width, classes)
        self.narrow = OutputProjection(shape)

    def example_count(self, tokens: Tokens, length: int) -> int:
        labelled.check_one_label_each(tokens, "classify-causal")
        labelled.check_class_range(labelled.require_labels(tokens).values, self.classes, "classify-causal")
        return len(tokens.documents) - 1

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        index = draw.index.numpy()
        stream, last = self.texts(tokens, index, length)
        next_tokens = torch.full_like(stream.tokens, IGNORED)
        next_tokens[:, :-1] = stream.tokens[:, 1:]
        next_tokens[torch.arange(length) >= last.unsqueeze(1)] = IGNORED
        labels = torch.from_numpy(labels_of(tokens, index))
        return TrainingExamples({"body": stream}, {"labels": labels, "last": last, "next_tokens": next_tokens})

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        hidden, next_tokens = run.hidden("body"), run.targets["next_tokens"]
        auxiliary = scoring.token_cross_entropy(
            run, lambda part: run.unembed(self.narrow(part)), hidden, next_tokens, self.vocabulary_size
        )
        return {"loss": class_head.smoothed_loss(self, run), "auxiliary": auxiliary._replace(weight=self.auxiliary)}

    def cost(self, load: Load) -> Cost:
        return self.head.cost(load) + self.narrow.cost(load._replace(head_positions=load.head_positions * load.queries))

    def unembed_positions(self, length: int) -> int:
        return length
