"""Distillation of self-attention relations: match the teacher's, whatever its width."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

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

Relation = Literal["qk", "qq", "kk", "vv"]


@final
class DistillRelations(Objective):
    """Distillation of relations between queries, keys and values of one layer: "MiniLM" (Wang et al. 2020), by `qk`,
    the attention, and `vv`; "MiniLMv2" (Wang et al. 2021), by the defaults.

    Heads are concatenated and split into as many relation `heads` in both models, so neither widths nor numbers of
    heads need to be equal. A relation is the softmax of each token's scaled products with all tokens that it sees. The
    loss is KL(teacher || model), averaged over heads and summed over relations. Queries and keys include rotary
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
        relations: Annotated[
            tuple[Relation, ...], "relations that are matched (MiniLM: qk, vv; MiniLMv2: qq, kk, vv)"
        ] = ("qq", "kk", "vv"),
        heads: Annotated[int | None, "relation heads (MiniLMv2: 48, 64); null: attention heads", Range(1)] = None,
        layer: Annotated[int, "layer of the model, from 1, or back from -1"] = -1,
        teacher_layer: Annotated[int, "layer of the teacher (MiniLMv2: 21 of BERT large's 24)"] = -1,
        weight: Annotated[float, "weight of the loss", Range(above=0)] = 1.0,
    ) -> None:
        super().__init__()
        if not relations or len(set(relations)) < len(relations):
            given = ", ".join(relations) or "none"
            raise ValueError(f"expected `relations` among qk, qq, kk and vv, each once; got {given}")
        if 0 in (layer, teacher_layer):
            raise ValueError("expected a layer ≥ 1, or ≤ -1 from the end; layer 0 has no attention")
        self.relations, self.heads = relations, heads
        self.layer, self.teacher_layer, self.weight = layer, teacher_layer, weight
        self.causal, self.width = shape.causal, shape.heads * shape.head_width
        self.captures, self.teacher_captures = Capture(heads=(layer,)), Capture(heads=(teacher_layer,))

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return hidden

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        counted = run.targets["counted"]
        mask = attention_mask(run.streams["body"].documents, counted, causal=self.causal)
        sides = (run, self.layer), (run.teacher, self.teacher_layer)
        student, teacher = ({name: side.captured(layer, name) for name in "qkv"} for side, layer in sides)
        heads = self._relation_heads(student["q"], teacher["q"])
        losses = torch.zeros_like(counted, dtype=student["q"].dtype)
        for left, right in self.relations:
            log_student, log_teacher = (
                log_relation(side[left], side[right], side["q"].shape[1], heads, mask) for side in (student, teacher)
            )
            losses = losses + (log_teacher.exp() * (log_teacher - log_student)).sum(-1).mean(1)
        return {"loss": distillation.weighted_loss(losses, counted, self.weight)}

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * load.keys * self.width * len(self.relations))

    def _relation_heads(self, student: Tensor, teacher: Tensor) -> int:
        """Return the number of relation heads; raise a SpecError if a width is not divisible by it."""
        if self.heads is None and student.shape[1] != teacher.shape[1]:
            message = f"the teacher has {teacher.shape[1]} heads, and the model {student.shape[1]}"
            valid = "`heads`: the number of relation heads of both"
            raise SpecError(Problem(code="does-not-fit", path="objective", message=message, valid=valid))
        heads = self.heads or student.shape[1]
        for name, q in (("model", student), ("teacher", teacher)):
            width = q.shape[1] * q.shape[3]
            if width % heads:
                message = f"the attention of the {name} has the width {width}, not a multiple of {heads} relation heads"
                raise SpecError(Problem(code="does-not-fit", path="objective.heads", message=message))
        return heads


def attention_mask(documents: Tensor | None, counted: Tensor, *, causal: bool) -> Tensor:
    """(B|1, 1, T, T) bool: the tokens of the same document that each token sees; never padding, nor, if causal, later
    ones."""
    length = counted.shape[1]
    mask = torch.ones(1, length, length, dtype=torch.bool, device=counted.device)
    if documents is not None:
        mask = (documents.unsqueeze(2) == documents.unsqueeze(1)) & (documents >= 0).unsqueeze(1)
    return (mask.tril() if causal else mask).unsqueeze(1)


def log_relation(left: Tensor, right: Tensor, query_heads: int, heads: int, mask: Tensor) -> Tensor:
    """(B, G, T, K), (B, G', T, K) -> (B, h, T, T): log-softmax of the scaled products of all tokens."""
    length = mask.shape[-1]
    a, b = (_relation_heads(x[:, :, :length], query_heads, heads) for x in (left, right))
    scores = at_least_float32(a @ b.transpose(-1, -2)) / math.sqrt(a.shape[-1])
    # Finite, since -inf minus -inf is not a number; masked entries are equal in both models.
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min / 2).log_softmax(-1)


def _relation_heads(x: Tensor, query_heads: int, heads: int) -> Tensor:
    """(B, G, T, K) -> (B, h, T, H*K/h): repeat for the query heads of each group, concatenate, and split."""
    repeated = x if x.shape[1] == query_heads else x.repeat_interleave(query_heads // x.shape[1], dim=1)
    split: Tensor = repeated.transpose(1, 2).flatten(2).unflatten(2, (heads, -1))
    return split.transpose(1, 2)
