"""Hide some of the tokens, and predict them from what is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, final

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
    Role,
    Shape,
    Stream,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import masking, scoring, vocabulary_head
from paribus_objective.activation import ACTIVATIONS, Activation
from paribus_objective.span_masking import Spans
from paribus_objective.word_picking import picking

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class MaskedLanguageModelling(Objective, WeightConverter):
    """Hidden tokens are predicted from both sides: "BERT" (Devlin et al. 2019), "RoBERTa" (Liu et al. 2019).

    They are hidden afresh in each epoch, or by so many masks in turn, at a rate that may change `over_time`; each by
    itself, or in `spans` of tokens or of whole words: "SpanBERT" (Joshi et al. 2020), "ALBERT" (Lan et al. 2020).
    The head runs on the rows that were picked and on no other: (B, T, D) -> (B, N, D) -> (B, N, V). Special tokens and
    padding are never picked, and no special token is ever put in another's place.
    """

    traits: ClassVar[Traits] = {"corrupts": True, "sight": "both", "parts": [], "segments": False, "needs": ["mask"]}
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES

    def __init__(  # noqa: PLR0913  # nine options, and what is injected
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: masking.Rate = 0.15,
        mask: masking.Mask = 0.8,
        random: masking.Random = 0.1,
        spans: Spans = Spans(),
        over_time: masking.OverTime = masking.OverTime(),
        transform: Annotated[bool, "whether a dense layer, an activation and a norm precede the scores"] = True,
        transform_bias: Annotated[bool, "whether that dense layer has a bias (ModernBERT: no)"] = True,
        activation: Annotated[Activation, "between layer and norm; gelu is by erf (ALBERT: gelu-tanh)"] = "gelu",
        bias: Annotated[bool, "whether each entry of the vocabulary has a bias"] = True,
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        pick = picking(spans, over_time.most(rate), vocabulary)
        self.masking = masking.Masking(vocabulary, rate, mask, random, pick, over_time)
        self.activation = ACTIVATIONS[activation]
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(
            shape, norm, transform=transform, transform_bias=transform_bias, bias=bias
        )

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body, pick, labels = self.masking(streams["body"], self.head_positions(streams["body"].tokens.shape[1]), draw)
        return TrainingExamples({**streams, "body": body}, {"pick": pick, "labels": labels})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return vocabulary_head.logits(self, hidden, unembed, self.activation)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"])}

    def fill_logits(self, run: ForwardPass) -> Tensor:
        return self._logits(run)

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
