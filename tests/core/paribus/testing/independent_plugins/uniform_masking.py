"""Masked language modelling with a random rate: each example hides another share of its tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

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
    Problem,
    Range,
    Role,
    Shape,
    SpecError,
    Stream,
    TrainingExamples,
    Unembed,
    Vocabulary,
    hookimpl,
)

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class UniformMasking(Objective):
    """Masked language modelling at all rates: the share of masked tokens of each example is uniform between two limits.
    "Mask-Predict" (Ghazvininejad et al. 2019), with one stack.

    Of each text, a share is drawn, and then that share of its tokens; all sets of tokens of one size are equally
    likely. Every chosen token is replaced by the mask token and predicted. Special tokens and padding are never masked.
    (B, T, D) -> (B, N, D) -> (B, N, V).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "both",
        "parts": [],
        "segments": False,
        "needs": ["mask"],
        "token_terms": ["loss"],
    }
    roles: ClassVar[Mapping[str, Role]] = {"dense.weight": "head", "dense.bias": "bias"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        low: Annotated[float, "smallest share of the text's tokens that is masked", Range(above=0, high=1)] = 0.1,
        high: Annotated[float, "largest share of the text's tokens that is masked", Range(above=0, high=1)] = 0.6,
    ) -> None:
        super().__init__()
        if low > high:
            raise ValueError(f"expected `low` ≤ `high`, got {low:g} and {high:g}")
        if "mask" not in vocabulary.specials:
            message = "uniform-masking needs the special token `mask`; the tokenizer has none"
            raise SpecError(Problem(code="missing-special-token", path="tokenizer", message=message))
        self.classes, self.low, self.high = shape.vocabulary, low, high
        self.mask_token, self.reserved = vocabulary.specials["mask"], sorted(vocabulary.reserved)
        self.dense = nn.Linear(shape.width, shape.embedding_width)
        self.norm = norm(shape.embedding_width)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        tokens, is_text = body.tokens, self.is_text(body)
        text_length = is_text.sum(1, keepdim=True)
        share = self.low + (self.high - self.low) * draw.uniform("share", 1).double()
        rounded = (share * text_length + draw.uniform("rounding", 1)).floor().long()
        count = torch.minimum(rounded.clamp(min=1), text_length)  # (B, 1)
        slots = self.head_positions(tokens.shape[1])
        keys = draw.uniform("pick", tokens.shape[1]).masked_fill(~is_text, 2.0)  # larger than every key of the text
        pick = keys.argsort(dim=1, stable=True)[:, :slots]
        chosen = torch.arange(slots) < count
        originals = tokens.gather(1, pick)
        masked = tokens.scatter(1, pick, originals.masked_fill(chosen, self.mask_token))
        labels = originals.masked_fill(~chosen, IGNORED)
        return TrainingExamples({**streams, "body": body._replace(tokens=masked)}, {"pick": pick, "labels": labels})

    def is_text(self, body: Stream) -> Tensor:
        """(B, T) bool: tokens that may be masked."""
        is_text = ~torch.isin(body.tokens, torch.tensor(self.reserved))
        if body.special is not None:
            is_text &= ~body.special
        if body.documents is not None:
            is_text &= body.documents >= 0
        return is_text

    def scored_hidden(self, run: ForwardPass) -> Tensor:
        """(B, N, D): hidden states of the chosen positions."""
        hidden = run.hidden()
        return hidden.gather(1, run.targets["pick"].unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return unembed(self.norm(functional.gelu(self.dense(hidden))))

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        labels = run.targets["labels"]
        total = run.summed_cross_entropy(
            lambda h: self.logits(h, run.unembed), self.scored_hidden(run), labels, self.classes
        )
        return {"loss": LossTerm(total, (labels != IGNORED).sum())}

    def fill_logits(self, run: ForwardPass) -> Tensor:
        return self.logits(self.scored_hidden(run), run.unembed)

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * self.dense.weight.numel())

    def head_positions(self, length: int) -> int:
        return min(length, max(1, math.ceil(self.high * length)))

    def metrics(self) -> Mapping[str, Metric]:
        from torchmetrics.classification import MulticlassAccuracy

        accuracy = MulticlassAccuracy(self.classes, average="micro", ignore_index=IGNORED, validate_args=False)
        return {"accuracy": accuracy}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        predictions = self.fill_logits(run).argmax(-1)
        metrics["accuracy"].update(predictions.flatten(), run.targets["labels"].flatten())


@hookimpl
def objective() -> Mapping[str, type[Objective]]:
    return {"uniform-masking": UniformMasking}
