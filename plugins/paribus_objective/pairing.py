"""Pairs of texts as an encoder reads one and a decoder writes the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch

from paribus import (
    IGNORED,
    PADDING,
    DataError,
    Draw,
    GenerationTarget,
    Problem,
    Prompt,
    Shape,
    SpecError,
    Stream,
    Tokens,
    TrainingExamples,
    Vocabulary,
)
from paribus_objective import specials

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
Long = Literal["cut", "drop"]


class Side(NamedTuple):
    """One side of all pairs: of document d, ids[bounds[d] : bounds[d + 1]]."""

    ids: Array
    bounds: Array
    languages: Array | None

    @property
    def sizes(self) -> Array:
        return np.diff(self.bounds)


@final
class Pairing:
    """The encoder reads the source and eos; the body is fed the target behind a start, and is to write it, and eos.

    Where languages have tokens of their own, the first sentinels, the source begins with that of its language, and the
    start of the target is that of its own: "Beyond English-Centric Multilingual Machine Translation" (Fan et al. 2021).
    """

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        who: str,
        languages: int | None,
        long: Long,
        *,
        backwards: bool,
    ) -> None:
        self.who, self.length, self.long, self.backwards = who, shape.length, long, backwards
        self.classes = shape.vocabulary
        self.eos = specials.needed(vocabulary, "eos", who)
        self.pad = vocabulary.specials.get("pad", self.eos)  # no row sees it, whatever it is
        self.start = vocabulary.specials.get("pad", vocabulary.specials.get("bos", self.eos))
        self.marks = np.array(vocabulary.sentinels[: languages or 0], dtype=np.int64)
        self._kept: dict[int, tuple[Tokens, Array]] = {}
        if len(self.marks) < (languages or 0):
            what = f"{who} marks {languages} languages by sentinels, but the tokenizer has {len(self.marks)}"
            raise SpecError(Problem(code="too-few-sentinels", path="tokenizer", message=what, valid=f"≥ {languages}"))
        if shape.length < 2 + self._before:
            what = f"{who} needs rows for a token and the marks around it, but there are {shape.length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=what, valid=f"≥ {2 + self._before}"))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}  # another process, or a copy, finds them anew

    @property
    def _before(self) -> int:
        """How many rows the source has in front of its text."""
        return 1 if len(self.marks) else 0

    def kept(self, tokens: Tokens) -> Array:
        """(N,) the documents that are examples, found once for each split."""
        if id(tokens) not in self._kept:  # the tokens are kept with what was found, so that nobody else gets their id
            rows = self._rows(tokens)
            kept = np.flatnonzero(rows <= self.length) if self.long == "drop" else np.arange(len(rows))
            if len(rows) and not len(kept):
                raise self._too_long(rows)
            self._check_languages(tokens)
            self._kept[id(tokens)] = (tokens, kept)
        return self._kept[id(tokens)][1]

    def lengths(self, tokens: Tokens) -> Array:
        """(N,) how many rows each example takes, of the side that takes more."""
        return np.minimum(self._rows(tokens)[self.kept(tokens)], self.length)

    def left_out(self, tokens: Tokens) -> dict[str, int]:
        """How many pairs are cut, or are no examples at all."""
        what = "ends of pairs" if self.long == "cut" else "pairs"
        return {f"{what} that take more than {self.length} rows": int((self._rows(tokens) > self.length).sum())}

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        """(B,) -> encoder (B, S), body and labels (B, T)."""
        source, target = _sides(tokens)
        at = self.kept(tokens)[draw.index.numpy()]
        before = None if source.languages is None or not len(self.marks) else self.marks[source.languages[at]]
        read, filled = self._closed(source, at, length, before, backwards=self.backwards)
        wanted, written = self._closed(target, at, length, None)
        fed = np.where(written, np.roll(wanted, 1, axis=1), self.pad)
        fed[:, 0] = self.start if target.languages is None or not len(self.marks) else self.marks[target.languages[at]]
        streams = {"encoder": self._stream(read, filled, source, at), "body": self._stream(fed, written, target, at)}
        return TrainingExamples(streams, {"labels": torch.from_numpy(np.where(written, wanted, IGNORED))})

    def prompt(self, ids: Sequence[int], wish: GenerationTarget) -> Prompt:
        """What the encoder reads of a text, and what the body starts with to write its other side."""
        language, source_language, _ = wish
        marked, ids = (ids[:1], ids[1:]) if len(ids) and ids[0] in self.marks else ((), ids)
        text = (*(reversed(ids) if self.backwards else ids), self.eos)
        if not len(self.marks):
            return Prompt((self.start,), text, self.eos)
        to = self._mark(language, "to be written in")
        if marked:
            return Prompt((to,), (*marked, *text), self.eos)
        if source_language is None and len(self.marks) == 2 and language is not None:
            source_language = 1 - language
        return Prompt((to,), (self._mark(source_language, "to be read in"), *text), self.eos)

    def _mark(self, language: int | None, why: str) -> int:
        if language is None or not 0 <= language < len(self.marks):
            said = "nobody says which" if language is None else f"{language} is none"
            what = f"{self.who} marks languages, and {said} of them it is {why}"
            raise SpecError(
                Problem(code="no-language", path="language", message=what, valid=f"0 to {len(self.marks) - 1}")
            )
        return int(self.marks[language])

    def _rows(self, tokens: Tokens) -> Array:
        """(documents,) what each takes, of the side that takes more, with its marks."""
        source, target = _sides(tokens)
        rows: Array = np.maximum(source.sizes + self._before, target.sizes) + 1
        return rows

    def _closed(
        self, side: Side, at: Array, length: int, before: Array | None, *, backwards: bool = False
    ) -> tuple[Array, Array]:
        """(B,) -> (B, T) text and eos behind it, and (B, T) bool: where there is any; cut to what there is room for."""
        place = np.arange(length)[None, :]
        lead = 0 if before is None else 1
        end = np.minimum(side.sizes[at] + lead, length - 1)[:, None]  # where eos is
        text = (place >= lead) & (place < end)
        steps = end - 1 - place if backwards else place - lead
        ids = side.ids[np.where(text, side.bounds[at][:, None] + steps, 0)].astype(np.int64)
        ids = np.where(text, ids, np.where(place == end, self.eos, self.pad))
        if before is not None:
            ids[:, 0] = before
        return ids, place <= end

    def _stream(self, ids: Array, filled: Array, side: Side, at: Array) -> Stream:
        special = ~filled | (ids == self.eos) | np.isin(ids, self.marks) | (ids == self.start)
        languages = None if side.languages is None else np.broadcast_to(side.languages[at][:, None], ids.shape).copy()
        return Stream(
            torch.from_numpy(ids),
            documents=torch.from_numpy(np.where(filled, 0, PADDING)),
            special=torch.from_numpy(special),
            languages=None if languages is None else torch.from_numpy(languages),
        )

    def counted(self, tokens: Tokens) -> Array:
        """(V,) how often each id is a label."""
        target = _sides(tokens)[1]
        at = self.kept(tokens)
        size = np.minimum(target.sizes[at], self.length - 1)
        first = np.repeat(target.bounds[at] - (np.cumsum(size) - size), size)
        counts = np.bincount(target.ids[first + np.arange(len(first))], minlength=self.classes)
        counts[self.eos] += len(at)
        return counts

    def _check_languages(self, tokens: Tokens) -> None:
        if not len(self.marks):
            return
        sides = [side.languages for side in _sides(tokens)]
        if any(each is None for each in sides):
            what = f"{self.who} marks {len(self.marks)} languages, but the corpus says of no text which it is in"
            valid = "null, or a corpus that tells languages apart"
            raise DataError(Problem(code="no-languages", path="objective.languages", message=what, valid=valid))
        most = 1 + max(int(each.max(initial=-1)) for each in sides if each is not None)
        if most > len(self.marks):
            what = f"{self.who} marks {len(self.marks)} languages, but the corpus has {most}"
            raise DataError(Problem(code="too-few", path="objective.languages", message=what, valid=f"≥ {most}"))

    def _too_long(self, rows: Array) -> DataError:
        what = f"all {len(rows):,} pairs take more than {self.length} rows ({rows.min():,} at least), and are dropped"
        valid = f"dims.length of {rows.min():,} or more, or {self.who} with long: cut"
        return DataError(Problem(code="too-long", path="dims.length", message=what, valid=valid))


def _sides(tokens: Tokens) -> tuple[Side, Side]:
    assert tokens.targets is not None, "the rules let only a corpus of pairs come here"
    source, target = (
        Side(np.asarray(it.ids), np.asarray(it.sentences)[np.asarray(it.documents)], it.languages)
        for it in (tokens, tokens.targets)
    )
    return source, target
