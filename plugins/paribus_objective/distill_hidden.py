"""Distillation of hidden states: match the teacher's hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    Capture,
    Cost,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Range,
    Role,
    Shape,
    Unembed,
    Vocabulary,
    at_least_float32,
)
from paribus_objective import distillation


@final
class DistillHidden(Objective):
    """Distillation of hidden states: those of the last layer by cosine, "DistilBERT" (Sanh et al. 2019), or those of
    any `layers`, "TinyBERT" (Jiao et al. 2020), mapped to the teacher's width by a learned matrix, one for all layers
    and another for the embeddings.

    The loss is 1 - cos of the hidden states, or their mean squared difference; the sum over layers. Hidden states of
    layers are taken before a final norm. (B, T, D) -> (B, T).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": False, "visibility": "any", "parts": [], "segments": False, "needs": ["teacher"], "unembeds": False,
        "teacher": {"width": "width"},
    }  # fmt: skip
    roles: ClassVar[Mapping[str, Role]] = {"project.weight": "head", "enter.weight": "head"}
    terms: ClassVar[Mapping[str, str]] = {"loss": "counted"}
    corrupt = distillation.mark_positions
    head_positions = distillation.every_position

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        width: Annotated[int | None, "the teacher's width, if it differs from the model's", Range(1)] = None,
        loss: Annotated[Literal["cosine", "squared"], "difference of the hidden states (TinyBERT: squared)"] = "cosine",
        layers: Annotated[
            tuple[int, ...], "the model's layers, from 1, or back from -1; 0: the embeddings; none: the final output"
        ] = (),
        teacher_layers: Annotated[
            tuple[int, ...], "the teacher's layer for each (TinyBERT: 0, 3, 6, 9, 12 for 0 to 4)"
        ] = (),
        weight: Annotated[float, "weight of the loss (DistilBERT: 0.5, beside mlm)", Range(above=0)] = 1.0,
    ) -> None:
        super().__init__()
        if len(layers) != len(teacher_layers):
            raise ValueError(
                f"expected as many `layers` as `teacher_layers`, got {len(layers)} and {len(teacher_layers)}"
            )
        needs_projection = width is not None and (not layers or any(layers))
        self.project = nn.Linear(shape.width, width, bias=False) if width is not None and needs_projection else None
        self.enter = nn.Linear(shape.width, width, bias=False) if width is not None and 0 in layers else None
        self.difference = _cosine_distance if loss == "cosine" else _squared_difference
        self.pairs = tuple(zip(layers, teacher_layers, strict=True))
        self.captures, self.teacher_captures = Capture(hidden=layers), Capture(hidden=teacher_layers)
        self.weight = weight

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return hidden if self.project is None else self.project(hidden)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        losses = [self._loss(student, teacher) for student, teacher in self._hidden_pairs(run)]
        return {"loss": distillation.weighted_loss(torch.stack(losses).sum(0), run.targets["counted"], self.weight)}

    def cost(self, load: Load) -> Cost:
        layers = max(1, sum(layer != 0 for layer, _ in self.pairs))
        uses = [(self.project, layers), (self.enter, sum(layer == 0 for layer, _ in self.pairs))]
        return Cost(
            flops=sum(2 * load.head_positions * map_.weight.numel() * n for map_, n in uses if map_ is not None)
        )

    def _hidden_pairs(self, run: ForwardPass) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield hidden states of the model and of its teacher."""
        if not self.pairs:
            yield self.logits(run.hidden(), run.unembed), run.teacher.hidden()
        for layer, teacher_layer in self.pairs:
            projection = self.project if layer else self.enter
            hidden = run.captured(layer, "hidden")
            yield hidden if projection is None else projection(hidden), run.teacher.captured(teacher_layer, "hidden")

    def _loss(self, student: Tensor, teacher: Tensor) -> Tensor:
        distillation.check_same_shape(student, teacher, "widths of hidden states", "`width`: the teacher's")
        return self.difference(at_least_float32(student), at_least_float32(teacher))


def _cosine_distance(student: Tensor, teacher: Tensor) -> Tensor:
    return 1 - functional.cosine_similarity(student, teacher, dim=-1)


def _squared_difference(student: Tensor, teacher: Tensor) -> Tensor:
    return (student - teacher).square().mean(-1)
