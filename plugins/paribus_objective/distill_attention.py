"""Distillation of attention scores: match the teacher's, before the softmax, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import (
    Capture,
    Cost,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Problem,
    Range,
    Shape,
    SpecError,
    Unembed,
    Vocabulary,
    at_least_float32,
)
from paribus_objective import distillation
from paribus_objective.distill_relations import attention_mask


@final
class DistillAttention(Objective):
    """Distillation of attention scores, the products of queries and keys before the softmax: "TinyBERT" (Jiao et al.
    2020).

    Head h of a layer is matched with head h of the teacher's layer, so both models have the same number of heads;
    their widths may differ. The loss is the mean squared difference of a token's scores with all tokens that it sees,
    averaged over heads and summed over layers. Scores are divided by the root of the head width; they include rotary
    positions, but no biases. (B, H, T, K) of both -> (B, T).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": False, "visibility": "any", "parts": [], "segments": False, "needs": ["teacher"], "unembeds": False,
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
        layers: Annotated[tuple[int, ...], "the model's layers, from 1, or back from -1"] = (-1,),
        teacher_layers: Annotated[
            tuple[int, ...], "the teacher's layer for each (TinyBERT: 3, 6, 9, 12 for 1 to 4)"
        ] = (-1,),
        weight: Annotated[float, "weight of the loss", Range(above=0)] = 1.0,
    ) -> None:
        super().__init__()
        if not layers or len(layers) != len(teacher_layers):
            message = "expected one or more `layers`, and as many `teacher_layers`"
            raise ValueError(f"{message}; got {len(layers)} and {len(teacher_layers)}")
        if 0 in (*layers, *teacher_layers):
            raise ValueError("expected layers ≥ 1, or ≤ -1 from the end; layer 0 has no attention")
        self.pairs = tuple(zip(layers, teacher_layers, strict=True))
        self.captures, self.teacher_captures = Capture(heads=layers), Capture(heads=teacher_layers)
        self.weight = weight
        self.causal, self.width = shape.causal, shape.heads * shape.head_width

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return hidden

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        counted = run.targets["counted"]
        mask = attention_mask(run.streams["body"].documents, counted, causal=self.causal)
        losses = [
            _mean_squared_difference(_scores(run, layer), _scores(run.teacher, teacher_layer), mask)
            for layer, teacher_layer in self.pairs
        ]
        return {"loss": distillation.weighted_loss(torch.stack(losses).sum(0), counted, self.weight)}

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * load.keys * self.width * len(self.pairs))


def _scores(run: ForwardPass, layer: int) -> Tensor:
    """(B, H, T, T): scaled products of queries and keys, the latter repeated for the query heads of each group."""
    q, k = run.captured(layer, "q"), run.captured(layer, "k")
    repeated = k if k.shape[1] == q.shape[1] else k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return at_least_float32(q @ repeated.transpose(-1, -2)) / math.sqrt(q.shape[-1])


def _mean_squared_difference(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """(B, H, T, T) of both -> (B, T): the mean over heads and visible tokens."""
    if student.shape[1] != teacher.shape[1]:
        message = f"the teacher has {teacher.shape[1]} heads, and the model {student.shape[1]}"
        valid = f"`dims.heads`: {teacher.shape[1]}, or the objective distill-relations, which regroups heads"
        raise SpecError(Problem(code="does-not-fit", path="objective", message=message, valid=valid))
    length = mask.shape[-1]
    difference = (student - teacher)[..., :length, :length].masked_fill(~mask, 0.0)
    visible = mask.squeeze(1).sum(-1).clamp(min=1)  # (B|1, T); padding sees nothing, and is not counted
    return difference.square().mean(1).sum(-1) / visible
