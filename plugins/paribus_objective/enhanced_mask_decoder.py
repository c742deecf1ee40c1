"""Enhanced mask decoder: masked language modelling with absolute positions added before the head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import (
    Capture,
    ForwardPass,
    Norms,
    Objective,
    ObjectiveTraits,
    Range,
    Role,
    Shape,
    Vocabulary,
    WeightConverter,
    token_layout,
)
from paribus_objective import masking, vocabulary_head, whole_words
from paribus_objective.span_masking import Spans


@final
class EnhancedMaskDecoder(Objective, WeightConverter):
    """Enhanced mask decoder: masked tokens are predicted with absolute positions, which the layers before do not have.
    "DeBERTa" (He et al. 2021), section 3.2.

    A position embedding is added to the input of the last layer at each masked position. The sum goes through that
    layer, twice in the authors' code, as queries over the layer's input, and the result goes through the head. Only
    masked positions do so; the head alone (`logits`) uses no positions. (B, N, D) -> (B, N, V).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "both",
        "parts": [],
        "segments": False,
        "needs": ["mask", "last-layer"],
        "token_terms": ["loss"],
    }
    captures = Capture(last_layer_input=True)
    roles: ClassVar[Mapping[str, Role]] = {**vocabulary_head.ROLES, "places.weight": "embedding"}
    corrupt = masking.corrupt
    head_positions = masking.head_positions
    logits = vocabulary_head.logits
    forward = vocabulary_head.forward
    fill_logits = vocabulary_head.fill_logits
    cost = vocabulary_head.cost
    metrics = vocabulary_head.metrics
    update_metrics = vocabulary_head.update_metrics
    convert_weights = vocabulary_head.convert_weights

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
        steps: Annotated[int, "number of passes through the last layer with positions", Range(1)] = 2,
    ) -> None:
        super().__init__()
        self.classes, self.last_position = shape.vocabulary, shape.length - 1
        select = whole_words.selection(spans, rate, vocabulary)
        self.masking = masking.Masking(vocabulary, rate, mask, random, select)
        self.last_layer_reruns = steps
        self.places = nn.Embedding(shape.length, shape.width)
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm)

    def decode(self, run: ForwardPass) -> Tensor:
        """(B, N, D): the masked positions after the last layer, with their positions added."""
        pick = run.targets["pick"]
        positions = token_layout(run.streams["body"]).positions.expand(pick.shape[0], -1).gather(1, pick)
        embedded = self.places(positions.clamp(0, self.last_position))  # positions of padding may be out of range
        return run.rerun_last_layer(
            masking.gather(run.last_layer_input(), pick) + embedded, pick, self.last_layer_reruns
        )

    def scored_hidden(self, run: ForwardPass) -> Tensor:
        return self.decode(run)
