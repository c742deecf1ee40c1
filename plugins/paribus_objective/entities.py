"""Precision, recall and F1 of the entities that tags mark, as conlleval and seqeval count them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from paribus import DataError, Problem
from paribus_objective.metrics import concatenate

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
Score = Literal["precision", "recall", "f1"]

SCORES: Final[tuple[Score, ...]] = ("precision", "recall", "f1")
OUTSIDE: Final = 0  # code of the tag O
PREFIXES: Final[Mapping[str, int]] = {"B": 0, "I": 1, "E": 2, "S": 3, "L": 2, "U": 3}  # L and U: BILOU
_COUNT: Final = 4  # of different prefixes
_BEGIN, _INSIDE, _END = 0, 1, 2


def tag_codes(names: Sequence[str], classes: int) -> Array:
    """(C,) a number for each tag: 0 for O, else 1 + 4 * type + prefix; a class without a name counts as O."""
    types: dict[str, int] = {}
    codes = np.zeros(classes, dtype=np.int64)
    for number, name in enumerate(names):
        prefix, separator, kind = name.partition("-")
        if name == "O":
            continue
        if prefix not in PREFIXES or bool(separator) != bool(kind):
            message = f"`entities` reads the names of tags; {name!r} is neither O nor a prefix with a type"
            valid = "O and B-TYPE, I-TYPE (IOB1, IOB2), with E-TYPE and S-TYPE (BIOES) or L-TYPE and U-TYPE (BILOU)"
            raise DataError(Problem(code="tag-names", path="corpus", message=message, valid=valid))
        codes[number] = 1 + _COUNT * types.setdefault(kind, len(types)) + PREFIXES[prefix]
    if not types:
        message = f"`entities` reads the names of tags, and the corpus has {'none of entities' if names else 'none'}"
        valid = "a corpus whose tags have names, O and B-TYPE, or `objective.entities: false`"
        raise DataError(Problem(code="tag-names", path="corpus", message=message, valid=valid))
    return codes


class Entities(NamedTuple):
    """Entities in order, (N,) each: the place of the first word, that of the last, and the type."""

    first: Array
    last: Array
    type: Array


def entities(codes: Array, places: Array) -> Entities:
    """Return the entities of tags, (N,), at increasing places; a gap between two places ends an entity.

    A tag continues an entity if it is I- or E-, follows B- or I- and has its type. Any other tag but O starts one: so
    does an I- after O, after another type, or after E- or S-.
    """
    prefix, kind = (codes - 1) % _COUNT, (codes - 1) // _COUNT
    is_tagged = codes != OUTSIDE
    continues = is_tagged & ((prefix == _INSIDE) | (prefix == _END))
    continues[:1] = False
    is_open = is_tagged & ((prefix == _BEGIN) | (prefix == _INSIDE))
    continues[1:] &= is_open[:-1] & (kind[1:] == kind[:-1]) & (places[1:] == places[:-1] + 1)
    is_last = is_tagged & ~np.append(continues[1:], False)
    first = is_tagged & ~continues
    return Entities(places[first], places[is_last], kind[first])


@final
class EntityScore(Metric):
    """Precision, recall or F1 of entities over all documents: "Introduction to the CoNLL-2003 Shared Task" (Tjong Kim
    Sang & De Meulder 2003).

    An entity is right if its first word, its last word and its type are. Tags that no scheme allows are read as
    `conlleval` and `seqeval` (in its default mode) do, by the rules of `entities`. Without entities a value is 0.
    """

    full_state_update = False
    higher_is_better = True
    words: list[Tensor]

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score
        self.add_state("words", [], dist_reduce_fx="cat")

    def update(self, places: Tensor, predictions: Tensor, labels: Tensor) -> None:
        """(N,), (N,), (N,): the place of each word and the codes of two tags; words of a document are at consecutive
        places, and those of two documents are not. A place below 0 is no word.
        """
        self.words.append(torch.stack([places, predictions, labels], dim=1))

    def compute(self) -> Tensor:
        words = concatenate(self.words, columns=3).cpu().long().numpy()
        words = words[words[:, 0] >= 0]
        _, index = np.unique(words[:, 0], return_index=True)  # sorted, and each word once
        places, predictions, labels = words[index].T
        found, gold = (set(zip(*entities(codes, places), strict=True)) for codes in (predictions, labels))
        right = len(found & gold)
        total = {"precision": len(found), "recall": len(gold), "f1": (len(found) + len(gold)) / 2}[self.score]
        return torch.tensor(right / total if total else 0.0)
