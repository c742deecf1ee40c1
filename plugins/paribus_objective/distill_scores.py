"""Learn what a teacher scores, and not only which is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor
from torch.nn import functional

from paribus import (
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Range,
    Shape,
    Stream,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
)
from paribus_objective.teaching import alike, all_rows, summed


@final
class DistillScores(Objective):
    """The teacher's distribution at a temperature is matched on all rows: "Distilling the Knowledge in a Neural
    Network" (Hinton et al. 2015), "DistilBERT" (Sanh et al. 2019).

    The head is that of an objective beside it, in the model and in its teacher: KL(teacher || model), both at
    temperature t, times t², so that gradients are of one size at any t. (B, T, V) -> (B, T).
    """

    traits: ClassVar[Traits] = {
        "corrupts": False, "sight": "any", "parts": [], "segments": False, "needs": ["teacher"],
    }  # fmt: skip
    terms: ClassVar[Mapping[str, str]] = {"loss": "rows"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        of: Annotated[
            str | None, "objective whose head is distilled; null: the first beside it with a vocabulary"
        ] = None,
        temperature: Annotated[float, "scores are divided by it (DistilBERT: 2)", Range(above=0)] = 2.0,
        weight: Annotated[float, "what the loss is multiplied by (DistilBERT: 2.5, beside mlm)", Range(above=0)] = 1.0,
    ) -> None:
        super().__init__()
        self.of = of
        self.temperature = temperature
        self.weight = weight

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        return all_rows(streams)

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return unembed(hidden)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        ours, theirs = run.head_logits(self.of), run.teacher.head_logits(self.of)
        alike(ours, theirs, "scores so many classes", "the same vocabulary")
        told, known = (functional.log_softmax(scores / self.temperature, -1) for scores in (ours, theirs))
        apart = functional.kl_div(told, known, reduction="none", log_target=True).sum(-1)
        return {"loss": summed(apart * self.temperature**2, run.targets["rows"], self.weight)}

    def cost(self, load: Load) -> Cost:
        return Cost()  # the head is another's

    def head_positions(self, length: int) -> int:
        return length
