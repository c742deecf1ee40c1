"""Conditional language modelling: a control code of the class of a text, followed by the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple, final

import numpy as np
import torch

from paribus import (
    IGNORED,
    DataError,
    Draw,
    GenerationTarget,
    Norms,
    Objective,
    ObjectiveTraits,
    Problem,
    Prompt,
    Role,
    Shape,
    SpecError,
    Stream,
    Tokens,
    TrainingExamples,
    Vocabulary,
    WeightConverter,
    labels_of,
)
from paribus_objective import special_tokens, vocabulary_head
from paribus_objective.labelled import document_bounds
from paribus_objective.masking import Array


@final
class Control(Objective, WeightConverter):
    """Conditional language modelling: a text follows a control code of its class, and each position predicts the next
    token. "CTRL" (Keskar et al. 2019).

    Code c is sentinel c, and is never predicted. The documents of a class are concatenated, each closed by eos, and cut
    into pieces of one length; a class with less text makes one padded piece.
    (B, T) text -> tokens (B, T): the code and all tokens but the last; labels (B, T): the text.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "stream",
        "corrupts": False,
        "visibility": "past",
        "parts": [],
        "segments": False,
        "needs": ["labels", "sentinels", "eos"],
        "token_terms": ["loss"],
    }
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES
    logits = vocabulary_head.logits
    scored_hidden = vocabulary_head.body_hidden
    forward = vocabulary_head.forward
    cost = vocabulary_head.cost
    head_positions = vocabulary_head.head_positions
    metrics = vocabulary_head.metrics
    update_metrics = vocabulary_head.update_metrics
    convert_weights = vocabulary_head.convert_weights

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        bias: Annotated[bool, "add a bias for each entry of the vocabulary (CTRL: yes)"] = True,
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.codes = np.array(vocabulary.sentinels, dtype=np.int64)
        self.pieces = PieceCache(len(self.codes))
        self.eos = special_tokens.require(vocabulary, "eos", "control")
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=bias)

    def example_count(self, tokens: Tokens, length: int) -> int:
        return len(self.pieces(tokens, length).start)

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        pieces = self.pieces(tokens, length)
        index = draw.index.numpy()
        position = pieces.start[index][:, None] + np.arange(length)
        is_padding = position >= pieces.stop[index][:, None]
        document = np.minimum(np.searchsorted(pieces.ends, position, side="right"), len(pieces.ends) - 1)
        source = pieces.offset[document] + position  # at an end mark, an id of another document, which eos replaces
        text = np.asarray(tokens.ids[np.clip(source, 0, len(tokens.ids) - 1)], dtype=np.int64)
        text = np.where((position == pieces.ends[document] - 1) | is_padding, self.eos, text)
        code = self.codes[pieces.code[index]][:, None]
        inputs = torch.from_numpy(np.concatenate([code, text[:, :-1]], axis=1))
        special = torch.zeros(inputs.shape, dtype=torch.bool)
        special[:, 0] = True
        labels = torch.from_numpy(np.where(is_padding, IGNORED, text))
        languages = None
        if tokens.languages is not None:
            language = tokens.languages[pieces.document[document]]
            languages = torch.from_numpy(np.concatenate([language[:, :1], language[:, :-1]], axis=1))
        return TrainingExamples({"body": Stream(inputs, special=special, languages=languages)}, {"labels": labels})

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """Continue a text of the requested class, or of the first."""
        label = wish.label or 0
        if not 0 <= label < len(self.codes):
            message = f"unknown class {label}; control has codes for {len(self.codes)} classes"
            valid = f"0 to {len(self.codes) - 1}"
            raise SpecError(Problem(code="unknown-class", path="label", message=message, valid=valid))
        return Prompt((int(self.codes[label]), *ids), stop=self.eos)


class Pieces(NamedTuple):
    """Documents of a corpus sorted by class and concatenated, each with an end mark, and pieces of that text."""

    document: Array  # (D,) number in the corpus
    ends: Array  # (D,) end of each document, after its end mark
    offset: Array  # (D,) difference between the location in the flat ids and the position in the text
    start: Array  # (N,) start of each piece
    stop: Array  # (N,) end of the text of its class
    code: Array  # (N,) its class


def cut_pieces(tokens: Tokens, length: int) -> Pieces:
    """Cut pieces of one class each; the remainder after the last whole piece of a class is dropped."""
    classes = labels_of(tokens, np.arange(len(tokens.documents) - 1))
    document = classes.argsort(kind="stable")
    bounds = document_bounds(tokens)
    sizes = np.diff(bounds)[document] + 1
    ends = sizes.cumsum()
    starts = ends - sizes
    codes, first_document = np.unique(classes[document], return_index=True)
    class_start, class_stop = starts[first_document], np.append(starts[first_document][1:], ends[-1])
    counts = np.maximum((class_stop - class_start) // length, 1)
    number = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    return Pieces(
        document,
        ends,
        bounds[:-1][document] - starts,
        np.repeat(class_start, counts) + number * length,
        np.repeat(class_stop, counts),
        np.repeat(codes, counts),
    )


@final
class PieceCache:
    """Pieces of each corpus, computed once; copies and other processes start with an empty cache."""

    def __init__(self, codes: int) -> None:
        self.codes = codes
        self._cache: dict[tuple[int, int], tuple[Tokens, Pieces]] = {}

    def __reduce__(self) -> tuple[type[PieceCache], tuple[int]]:
        return PieceCache, (self.codes,)

    def __call__(self, tokens: Tokens, length: int) -> Pieces:
        key = (id(tokens), length)
        if key not in self._cache:  # it holds the tokens too, so that no other corpus gets their id
            pieces = cut_pieces(tokens, length)
            needed = int(pieces.code.max()) + 1
            if needed > self.codes:
                message = f"control needs a sentinel for each of {needed} classes; the tokenizer has {self.codes}"
                valid = f"`tokenizer.sentinels` ≥ {needed}"
                raise DataError(Problem(code="too-few-sentinels", path="tokenizer", message=message, valid=valid))
            self._cache[key] = (tokens, pieces)
        return self._cache[key][1]
