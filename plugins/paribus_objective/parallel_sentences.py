"""Layout of a text and its translation in one sequence, with positions that restart for the second text."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np
import torch

from paribus import PADDING, Draw, Problem, Shape, SpecError, Stream, Tokens, Vocabulary
from paribus_objective import special_tokens
from paribus_objective.labelled import document_bounds
from paribus_objective.masking import Array

MARKS = 4  # cls and sep of each text


class Half(NamedTuple):
    """One text of each example: its side of the corpus, and its location in the flat ids of that side."""

    is_target: Array  # (B,) bool
    start: Array  # (B,)
    length: Array  # (B,): 0 if the example has no second text


@final
class ParallelLayout:
    """Layout `[cls] A [sep] [cls] B [sep]`, or `[cls] A [sep]` alone, padded. Positions of B restart at 0."""

    def __init__(self, shape: Shape, vocabulary: Vocabulary, component: str) -> None:
        if shape.length < MARKS + 2:
            message = f"{component} needs positions for two cls, two sep and a token of each text"
            message += f"; got a length of {shape.length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=message, valid=f"≥ {MARKS + 2}"))
        self.cls = special_tokens.require(vocabulary, "cls", component)
        self.sep = special_tokens.require(vocabulary, "sep", component)
        self.pad = vocabulary.specials.get("pad", self.sep)  # any id serves: no token attends to padding

    def lengths(self, tokens: Tokens, limit: int) -> Array:
        """(documents,) sequence length of each pair, special tokens included, up to `limit`."""
        return _full_lengths(tokens).clip(max=limit)

    def truncated(self, tokens: Tokens, limit: int) -> int:
        """Return the number of tokens that are truncated from pairs of both sides."""
        return int((_full_lengths(tokens) - limit).clip(min=0).sum())

    def __call__(self, tokens: Tokens, length: int, monolingual: float, draw: Draw) -> Stream:
        """Lay out the pairs `draw.index`; a share `monolingual` of them has one side alone, either equally likely."""
        a, b = self._halves(tokens, length, monolingual, draw)
        place = np.arange(length)
        second_start = (2 + a.length)[:, None]  # position of the second cls
        end = np.where(b.length > 0, MARKS + a.length + b.length, 2 + a.length)[:, None]
        in_second, is_padding = place >= second_start, place >= end
        positions = np.where(in_second, place - second_start, place)
        text_length = np.where(in_second, b.length[:, None], a.length[:, None])
        ids = np.where(in_second, _ids(tokens, b, positions - 1), _ids(tokens, a, positions - 1))
        ids = np.where(positions == 0, self.cls, np.where(positions == text_length + 1, self.sep, ids))
        return Stream(
            torch.from_numpy(np.where(is_padding, self.pad, ids)),
            documents=torch.from_numpy(np.where(is_padding, PADDING, 0)),
            positions=torch.from_numpy(positions),
            special=torch.from_numpy((positions == 0) | (positions > text_length) | is_padding),
            languages=self._languages(tokens, a.is_target, b.is_target, in_second, draw),
        )

    def _halves(self, tokens: Tokens, length: int, monolingual: float, draw: Draw) -> tuple[Half, Half]:
        """Return both texts of each pair in random order. Without room for both, their ends are truncated, that of the
        longer one first."""
        is_swapped = draw.uniform("turned", 1)[:, 0].numpy() < 0.5
        is_single = draw.uniform("alone", 1)[:, 0].numpy() < monolingual
        (start_a, length_a), (start_b, length_b) = (_span(tokens, side, draw) for side in (is_swapped, ~is_swapped))
        length_b = np.where(is_single, 0, length_b)
        room = np.where(is_single, length - 2, length - MARKS)
        truncated = np.minimum(length_a, np.maximum(room - length_b, (room + 1) // 2))
        length_a = np.where(is_single, np.minimum(length_a, room), truncated)
        length_b = np.minimum(length_b, room - length_a)
        return Half(is_swapped, start_a, length_a), Half(~is_swapped, start_b, length_b)

    def _languages(
        self, tokens: Tokens, a_is_target: Array, b_is_target: Array, in_second: Array, draw: Draw
    ) -> torch.Tensor | None:
        assert tokens.targets is not None, "the engine checks that the corpus has pairs"
        if tokens.languages is None or tokens.targets.languages is None:
            return None
        index = draw.index.numpy()
        source, target = tokens.languages[index], tokens.targets.languages[index]
        language_a, language_b = (np.where(side, target, source)[:, None] for side in (a_is_target, b_is_target))
        return torch.from_numpy(np.where(in_second, language_b, language_a))


def _full_lengths(tokens: Tokens) -> Array:
    """(documents,) sequence length of each pair without truncation."""
    assert tokens.targets is not None, "the engine checks that the corpus has pairs"
    lengths: Array = np.diff(_bounds(tokens)) + np.diff(_bounds(tokens.targets)) + MARKS
    return lengths


def _bounds(tokens: Tokens) -> Array:
    return document_bounds(tokens).astype(np.int64)


def _span(tokens: Tokens, is_target: Array, draw: Draw) -> tuple[Array, Array]:
    """Return the start and the length of the text of one side of each pair."""
    assert tokens.targets is not None, "the engine checks that the corpus has pairs"
    index = draw.index.numpy()
    source, target = _bounds(tokens), _bounds(tokens.targets)
    start = np.where(is_target, target[index], source[index])
    return start, np.where(is_target, target[index + 1], source[index + 1]) - start


def _ids(tokens: Tokens, half: Half, offset: Array) -> Array:
    """(B, T) ids of a text from its start on; beyond its end, arbitrary ids."""
    assert tokens.targets is not None, "the engine checks that the corpus has pairs"
    places = half.start[:, None] + offset
    source, target = (
        np.asarray(side.ids[np.clip(places, 0, len(side.ids) - 1)], dtype=np.int64) for side in (tokens, tokens.targets)
    )
    return np.where(half.is_target[:, None], target, source)
