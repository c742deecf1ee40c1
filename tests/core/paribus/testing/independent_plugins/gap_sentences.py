"""Gap sentences: the encoder reads a text from which sentences are removed, the decoder writes these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from paribus import (
    IGNORED,
    PADDING,
    Cost,
    Draw,
    ForwardPass,
    GenerationTarget,
    Load,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Problem,
    Prompt,
    Range,
    Role,
    Shape,
    SpecError,
    Stream,
    TrainingExamples,
    Unembed,
    Vocabulary,
    hookimpl,
)

if TYPE_CHECKING:
    from torchmetrics import Metric

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class Side(NamedTuple):
    """Tokens of one stack of one example, and the position in the text whose document and language each has."""

    tokens: list[int]
    origins: list[int]


@final
class GapSentences(Objective):
    """Gap sentence generation: random sentences are removed from a text, and the decoder writes them in the order of
    the text. "PEGASUS" (Zhang et al. 2020), with random sentences.

    Sentences are removed until a share `rate` of the text's tokens, and at least one token, is removed; of the last
    one, the beginning. Special tokens and padding are kept. Both sides end in eos; the decoder reads its labels shifted
    by one, after pad (bos or eos if the tokenizer has no pad), also at the start of each document.
    (B, n) -> encoder (B, n + 1), body and labels (B, n + 1).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "past",
        "parts": ["encoder"],
        "segments": False,
        "adds_padding": True,
        "needs": ["mask", "eos", "sentences"],
        "token_terms": ["loss"],
    }
    roles: ClassVar[Mapping[str, Role]] = {"narrow.weight": "head"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of the text's tokens in removed sentences", Range(above=0, high=1)] = 0.3,
        marks: Annotated[bool, "put a mask token in the place of each removed sentence"] = True,
    ) -> None:
        super().__init__()
        if "mask" not in vocabulary.specials or "eos" not in vocabulary.specials or shape.length < 2:
            message = "gap-sentences needs the special tokens mask and eos, and two positions"
            raise SpecError(Problem(code="does-not-fit", path="objective", message=message))
        self.classes, self.rate, self.marks = shape.vocabulary, rate, marks
        self.mask, self.eos = vocabulary.specials["mask"], vocabulary.specials["eos"]
        self.pad = vocabulary.specials.get("pad", self.eos)
        self.start = vocabulary.specials.get("pad", vocabulary.specials.get("bos", self.eos))
        self.reserved = sorted(vocabulary.reserved)
        is_narrow = shape.embedding_width != shape.width
        self.narrow = nn.Linear(shape.width, shape.embedding_width, bias=False) if is_narrow else None

    def text_length(self, length: int) -> int:
        return length - 1

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        tokens: Array = body.tokens.numpy()
        run, keys = self.runs(body), draw.uniform("gap", tokens.shape[1]).numpy()
        pairs = [self.sides(*row) for row in zip(tokens, run, keys, self.lengths(body), strict=True)]
        encoder, decoder = (self.stream(list(sides), body) for sides in zip(*pairs, strict=True))
        documents = decoder.documents
        assert documents is not None
        labels = decoder.tokens.masked_fill(documents < 0, IGNORED)
        inputs = decoder.tokens.roll(1, dims=1)
        inputs[:, 0] = self.start
        inputs[:, 1:][documents[:, 1:] != documents[:, :-1]] = self.start
        sides = {"encoder": encoder, "body": decoder._replace(tokens=inputs)}
        return TrainingExamples({**streams, **sides}, {"labels": labels})

    def runs(self, body: Stream) -> Array:
        """(B, T): number of the sentence of each token, from 0 in each example; -1 for special tokens and padding."""
        other = np.isin(body.tokens.numpy(), self.reserved)
        if body.special is not None:
            other |= body.special.numpy()
        if body.documents is not None:
            other |= body.documents.numpy() < 0
        is_new = np.ones_like(other)
        is_new[:, 1:] = other[:, :-1]
        for values in (body.sentences, body.documents):
            if values is not None:
                is_new[:, 1:] |= np.diff(values.numpy(), axis=1) != 0
        return np.where(other, -1, (is_new & ~other).cumsum(axis=1) - 1)

    def lengths(self, body: Stream) -> Array:
        """(B,): number of tokens before the padding."""
        if body.documents is None:
            return np.full(len(body.tokens), body.tokens.shape[1])
        counts: Array = (body.documents.numpy() >= 0).sum(axis=1)
        return counts

    def sides(self, tokens: Array, run: Array, keys: Array, length: int) -> tuple[Side, Side]:
        """Return what the encoder reads and what the decoder writes of one text."""
        removed = np.zeros(len(tokens), dtype=bool)
        room = max(1, round(self.rate * int((run >= 0).sum())))
        for number in np.argsort(keys[: run.max(initial=-1) + 1], kind="stable"):
            positions = np.flatnonzero(run == number)[:room]
            removed[positions] = True
            room -= len(positions)
        encoder, decoder = Side([], []), Side([], [])
        for position in range(length):
            if not removed[position]:
                append(encoder, int(tokens[position]), position)
                continue
            append(decoder, int(tokens[position]), position)
            if self.marks and (position == 0 or not removed[position - 1] or run[position - 1] != run[position]):
                append(encoder, self.mask, position)
        for side in (encoder, decoder):
            append(side, self.eos, side.origins[-1] if side.origins else 0)
        return encoder, decoder

    def stream(self, sides: Sequence[Side], body: Stream) -> Stream:
        """Return the stream of one stack, padded to one token more than the text."""
        length = body.tokens.shape[1] + 1
        tokens, origins = np.full((len(sides), length), self.pad), np.zeros((len(sides), length), dtype=np.int64)
        for row, side in enumerate(sides):
            tokens[row, : len(side.tokens)] = side.tokens
            origins[row, : len(side.origins)] = side.origins
        is_padding = np.arange(length) >= np.array([len(side.tokens) for side in sides])[:, None]
        documents = np.zeros_like(origins)
        if body.documents is not None:
            documents = np.take_along_axis(body.documents.numpy(), origins, axis=1)
        languages = None if body.languages is None else body.languages.gather(1, torch.from_numpy(origins))
        documents = np.where(is_padding, PADDING, documents)
        return Stream(torch.from_numpy(tokens), documents=torch.from_numpy(documents), languages=languages)

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return unembed(hidden if self.narrow is None else self.narrow(hidden))

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        labels = run.targets["labels"]
        total = run.summed_cross_entropy(lambda h: self.logits(h, run.unembed), run.hidden(), labels, self.classes)
        return {"loss": LossTerm(total, (labels != IGNORED).sum())}

    def cost(self, load: Load) -> Cost:
        return Cost(flops=0 if self.narrow is None else 2 * load.head_positions * self.narrow.weight.numel())

    def head_positions(self, length: int) -> int:
        return length

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """Write the sentences that a text lacks."""
        return Prompt((self.start,), (*ids, self.eos), self.eos)

    def metrics(self) -> Mapping[str, Metric]:
        from torchmetrics.classification import MulticlassAccuracy

        accuracy = MulticlassAccuracy(self.classes, average="micro", ignore_index=IGNORED, validate_args=False)
        return {"accuracy": accuracy}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        predictions = self.logits(run.hidden(), run.unembed).argmax(-1)
        metrics["accuracy"].update(predictions.flatten(), run.targets["labels"].flatten())


def append(side: Side, token: int, origin: int) -> None:
    side.tokens.append(token)
    side.origins.append(origin)


@hookimpl
def objective() -> Mapping[str, type[Objective]]:
    return {"gap-sentences": GapSentences}
