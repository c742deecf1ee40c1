"""Say what kind of text it is, and predict it from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from paribus import (
    IGNORED,
    ConvertedTensor,
    Cost,
    DataError,
    Draw,
    ForwardPass,
    GenerationTarget,
    Load,
    LossTerm,
    Norms,
    Objective,
    Problem,
    Prompt,
    Role,
    Shape,
    SpecError,
    Stream,
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    WeightConverter,
    labels_of,
)
from paribus_objective import scoring, specials, vocabulary_head
from paribus_objective.masking import Array

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class Control(Objective, WeightConverter):
    """A code stands before a text and says of which class it is, and each row predicts the token after it: "CTRL"
    (Keskar et al. 2019).

    Code c is sentinel c, and is never predicted. The documents of a class stand one behind the other, each closed by
    eos, and are cut into pieces of one length; a class with less than that makes one piece, filled up behind its end.
    (B, T) text -> rows (B, T): the code and all but the last token; labels (B, T): the text.
    """

    traits: ClassVar[Traits] = {
        "forms": "stream",
        "sight": "past",
        "parts": [],
        "segments": False,
        "needs": ["labels", "sentinels", "eos"],
    }
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        bias: Annotated[bool, "whether each entry of the vocabulary has a bias (CTRL: yes)"] = True,
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.codes = np.array(vocabulary.sentinels, dtype=np.int64)
        self.index = Index(len(self.codes))
        self.mark = specials.needed(vocabulary, "eos", "control")
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(shape, norm, transform=False, bias=bias)

    def example_count(self, tokens: Tokens, length: int) -> int:
        return len(self.index(tokens, length).start)

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        found = self.index(tokens, length)
        index = draw.index.numpy()
        place = found.start[index][:, None] + np.arange(length)
        missing = place >= found.stop[index][:, None]
        document = np.minimum(np.searchsorted(found.ends, place, side="right"), len(found.ends) - 1)
        source = found.source[document] + place  # of a document's end mark, what stands behind the document
        text = np.asarray(tokens.ids[np.clip(source, 0, len(tokens.ids) - 1)], dtype=np.int64)
        text = np.where((place == found.ends[document] - 1) | missing, self.mark, text)
        code = self.codes[found.code[index]][:, None]
        rows = torch.from_numpy(np.concatenate([code, text[:, :-1]], axis=1))
        special = torch.zeros(rows.shape, dtype=torch.bool)
        special[:, 0] = True
        labels = torch.from_numpy(np.where(missing, IGNORED, text))
        languages = None
        if tokens.languages is not None:
            own = tokens.languages[found.document[document]]
            languages = torch.from_numpy(np.concatenate([own[:, :1], own[:, :-1]], axis=1))
        return TrainingExamples({"body": Stream(rows, special=special, languages=languages)}, {"labels": labels})

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        return TrainingExamples(streams, targets)

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """A text goes on as one of the class that is wished for would, or of the first."""
        label = wish.label or 0
        if not 0 <= label < len(self.codes):
            what = f"control has codes for {len(self.codes)} classes, and {label} is none of them"
            raise SpecError(
                Problem(code="unknown-class", path="label", message=what, valid=f"0 to {len(self.codes) - 1}")
            )
        return Prompt((int(self.codes[label]), *ids), stop=self.mark)

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


class Pieces(NamedTuple):
    """The documents of a corpus by their classes, one behind the other with an end mark each, and pieces of these."""

    document: Array  # (D,) which one
    ends: Array  # (D,) where each ends, its mark counted
    source: Array  # (D,) what is to be added to a place for where it lies in the flat ids
    start: Array  # (N,) where each piece begins
    stop: Array  # (N,) where the text of its class ends
    code: Array  # (N,) its class


def pieces(tokens: Tokens, length: int) -> Pieces:
    """Pieces of one class each; what is left over behind the last whole one of a class is in none."""
    classes = labels_of(tokens, np.arange(len(tokens.documents) - 1))
    order = classes.argsort(kind="stable")
    bounds = np.asarray(tokens.sentences)[np.asarray(tokens.documents)]
    ends = (np.diff(bounds)[order] + 1).cumsum()
    begins = ends - (np.diff(bounds)[order] + 1)
    codes, first = np.unique(classes[order], return_index=True)
    start, stop = begins[first], np.append(begins[first][1:], ends[-1])
    counts = np.maximum((stop - start) // length, 1)
    number = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    piece = np.repeat(start, counts) + number * length
    return Pieces(order, ends, bounds[:-1][order] - begins, piece, np.repeat(stop, counts), np.repeat(codes, counts))


@final
class Index:
    """The pieces of each corpus that was asked about, found once. Copies and other processes start without any."""

    def __init__(self, codes: int) -> None:
        self.codes = codes  # how many there are
        self._found: dict[tuple[int, int], tuple[Tokens, Pieces]] = {}

    def __reduce__(self) -> tuple[type[Index], tuple[int]]:
        return Index, (self.codes,)

    def __call__(self, tokens: Tokens, length: int) -> Pieces:
        key = (id(tokens), length)
        if key not in self._found:  # the tokens are kept with what was found, so that nobody else gets their id
            found = pieces(tokens, length)
            needed = int(found.code.max()) + 1
            if needed > self.codes:
                what = f"control has a sentinel for each of {needed} classes, but the tokenizer has {self.codes}"
                valid = f"`tokenizer.sentinels` of {needed} or more"
                raise DataError(Problem(code="too-few-sentinels", path="tokenizer", message=what, valid=valid))
            self._found[key] = (tokens, found)
        return self._found[key][1]
