"""Spoil a text, and write it as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
from torch import Tensor, nn

from paribus import (
    ConvertedTensor,
    Cost,
    Draw,
    ForwardPass,
    GenerationTarget,
    Load,
    LossTerm,
    Norms,
    Objective,
    Problem,
    Prompt,
    Range,
    Role,
    Shape,
    SpecError,
    Stream,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import noise, scoring, specials, vocabulary_head
from paribus_objective.masking import Array
from paribus_objective.two_sides import Side, Sides

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class Denoising(Objective, WeightConverter):
    """The encoder reads a text that was spoilt in some of five ways, the decoder writes it as it was: "BART" (Lewis et
    al. 2020).

    Sentences change places, texts are turned round, spans give way to a mask each, tokens are masked, and others go
    without a trace: in this order, each at its own rate. A special token of the text stays as and where it is, and
    nothing is moved beyond one. Both sides end in eos, and the spoilt one is filled up with padding.
    (B, n) -> encoder (B, n + 1), body and labels (B, n + 1).
    """

    traits: ClassVar[Traits] = {
        "corrupts": True,
        "sight": "past",
        "parts": ["encoder"],
        "segments": False,
        "pads": True,
        "needs": ["mask", "eos", "sentences"],
    }
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES

    def __init__(  # six options, and what is injected
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        infill: noise.Infilling = noise.Infilling(),
        mask: Annotated[float, "share of a text's tokens that a mask stands for, each by itself", Range(0, 1)] = 0.0,
        delete: Annotated[float, "share of a text's tokens that are left out without a trace", Range(0, 1)] = 0.0,
        permute: Annotated[float, "share of a text's sentences that change places (BART: 1)", Range(0, 1)] = 1.0,
        rotate: Annotated[float, "share of texts that begin with a token drawn from them", Range(0, 1)] = 0.0,
        bias: Annotated[bool, "whether each entry of the vocabulary has a bias"] = False,
    ) -> None:
        super().__init__()
        whole = infill.rate + mask + delete
        if whole > 1 + 1e-9:
            raise ValueError(f"`infill.rate`, `mask` and `delete` take {whole:g} of a text; valid: a sum ≤ 1")
        if shape.length < 2:
            what = f"denoise needs rows for a token and eos, but there are {shape.length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=what, valid="≥ 2"))
        self.classes = shape.vocabulary
        self.masked, self.deleted, self.permuted, self.rotated = mask, delete, permute, rotate
        self.filling = noise.Filling(infill)
        self.sides = Sides(vocabulary, "denoise")
        self.token = specials.needed(vocabulary, "mask", "denoise")
        self.reserved = specials.table(vocabulary)
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(shape, norm, transform=False, bias=bias)

    def text_length(self, length: int) -> int:
        return length - 1

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        tokens: Array = body.tokens.numpy()
        places = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        return self.sides.formed(streams, self.spoilt(body, draw), Side(tokens, places))

    def spoilt(self, body: Stream, draw: Draw) -> Side:
        """A text as the encoder reads it."""
        tokens: Array = body.tokens.numpy().copy()
        outside = specials.outside(body, self.reserved)
        of = noise.stretches(outside, body)
        order = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
        if self.permuted:
            order = noise.permuted(body, outside, of, self.permuted, draw)
        if self.rotated:
            order = np.take_along_axis(order, noise.rotated(of, self.rotated, draw), axis=1)
        gone, marks = self.filling(outside, of, draw)  # what is no text stands in the same rows as before
        text = (~outside).sum(axis=1)
        if self.masked:
            hidden = noise.picked(~outside & ~gone, text, self.masked, "masked", draw)
            np.put_along_axis(tokens, order, np.where(hidden, self.token, np.take_along_axis(tokens, order, 1)), 1)
            outside = outside | hidden
        if self.deleted:
            gone = gone | noise.picked(~outside & ~gone, text, self.deleted, "deleted", draw)
        return noise.woven(tokens, order, noise.Holes(gone, marks), self.token)

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """A text with masks in it, or faults, is read, and written without."""
        return self.sides.prompt(ids)

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return vocabulary_head.logits(self, hidden, unembed)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"])}

    def cost(self, load: Load) -> Cost:
        return vocabulary_head.cost(self, load)

    def head_positions(self, length: int) -> int:
        return length

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes)}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], self._logits(run), run.targets["labels"])

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(run.hidden("body"), run.unembed))

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        return vocabulary_head.adopted(self, other)
