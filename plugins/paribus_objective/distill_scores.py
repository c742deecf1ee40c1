"""Distillation of scores: match the teacher's output distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor
from torch.nn import functional

from paribus import (
    Cost,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Range,
    Shape,
    Unembed,
    Vocabulary,
    at_least_float32,
)
from paribus_objective import distillation


@final
class DistillScores(Objective):
    """Distillation of scores: the teacher's distribution, at a temperature, is matched at every position. "Distilling
    the Knowledge in a Neural Network" (Hinton et al. 2015), "DistilBERT" (Sanh et al. 2019).

    The head is that of another objective, in the model and in its teacher. The loss is KL(teacher || model), both at
    temperature t, times t², so that gradients have the same scale at any t. (B, T, V) -> (B, T).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": False, "visibility": "any", "parts": [], "segments": False, "needs": ["teacher"],
    }  # fmt: skip
    terms: ClassVar[Mapping[str, str]] = {"loss": "counted"}
    corrupt = distillation.mark_positions
    head_positions = distillation.every_position

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        objective: Annotated[
            str | None, "objective whose head is distilled; null: the first other one with a vocabulary"
        ] = None,
        temperature: Annotated[float, "divisor of the scores (DistilBERT: 2)", Range(above=0)] = 2.0,
        weight: Annotated[float, "weight of the loss (DistilBERT: 2.5, beside mlm)", Range(above=0)] = 1.0,
    ) -> None:
        super().__init__()
        self.objective = objective
        self.temperature = temperature
        self.weight = weight

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return unembed(hidden)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        student, teacher = run.head_logits(self.objective), run.teacher.head_logits(self.objective)
        distillation.check_same_shape(student, teacher, "numbers of classes", "the same vocabulary")
        log_student, log_teacher = (
            functional.log_softmax(at_least_float32(scores) / self.temperature, -1) for scores in (student, teacher)
        )
        divergence = functional.kl_div(log_student, log_teacher, reduction="none", log_target=True).sum(-1)
        losses = divergence * self.temperature**2
        return {"loss": distillation.weighted_loss(losses, run.targets["counted"], self.weight)}

    def cost(self, load: Load) -> Cost:
        return Cost()  # the other objective has the head
