"""Masked language modelling: predict masked tokens from both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import Norms, Objective, ObjectiveTraits, Role, Shape, Unembed, Vocabulary, WeightConverter
from paribus_objective import masking, vocabulary_head, whole_words, z_loss
from paribus_objective.activation import ACTIVATIONS, Activation
from paribus_objective.span_masking import Spans


@final
class MaskedLanguageModelling(Objective, WeightConverter):
    """Masked language modelling: "BERT" (Devlin et al. 2019), "RoBERTa" (Liu et al. 2019).

    Masks are new in each epoch, or a fixed number of masks in turn, at a rate that may change by `mask_schedule`. They
    hide single tokens, or `spans` of tokens or whole words: "SpanBERT" (Joshi et al. 2020), "ALBERT" (Lan et al. 2020).
    The head runs on the masked positions only: (B, T, D) -> (B, N, D) -> (B, N, V). Special tokens and padding are
    never masked, and no random replacement is a special token.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "both",
        "parts": [],
        "segments": False,
        "needs": ["mask"],
        "token_terms": ["loss"],
    }
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES
    corrupt = masking.corrupt
    head_positions = masking.head_positions
    scored_hidden = vocabulary_head.masked_hidden
    forward = z_loss.forward
    fill_logits = vocabulary_head.fill_logits
    cost = vocabulary_head.cost
    metrics = vocabulary_head.metrics
    update_metrics = vocabulary_head.update_metrics
    convert_weights = vocabulary_head.convert_weights

    def __init__(  # noqa: PLR0913  # ten options and three injected values
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: masking.Rate = 0.15,
        mask: masking.Mask = 0.8,
        random: masking.Random = 0.1,
        spans: Spans = Spans(),
        mask_schedule: masking.MaskSchedule = masking.MaskSchedule(),
        transform: Annotated[bool, "put a dense layer, an activation and a norm before the scores"] = True,
        transform_bias: Annotated[bool, "give that dense layer a bias (ModernBERT: no)"] = True,
        activation: Annotated[Activation, "between dense layer and norm; gelu is exact (ALBERT: gelu-tanh)"] = "gelu",
        bias: Annotated[bool, "add a bias for each entry of the vocabulary"] = True,
        z: z_loss.ZWeight = 0.0,
    ) -> None:
        super().__init__()
        self.classes, self.z = shape.vocabulary, z
        self.terms = z_loss.terms(z)  # type: ignore[misc]  # the class has the terms without a z-loss
        select = whole_words.selection(spans, mask_schedule.maximum_rate(rate), vocabulary)
        self.masking = masking.Masking(vocabulary, rate, mask, random, select, mask_schedule)
        self.activation = ACTIVATIONS[activation]
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(
            shape, norm, transform=transform, transform_bias=transform_bias, bias=bias
        )

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return vocabulary_head.logits(self, hidden, unembed, self.activation)
