"""Hide some of the tokens, and predict them from what is left and from where they stood."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import (
    Capture,
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
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    WeightConverter,
    token_layout,
)
from paribus_objective import masking, scoring, vocabulary_head
from paribus_objective.span_masking import Spans
from paribus_objective.word_picking import picking

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class EnhancedMaskDecoder(Objective, WeightConverter):
    """Hidden tokens are predicted by rows that are told where they are, absolutely, and only then: "DeBERTa" (He et al.
    2021), section 3.2.

    To what the last layer reads of each, a vector of its place is added; the sum goes through that layer, twice in the
    authors' code, over what the layer read, and what comes of it meets the head. So do the rows that are hidden, and no
    others: the head alone (`logits`) knows of no place. (B, N, D) -> (B, N, V).
    """

    traits: ClassVar[Traits] = {
        "corrupts": True,
        "sight": "both",
        "parts": [],
        "segments": False,
        "needs": ["mask", "last-layer"],
    }
    captures = Capture(last_layer_input=True)
    roles: ClassVar[Mapping[str, Role]] = {**vocabulary_head.ROLES, "places.weight": "embedding"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: masking.Rate = 0.15,
        mask: masking.Mask = 0.8,
        random: masking.Random = 0.1,
        spans: Spans = Spans(),
        steps: Annotated[int, "how often rows that know their place go through the last layer", Range(1)] = 2,
    ) -> None:
        super().__init__()
        self.classes, self.last = shape.vocabulary, shape.length - 1
        self.masking = masking.Masking(vocabulary, rate, mask, random, picking(spans, rate, vocabulary))
        self.last_layer_reruns = steps
        self.places = nn.Embedding(shape.length, shape.width)
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(shape, norm)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body, pick, labels = self.masking(streams["body"], self.head_positions(streams["body"].tokens.shape[1]), draw)
        return TrainingExamples({**streams, "body": body}, {"pick": pick, "labels": labels})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return vocabulary_head.logits(self, hidden, unembed)

    def decoded(self, run: ForwardPass) -> Tensor:
        """(B, N, D): what is hidden, as it comes out behind the last layer once it knows its place."""
        pick = run.targets["pick"]
        positions = token_layout(run.streams["body"]).positions.expand(pick.shape[0], -1).gather(1, pick)
        placed = self.places(positions.clamp(0, self.last))  # padding may stand beyond either end
        return run.rerun_last_layer(masking.rows(run.last_layer_input(), pick) + placed, pick, self.last_layer_reruns)

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
        return run.cached("logits", lambda: self.logits(self.decoded(run), run.unembed))

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        return vocabulary_head.adopted(self, other)
