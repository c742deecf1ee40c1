"""Hide some of the tokens, and predict them from what is left."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    Adopting,
    Converted,
    Cost,
    Draw,
    Formed,
    Load,
    Norms,
    Objective,
    Range,
    Role,
    Run,
    Shape,
    Stream,
    Term,
    Traits,
    Unembed,
    Vocabulary,
    leading,
)
from paribus_objective import masking, scoring
from paribus_objective.activation import ACTIVATIONS, Activation
from paribus_objective.narrowing import Narrow
from paribus_objective.span_masking import Spans, picking

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class MaskedLanguageModelling(Objective, Adopting):
    """Hidden tokens are predicted from both sides, hidden afresh in each epoch: "BERT" (Devlin et al. 2019), "RoBERTa".

    They may be hidden in `spans`: "SpanBERT" (Joshi et al. 2020), "ALBERT" (Lan et al. 2020); those count whole words,
    these tokens, as no stream says where a word begins.
    The head runs on the rows that were picked and on no other: (B, T, D) -> (B, N, D) -> (B, N, V). Special tokens and
    padding are never picked, and no special token is ever put in another's place.
    """

    traits: ClassVar[Traits] = {"corrupts": True, "sight": "both", "parts": [], "segments": False, "needs": ["mask"]}
    roles: ClassVar[Mapping[str, Role]] = {"dense.weight": "head", "dense.bias": "bias", "bias": "bias"}

    def __init__(  # noqa: PLR0913  # eight options, and what is injected
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of a text's tokens that are predicted", Range(above=0, high=1)] = 0.15,
        mask: Annotated[float, "share of these that the mask token stands in for", Range(0, 1)] = 0.8,
        random: Annotated[float, "share of these that a random token stands in for", Range(0, 1)] = 0.1,
        spans: Spans = Spans(),
        transform: Annotated[bool, "whether a dense layer, an activation and a norm precede the scores"] = True,
        transform_bias: Annotated[bool, "whether that dense layer has a bias (ModernBERT: no)"] = True,
        activation: Annotated[Activation, "between layer and norm; gelu is by erf (ALBERT: gelu-tanh)"] = "gelu",
        bias: Annotated[bool, "whether each entry of the vocabulary has a bias"] = True,
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.masking = masking.Masking(vocabulary, rate, mask, random, picking(spans, rate))
        self.narrow = None if transform else Narrow(shape)
        self.dense = nn.Linear(shape.width, shape.embedded, bias=transform_bias) if transform else None
        self.norm = norm(shape.embedded) if transform else None
        self.activation = ACTIVATIONS[activation]
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary)) if bias else None

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> Formed:
        body, pick, labels = self.masking(streams["body"], self.picks(streams["body"].tokens.shape[1]), draw)
        return Formed({**streams, "body": body}, {"pick": pick, "labels": labels})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        if self.dense is not None and self.norm is not None:
            hidden = self.norm(self.activation(self.dense(hidden)))
        elif self.narrow is not None:
            hidden = self.narrow(hidden)
        return unembed(hidden, self.bias)

    def forward(self, run: Run) -> Mapping[str, Term]:
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"])}

    def cost(self, load: Load) -> Cost:
        if self.narrow is not None:
            return self.narrow.cost(load)
        return Cost() if self.dense is None else Cost(flops=2 * load.picks * self.dense.weight.numel())

    def picks(self, length: int) -> int:
        return min(length, max(1, math.ceil(self.masking.rate * length)))

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes)}

    def observe(self, run: Run, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], self._logits(run), run.targets["labels"])

    def _logits(self, run: Run) -> Tensor:
        return run.once("logits", lambda: self.logits(masking.rows(run.hidden(), run.targets["pick"]), run.unembed))

    def adopt(self, other: nn.Module) -> Mapping[str, Converted]:
        """Of a larger or smaller vocabulary, the biases of the ids that both have."""
        if not isinstance(other, MaskedLanguageModelling) or self.bias is None or other.bias is None:
            return {}
        kept = leading(self.bias, other.bias)
        return {} if kept is None else {"bias": kept}
