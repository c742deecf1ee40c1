"""Hide tokens of a text and of its translation, and predict them from both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from torch import Tensor, nn

from paribus import (
    ConvertedTensor,
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Range,
    Role,
    Shape,
    Stream,
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import masking, scoring, vocabulary_head
from paribus_objective.activation import ACTIVATIONS, Activation
from paribus_objective.parallel_sentences import Layout

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class TranslationLanguageModelling(Objective, WeightConverter):
    """A text and its translation stand in one row, tokens of both are hidden, and are predicted from both:
    "Cross-lingual Language Model Pretraining" (Conneau & Lample 2019).

    `[cls] A [sep] [cls] B [sep]`: which side comes first is drawn, positions of the second begin anew, and each row is
    of its text's language. Some of the examples may be one side alone, hidden as `mlm` hides it, as XLM takes turns.
    (B, T) -> N rows that were picked -> (B, N, V).
    """

    traits: ClassVar[Traits] = {
        "forms": "pairs",
        "corrupts": True,
        "sight": "both",
        "parts": [],
        "segments": False,
        "needs": ["pairs", "mask", "cls", "sep"],
    }
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES

    def __init__(  # eight options, and what is injected
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        alone: Annotated[float, "share of examples that are one side alone (XLM: a half)", Range(0, 1)] = 0.0,
        rate: masking.Rate = 0.15,
        mask: masking.Mask = 0.8,
        random: masking.Random = 0.1,
        transform: Annotated[bool, "whether a dense layer, an activation and a norm precede the scores"] = True,
        activation: Annotated[Activation, "between layer and norm; gelu is by erf"] = "gelu",
        bias: Annotated[bool, "whether each entry of the vocabulary has a bias"] = True,
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.single = alone
        self.layout = Layout(shape, vocabulary, "tlm")
        self.masking = masking.Masking(vocabulary, rate, mask, random)
        self.activation = ACTIVATIONS[activation]
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(
            shape, norm, transform=transform, bias=bias
        )

    def example_count(self, tokens: Tokens, length: int) -> int:
        return len(tokens.documents) - 1

    def example_lengths(self, tokens: Tokens, length: int) -> masking.Array:
        return self.layout.lengths(tokens, length)

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        return TrainingExamples({"body": self.layout(tokens, length, self.single, draw)}, {})

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body, pick, labels = self.masking(streams["body"], self.head_positions(streams["body"].tokens.shape[1]), draw)
        return TrainingExamples({**streams, "body": body}, {"pick": pick, "labels": labels})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return vocabulary_head.logits(self, hidden, unembed, self.activation)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"])}

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        """Of the tokens of both sides, with one added to each."""
        return scoring.prior(_counted(train, self.classes), targets["labels"])

    def cost(self, load: Load) -> Cost:
        return vocabulary_head.cost(self, load)

    def head_positions(self, length: int) -> int:
        return self.masking.most(length)

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes)}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], self._logits(run), run.targets["labels"])

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(masking.rows(run.hidden(), run.targets["pick"]), run.unembed))

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        return vocabulary_head.adopted(self, other)


def _counted(tokens: Tokens, classes: int) -> scoring.Ints:
    """(V,) how often each id is in either side."""
    assert tokens.targets is not None, "the rules let only a corpus of pairs come here"
    here, there = (np.bincount(side.ids, minlength=classes) for side in (tokens, tokens.targets))
    return np.asarray(here + there)
