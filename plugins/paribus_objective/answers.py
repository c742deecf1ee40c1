"""Pairs of texts in one row: a prompt and, behind it, its answer, which alone is predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch

from paribus import (
    IGNORED,
    PADDING,
    DataError,
    Draw,
    Problem,
    Shape,
    SpecError,
    Stream,
    Tokens,
    TrainingExamples,
    Vocabulary,
)
from paribus_objective import specials

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
Long = Literal["refuse", "cut", "drop"]

LEAST = 3  # rows: a token of each, and a mark between them


class Kept(NamedTuple):
    """The pairs of a split that are examples, and where their ids lie."""

    prompt: Array  # (N,) where it begins in the flat ids of the source; what is cut is cut from its beginning
    prompted: Array  # (N,) how many ids it has
    answer: Array  # (N,) where it begins in those of the target
    answered: Array  # (N,)
    at: Array  # (N,) which document it is
    counts: Array  # (ids of the target,) bool: whether an id is one to predict
    needed: Array  # (documents,) rows that each pair takes


@final
class Answers:
    """`prompt [sep] answer eos`, and padding up to the length."""

    def __init__(
        self, shape: Shape, vocabulary: Vocabulary, who: str, *, separator: bool, stop: bool, marks: bool, long: Long
    ) -> None:
        if shape.length < LEAST:
            what = f"{who} needs rows for a prompt and an answer, but there are {shape.length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=what, valid=f"≥ {LEAST}"))
        self.who, self.length, self.stop, self.marks, self.long = who, shape.length, stop, marks, long
        self.classes = shape.vocabulary
        self.sep = (specials.needed(vocabulary, "sep", who),) if separator else ()
        self.eos = specials.needed(vocabulary, "eos", who)
        self.pad = vocabulary.specials.get("pad", self.eos)  # no row sees it, whatever it is
        self._kept: dict[int, tuple[Tokens, Kept]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}  # another process, or a copy, finds them anew

    def kept(self, tokens: Tokens) -> Kept:
        """The pairs that are examples, found once for each split."""
        if id(tokens) not in self._kept:  # the tokens are kept with what was found, so that nobody else gets their id
            self._kept[id(tokens)] = (tokens, self._found(tokens))
        return self._kept[id(tokens)][1]

    def lengths(self, tokens: Tokens) -> Array:
        """(N,) how many rows each example takes."""
        kept = self.kept(tokens)
        return np.minimum(kept.needed[kept.at], self.length)

    def left_out(self, tokens: Tokens) -> Mapping[str, int]:
        """How many pairs are cut, or are no examples at all."""
        what = "beginnings of prompts" if self.long == "cut" else "pairs"
        return {f"{what} that take more than {self.length} rows": int((self.kept(tokens).needed > self.length).sum())}

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        """(B,) -> rows (B, T), labels (B, T)."""
        assert tokens.targets is not None, "the rules let only a corpus of pairs come here"
        kept, at = self.kept(tokens), draw.index.numpy()
        place = np.arange(length + 1)[None, :]
        prompted, answered = kept.prompted[at][:, None], kept.answered[at][:, None]
        begins = prompted + len(self.sep)
        ends = begins + answered  # where eos is
        asks, answers = place < prompted, (place >= begins) & (place < ends)
        source = np.where(asks, kept.prompt[at][:, None] + place, 0)
        target = np.where(answers, kept.answer[at][:, None] + place - begins, 0)
        ids = np.where(asks, np.asarray(tokens.ids)[source], np.asarray(tokens.targets.ids)[target]).astype(np.int64)
        for where, token in ((place == prompted, self.sep), (place == ends, (self.eos,)), (place > ends, (self.pad,))):
            ids = np.where(where & ~answers, token[0], ids) if token else ids
        labelled = (answers & kept.counts[target]) | ((place == ends) & self.stop)
        labels = np.where(labelled, ids, IGNORED)[:, 1:]
        body = Stream(
            torch.from_numpy(ids[:, :-1]),
            documents=torch.from_numpy(np.where(place < ends, 0, PADDING)[:, :-1]),
            special=torch.from_numpy(~(asks | answers)[:, :-1]),
            languages=self._languages(tokens, kept.at[at], (place >= begins)[:, :-1]),
        )
        return TrainingExamples({"body": body}, {"labels": torch.from_numpy(labels)})

    def _languages(self, tokens: Tokens, at: Array, answering: Array) -> torch.Tensor | None:
        """(B, T): of the prompt, and of the answer from where it begins."""
        if tokens.languages is None:
            return None
        own = tokens.languages[at][:, None]
        other = own if tokens.targets is None or tokens.targets.languages is None else tokens.targets.languages[at]
        return torch.from_numpy(np.where(answering, other.reshape(-1, 1), own))

    def counted(self, tokens: Tokens) -> Array:
        """(V,) how often each id is a label."""
        assert tokens.targets is not None, "as above"
        kept = self.kept(tokens)
        first = np.repeat(kept.answer - (np.cumsum(kept.answered) - kept.answered), kept.answered)
        places = first + np.arange(len(first))
        ids = np.asarray(tokens.targets.ids)[places[kept.counts[places]]]
        found = np.bincount(ids, minlength=self.classes)
        found[self.eos] += len(kept.at) * self.stop
        return found

    def _found(self, tokens: Tokens) -> Kept:
        assert tokens.targets is not None, "as above"
        source, target = (np.asarray(it.sentences)[np.asarray(it.documents)] for it in (tokens, tokens.targets))
        prompted, answered = np.diff(source), np.diff(target)
        needed = prompted + len(self.sep) + answered  # eos is predicted and never read
        room = self.length - len(self.sep)
        at = np.flatnonzero(needed <= self.length) if self.long == "drop" else np.arange(len(needed))
        if len(needed) and (not len(at) or (self.long == "refuse" and needed.max() > self.length)):
            raise self._too_long(needed)
        answered = np.minimum(answered[at], room - 1)
        fits = np.minimum(prompted[at], room - answered)
        return Kept(
            source[:-1][at] + prompted[at] - fits, fits, target[:-1][at], answered, at, self._counts(tokens), needed
        )

    def _counts(self, tokens: Tokens) -> Array:
        """(ids of the target,) bool: all of them, or those of sentences whose mark is not 0."""
        assert tokens.targets is not None, "as above"
        sentences = np.asarray(tokens.targets.sentences)
        if not self.marks:
            return np.ones(sentences[-1], dtype=bool)
        values = np.empty(0) if tokens.labels is None else np.asarray(tokens.labels.values)
        if len(values) != len(sentences) - 1:
            what = f"{self.who} reads a mark for each sentence of a target, of which there are {len(sentences) - 1:,}"
            what += f", but the corpus has {len(values):,}"
            raise DataError(Problem(code="no-marks", path="objective.marks", message=what, valid="false"))
        return np.repeat(values != 0, np.diff(sentences))

    def _too_long(self, needed: Array) -> DataError:
        many = int((needed > self.length).sum())
        what = f"{many:,} of {len(needed):,} pairs take more than {self.length} rows, and as many as {needed.max():,}"
        valid = f"dims.length of {needed.max():,} or more, or {self.who} with long: cut or drop"
        return DataError(Problem(code="too-long", path="dims.length", message=what, valid=valid))
