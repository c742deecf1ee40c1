"""Read the beginning of a text both ways, and predict the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from paribus import (
    IGNORED,
    ConvertedTensor,
    Cost,
    Draw,
    ForwardPass,
    GenerationTarget,
    Load,
    LossTerm,
    Norms,
    Objective,
    Prompt,
    Range,
    Role,
    Shape,
    Stream,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import scoring, vocabulary_head
from paribus_objective.masking import Array
from paribus_objective.noise import stretches
from paribus_objective.two_sides import Side, Sides

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class PrefixLanguageModelling(Objective, WeightConverter):
    """Rows of a prefix see each other both ways, and each row from its last one on predicts the token behind it:
    "UniLM" (Dong et al. 2019), "Exploring the Limits of Transfer Learning" (Raffel et al. 2020).

    A decoder does so by an order that its rows come with. Where there is an encoder, it reads the prefix, and the
    decoder writes the rest. Documents that are kept apart have a prefix each in a decoder.
    (B, T + 1) -> rows (B, T), labels (B, T); and for the encoder (B, T) as well, most of it padding.
    """

    traits: ClassVar[Traits] = {
        "corrupts": True,
        "sight": "past",
        "parts": [],
        "may": ["encoder"],
        "segments": False,
        "pads": True,
        "orders": True,
        "needs": ["eos"],
    }
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        prefix: Annotated[
            float | None, "share of a text that is its prefix; null: any length, each as likely", Range(0, 1)
        ] = None,
        bias: Annotated[bool, "whether each entry of the vocabulary has a bias"] = False,
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.prefix = prefix
        self.sides = Sides(vocabulary, "prefix-lm", cut=True)
        self.encodes = any(other.stack == "encoder" for other in shape.other_shapes)
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(shape, norm, transform=False, bias=bias)

    def text_length(self, length: int) -> int:
        return length + 1

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        return self._parted(streams, draw) if self.encodes else self._ordered(streams, draw)

    def _ordered(self, streams: Mapping[str, Stream], draw: Draw) -> TrainingExamples:
        """One stream, and an order in which the rows of a prefix are all as late as its last."""
        body = streams["body"]
        labels = body.tokens[:, 1:].clone()  # not a view: whoever changes a label must not change a token
        rows = Stream(*(None if vector is None else vector[:, :-1] for vector in body))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
        if body.documents is not None:
            here, next_ = body.documents[:, :-1], body.documents[:, 1:]
            labels = labels.masked_fill((here != next_) | (next_ < 0), IGNORED)
        of = stretches(np.zeros(labels.shape, dtype=bool), rows)
        known = (labels.numpy() != IGNORED).cumsum(axis=1)
        end = of.start + of.length - 1
        before = np.take_along_axis(np.pad(known, ((0, 0), (1, 0))), of.start, axis=1)
        asked = np.take_along_axis(known, end, axis=1) - before  # (B, T): how many rows of the document could predict
        luck = draw.uniform("prefix", labels.shape[1]).double().numpy()
        last = of.start + self._lengths(asked, np.take_along_axis(luck, of.start, axis=1)) - 1
        place = np.arange(labels.shape[1])
        order = torch.from_numpy(np.maximum(place, last))
        wanted = labels.masked_fill(torch.from_numpy(place < last), IGNORED)
        return TrainingExamples({**streams, "body": rows._replace(order=order, sentences=None)}, {"labels": wanted})

    def _parted(self, streams: Mapping[str, Stream], draw: Draw) -> TrainingExamples:
        """Two streams: the prefix, and what is behind it."""
        tokens: Array = streams["body"].tokens.numpy()
        text = tokens.shape[1]
        luck = draw.uniform("prefix", 1).double().numpy()
        length = self._lengths(np.full_like(luck, text - 1, dtype=np.int64), luck)
        place = np.broadcast_to(np.arange(text - 1), (len(tokens), text - 1))
        behind = np.minimum(place + length, text - 1)
        prefix = Side(tokens[:, :-1], place, length[:, 0])
        rest = Side(np.take_along_axis(tokens, behind, axis=1), behind, text - length[:, 0])
        return self.sides.formed(streams, prefix, rest)

    def _lengths(self, most: Array, luck: Array) -> Array:
        """How long each prefix is: at least one token, and `most` at most, which leaves one to be predicted."""
        found = luck * most if self.prefix is None else np.rint((most + 1) * self.prefix) - 1
        return np.clip(found.astype(np.int64), 0, np.maximum(most - 1, 0)) + 1

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """A text is read both ways and goes on; an empty one begins behind the end of another."""
        if self.encodes:
            return self.sides.prompt(ids or [self.sides.eos])
        return Prompt(tuple(ids) or (self.sides.eos,), stop=self.sides.eos, bidirectional=True)

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
