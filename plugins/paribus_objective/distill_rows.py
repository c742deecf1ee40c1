"""Learn rows like a teacher's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

from torch import Tensor, nn
from torch.nn import functional

from paribus import (
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
)
from paribus_objective.teaching import alike, all_rows, summed


@final
class DistillRows(Objective):
    """The last rows point where the teacher's do: "DistilBERT" (Sanh et al. 2019); or are the same, as in "TinyBERT"
    (Jiao et al. 2020), which brings them to the teacher's width by a matrix that is learned.

    1 - cos of each row and the teacher's, or the mean square of what they differ by. (B, T, D) -> (B, T).
    """

    traits: ClassVar[Traits] = {
        "corrupts": False, "sight": "any", "parts": [], "segments": False, "needs": ["teacher"], "unembeds": False,
    }  # fmt: skip
    roles: ClassVar[Mapping[str, Role]] = {"project.weight": "head"}
    terms: ClassVar[Mapping[str, str]] = {"loss": "rows"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        width: Annotated[int | None, "the teacher's, where it is another than the model's", Range(1)] = None,
        loss: Annotated[
            Literal["cosine", "squared"], "how rows are held against the teacher's (TinyBERT: squared)"
        ] = "cosine",
        weight: Annotated[float, "what the loss is multiplied by (DistilBERT: 0.5, beside mlm)", Range(above=0)] = 1.0,
    ) -> None:
        super().__init__()
        self.project = None if width is None else nn.Linear(shape.width, width, bias=False)
        self.apart = _cosine if loss == "cosine" else _squared
        self.weight = weight

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> Formed:
        return all_rows(streams)

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return hidden if self.project is None else self.project(hidden)

    def forward(self, run: Run) -> Mapping[str, Term]:
        ours, theirs = self.logits(run.hidden(), run.unembed), run.teacher.hidden()
        alike(ours, theirs, "has rows of so many numbers", "`width`: the teacher's")
        return {"loss": summed(self.apart(ours, theirs), run.targets["rows"], self.weight)}

    def cost(self, load: Load) -> Cost:
        return Cost() if self.project is None else Cost(flops=2 * load.picks * self.project.weight.numel())

    def picks(self, length: int) -> int:
        return length


def _cosine(ours: Tensor, theirs: Tensor) -> Tensor:
    return 1 - functional.cosine_similarity(ours, theirs, dim=-1)


def _squared(ours: Tensor, theirs: Tensor) -> Tensor:
    return (ours - theirs).square().mean(-1)
