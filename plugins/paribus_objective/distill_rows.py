"""Learn rows like a teacher's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    Capture,
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Range,
    Role,
    Shape,
    Stream,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
)
from paribus_objective.teaching import alike, all_rows, summed


@final
class DistillRows(Objective):
    """The last rows point where the teacher's do: "DistilBERT" (Sanh et al. 2019); or those of any `layers` are like
    those of the teacher's, "TinyBERT" (Jiao et al. 2020), which brings them to its width by a matrix that is learned,
    one for all layers and another for what the first one reads.

    1 - cos of each row and the teacher's, or the mean square of what they differ by; the sum of layers. Rows of layers
    are those before the final norm, if there is one. (B, T, D) -> (B, T).
    """

    traits: ClassVar[Traits] = {
        "corrupts": False, "sight": "any", "parts": [], "segments": False, "needs": ["teacher"], "unembeds": False,
        "teacher": {"width": "width"},
    }  # fmt: skip
    roles: ClassVar[Mapping[str, Role]] = {"project.weight": "head", "enter.weight": "head"}
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
        layers: Annotated[
            tuple[int, ...], "the model's layers, from 1, or back from -1; 0: what the first reads; none: what is left"
        ] = (),
        of: Annotated[tuple[int, ...], "the teacher's layer for each (TinyBERT: 0, 3, 6, 9, 12 for 0 to 4)"] = (),
        weight: Annotated[float, "what the loss is multiplied by (DistilBERT: 0.5, beside mlm)", Range(above=0)] = 1.0,
    ) -> None:
        super().__init__()
        if len(layers) != len(of):
            raise ValueError(f"{len(layers)} `layers` are held against {len(of)} `of` the teacher; valid: as many")
        learns = width is not None and (not layers or any(layers))
        self.project = nn.Linear(shape.width, width, bias=False) if width is not None and learns else None
        self.enter = nn.Linear(shape.width, width, bias=False) if width is not None and 0 in layers else None
        self.apart = _cosine if loss == "cosine" else _squared
        self.pairs = tuple(zip(layers, of, strict=True))
        self.captures, self.teacher_captures = Capture(hidden=layers), Capture(hidden=of)
        self.weight = weight

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        return all_rows(streams)

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return hidden if self.project is None else self.project(hidden)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        apart = [self._apart(ours, theirs) for ours, theirs in self._rows(run)]
        return {"loss": summed(torch.stack(apart).sum(0), run.targets["rows"], self.weight)}

    def cost(self, load: Load) -> Cost:
        times = max(1, sum(layer != 0 for layer, _ in self.pairs))
        used = [(self.project, times), (self.enter, sum(layer == 0 for layer, _ in self.pairs))]
        return Cost(
            flops=sum(2 * load.head_positions * each.weight.numel() * n for each, n in used if each is not None)
        )

    def head_positions(self, length: int) -> int:
        return length

    def _rows(self, run: ForwardPass) -> Iterator[tuple[Tensor, Tensor]]:
        if not self.pairs:
            yield self.logits(run.hidden(), run.unembed), run.teacher.hidden()
        for layer, of in self.pairs:
            brought = self.project if layer else self.enter
            rows = run.captured(layer, "hidden")
            yield rows if brought is None else brought(rows), run.teacher.captured(of, "hidden")

    def _apart(self, ours: Tensor, theirs: Tensor) -> Tensor:
        alike(ours, theirs, "has rows of so many numbers", "`width`: the teacher's")
        return self.apart(ours, theirs)


def _cosine(ours: Tensor, theirs: Tensor) -> Tensor:
    return 1 - functional.cosine_similarity(ours, theirs, dim=-1)


def _squared(ours: Tensor, theirs: Tensor) -> Tensor:
    return (ours - theirs).square().mean(-1)
