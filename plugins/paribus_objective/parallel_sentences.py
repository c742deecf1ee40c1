"""Texts that say the same in two languages, laid out in one row, each at positions of its own."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np
import torch

from paribus import PADDING, Draw, Problem, Shape, SpecError, Stream, Tokens, Vocabulary
from paribus_objective import specials
from paribus_objective.masking import Array

MARKS = 4  # cls and sep of each


class Half(NamedTuple):
    """One text of each example: which side of the corpus it is of, and where it lies in the flat ids of that side."""

    target: Array  # (B,) bool: of the other side
    start: Array  # (B,)
    length: Array  # (B,): 0 where there is none


@final
class Layout:
    """`[cls] A [sep] [cls] B [sep]`, and padding; or `[cls] A [sep]` alone. Positions of B begin anew."""

    def __init__(self, shape: Shape, vocabulary: Vocabulary, who: str) -> None:
        if shape.length < MARKS + 2:
            what = f"{who} needs rows for two cls, two sep and a token of each text, but there are {shape.length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=what, valid=f"≥ {MARKS + 2}"))
        self.cls = specials.needed(vocabulary, "cls", who)
        self.sep = specials.needed(vocabulary, "sep", who)
        self.pad = vocabulary.specials.get("pad", self.sep)  # no row sees it, whatever it is

    def lengths(self, tokens: Tokens, most: int) -> Array:
        """(documents,) how many of `most` rows each pair takes, marks and all."""
        assert tokens.targets is not None, "the rules let only a corpus of pairs come here"
        found: Array = np.diff(_bounds(tokens)) + np.diff(_bounds(tokens.targets)) + MARKS
        return found.clip(max=most)

    def __call__(self, tokens: Tokens, length: int, alone: float, draw: Draw) -> Stream:
        """The pairs `draw.index`; a share of them has one side `alone`, either as likely."""
        a, b = self._halves(tokens, length, alone, draw)
        place = np.arange(length)
        second = (2 + a.length)[:, None]  # where the cls of the second text is, if there is one
        end = np.where(b.length > 0, MARKS + a.length + b.length, 2 + a.length)[:, None]
        behind, padding = place >= second, place >= end
        inside = np.where(behind, place - second, place)  # positions
        of = np.where(behind, b.length[:, None], a.length[:, None])
        ids = np.where(behind, _ids(tokens, b, inside - 1), _ids(tokens, a, inside - 1))
        ids = np.where(inside == 0, self.cls, np.where(inside == of + 1, self.sep, ids))
        return Stream(
            torch.from_numpy(np.where(padding, self.pad, ids)),
            documents=torch.from_numpy(np.where(padding, PADDING, 0)),
            positions=torch.from_numpy(inside),
            special=torch.from_numpy((inside == 0) | (inside > of) | padding),
            languages=self._languages(tokens, a.target, b.target, behind, draw),
        )

    def _halves(self, tokens: Tokens, length: int, alone: float, draw: Draw) -> tuple[Half, Half]:
        """Both texts of each pair, in an order that is drawn. Where there is no room for both, each loses its end, the
        longer one first."""
        turned = draw.uniform("turned", 1)[:, 0].numpy() < 0.5
        single = draw.uniform("alone", 1)[:, 0].numpy() < alone
        spans = [_span(tokens, target, draw) for target in (turned, ~turned)]
        (a_start, a), (b_start, b) = spans
        b = np.where(single, 0, b)
        room = np.where(single, length - 2, length - MARKS)
        kept = np.minimum(a, np.maximum(room - b, (room + 1) // 2))
        a = np.where(single, np.minimum(a, room), kept)
        return Half(turned, a_start, a), Half(~turned, b_start, np.minimum(b, room - a))

    def _languages(self, tokens: Tokens, first: Array, last: Array, behind: Array, draw: Draw) -> torch.Tensor | None:
        assert tokens.targets is not None, "the rules let only a corpus of pairs come here"
        if tokens.languages is None or tokens.targets.languages is None:
            return None
        index = draw.index.numpy()
        here, there = tokens.languages[index], tokens.targets.languages[index]
        one, other = (np.where(side, there, here)[:, None] for side in (first, last))
        return torch.from_numpy(np.where(behind, other, one))


def _bounds(tokens: Tokens) -> Array:
    """(documents + 1,) where each begins in the flat ids."""
    found: Array = np.asarray(tokens.sentences, dtype=np.int64)[np.asarray(tokens.documents)]
    return found


def _span(tokens: Tokens, target: Array, draw: Draw) -> tuple[Array, Array]:
    """Where the text of one side of each pair begins, and how long it is."""
    assert tokens.targets is not None, "the rules let only a corpus of pairs come here"
    index = draw.index.numpy()
    here, there = _bounds(tokens), _bounds(tokens.targets)
    start = np.where(target, there[index], here[index])
    return start, np.where(target, there[index + 1], here[index + 1]) - start


def _ids(tokens: Tokens, half: Half, offset: Array) -> Array:
    """(B, T) ids of a text from its beginning on; beyond it, whatever there is."""
    assert tokens.targets is not None, "the rules let only a corpus of pairs come here"
    places = half.start[:, None] + offset
    here, there = (
        np.asarray(side.ids[np.clip(places, 0, len(side.ids) - 1)], dtype=np.int64) for side in (tokens, tokens.targets)
    )
    return np.where(half.target[:, None], there, here)
