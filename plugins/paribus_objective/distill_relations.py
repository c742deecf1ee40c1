"""Learn how rows relate to each other as a teacher's do, whatever its width."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor

from paribus import (
    Capture,
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Problem,
    Range,
    Shape,
    SpecError,
    Stream,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
)
from paribus_objective.teaching import all_rows, summed

Relation = Literal["qk", "qq", "kk", "vv"]


@final
class DistillRelations(Objective):
    """Queries, keys and values of one layer relate to each other as in a layer of the teacher: "MiniLM" (Wang et al.
    2020), by `qk`, which is how much rows attend to each other, and `vv`; "MiniLMv2" (Wang et al. 2021), as it stands.

    What heads hold is put side by side and cut anew into as many `heads` on both sides: neither widths nor numbers of
    heads need be alike. The softmax of each row's products with all that it sees, over the root of their width, is held
    against the teacher's, KL(teacher || model), in the mean of heads and the sum of relations. Positions have turned
    queries and keys; biases are left out. (B, H, T, K) of both -> (B, T).
    """

    traits: ClassVar[Traits] = {
        "corrupts": False, "sight": "any", "parts": [], "segments": False, "needs": ["teacher"], "unembeds": False,
    }  # fmt: skip
    terms: ClassVar[Mapping[str, str]] = {"loss": "rows"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        relations: Annotated[
            tuple[Relation, ...], "what is held against what (MiniLM: qk, vv; its second version: qq, kk, vv)"
        ] = ("qq", "kk", "vv"),
        heads: Annotated[int | None, "relation heads (MiniLMv2: 48, 64); null: the attention's", Range(1)] = None,
        layer: Annotated[int, "layer of the model, from 1, or back from -1"] = -1,
        of: Annotated[int, "layer of the teacher (MiniLMv2: 21 of BERT large's 24)"] = -1,
        weight: Annotated[float, "what the loss is multiplied by", Range(above=0)] = 1.0,
    ) -> None:
        super().__init__()
        if not relations or len(set(relations)) < len(relations):
            said = ", ".join(relations) or "none"
            raise ValueError(f"`relations` are {said}; valid: some of qk, qq, kk and vv, each once")
        if 0 in (layer, of):
            raise ValueError("layer 0 has no attention; valid: 1 and more, or -1 and less, which is the last")
        self.relations, self.heads = relations, heads
        self.layer, self.of, self.weight = layer, of, weight
        self.causal, self.width = shape.causal, shape.heads * shape.head_width
        self.captures, self.teacher_captures = Capture(heads=(layer,)), Capture(heads=(of,))

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        return all_rows(streams)

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return hidden

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        rows = run.targets["rows"]
        seen = visible(run.streams["body"].documents, rows, causal=self.causal)
        ours, theirs = ({name: each.captured(at, name) for name in "qkv"} for each, at in self._sides(run))
        heads = self._alike(ours["q"], theirs["q"])
        apart = torch.zeros_like(rows, dtype=ours["q"].dtype)
        for one, other in self.relations:
            told, known = (related(side[one], side[other], side["q"].shape[1], heads, seen) for side in (ours, theirs))
            apart = apart + (known.exp() * (known - told)).sum(-1).mean(1)
        return {"loss": summed(apart, rows, self.weight)}

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * load.keys * self.width * len(self.relations))

    def head_positions(self, length: int) -> int:
        return length

    def _sides(self, run: ForwardPass) -> tuple[tuple[ForwardPass, int], tuple[ForwardPass, int]]:
        return (run, self.layer), (run.teacher, self.of)

    def _alike(self, ours: Tensor, theirs: Tensor) -> int:
        """How many relation heads there are."""
        if self.heads is None and ours.shape[1] != theirs.shape[1]:
            what = f"the teacher has {theirs.shape[1]} heads, and the model {ours.shape[1]}"
            valid = "`heads`: how many relation heads both are cut into"
            raise SpecError(Problem(code="does-not-fit", path="objective", message=what, valid=valid))
        heads = self.heads or ours.shape[1]
        for whose, q in (("the model's", ours), ("the teacher's", theirs)):
            width = q.shape[1] * q.shape[3]
            if width % heads:
                what = f"{whose} attention is {width} wide, which is no multiple of {heads} relation heads"
                raise SpecError(Problem(code="does-not-fit", path="objective.heads", message=what))
        return heads


def visible(documents: Tensor | None, rows: Tensor, *, causal: bool) -> Tensor:
    """(B|1, 1, T, T) bool: what each row sees; of another document, of padding and, if causal, behind it, nothing."""
    length = rows.shape[1]
    seen = torch.ones(1, length, length, dtype=torch.bool, device=rows.device)
    if documents is not None:
        seen = (documents.unsqueeze(2) == documents.unsqueeze(1)) & (documents >= 0).unsqueeze(1)
    return (seen.tril() if causal else seen).unsqueeze(1)


def related(one: Tensor, other: Tensor, among: int, heads: int, seen: Tensor) -> Tensor:
    """(B, G, T, K), (B, G', T, K) -> (B, h, T, T): the logarithm of how much each row is related to each."""
    length = seen.shape[-1]
    a, b = (_cut(x[:, :, :length], among, heads) for x in (one, other))
    scores = a @ b.transpose(-1, -2) / math.sqrt(a.shape[-1])
    # Finite, not -inf, which would be less than itself: what is not seen is known as little to both sides.
    return scores.masked_fill(~seen, torch.finfo(scores.dtype).min / 2).log_softmax(-1)


def _cut(x: Tensor, among: int, heads: int) -> Tensor:
    """(B, G, T, K) -> (B, h, T, H*K/h): each repeated for the query heads that read it, side by side, and cut anew."""
    spread = x if x.shape[1] == among else x.repeat_interleave(among // x.shape[1], dim=1)
    cut: Tensor = spread.transpose(1, 2).flatten(2).unflatten(2, (heads, -1))
    return cut.transpose(1, 2)
