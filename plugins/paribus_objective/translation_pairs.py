"""Pairs of texts for an encoder and a decoder: the encoder reads the source, the decoder writes the target."""

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
from paribus_objective import special_tokens
from paribus_objective.labelled import document_bounds

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
Overlong = Literal["truncate", "drop"]


class Side(NamedTuple):
    """One side of all pairs: document d is ids[bounds[d] : bounds[d + 1]]."""

    ids: Array
    bounds: Array
    languages: Array | None

    @property
    def lengths(self) -> Array:
        return np.diff(self.bounds)


@final
class TranslationPairs:
    """The encoder reads the source and eos; the decoder reads a start token and the target, and writes the target and
    eos.

    If languages have tokens of their own, the first sentinels, the source starts with the token of its language, and
    the start token of the target is that of its language: "Beyond English-Centric Multilingual Machine Translation"
    (Fan et al. 2021).
    """

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        component: str,
        languages: int | None,
        overlong: Overlong,
        *,
        reverse_source: bool,
    ) -> None:
        self.component, self.length, self.overlong = component, shape.length, overlong
        self.reverse_source = reverse_source
        self.classes = shape.vocabulary
        self.eos = special_tokens.require(vocabulary, "eos", component)
        self.pad = vocabulary.specials.get("pad", self.eos)  # any id serves: no token attends to padding
        self.start = vocabulary.specials.get("pad", vocabulary.specials.get("bos", self.eos))
        self.language_tokens = np.array(vocabulary.sentinels[: languages or 0], dtype=np.int64)
        self._cache: dict[int, tuple[Tokens, Array]] = {}
        if len(self.language_tokens) < (languages or 0):
            message = f"{component} needs a sentinel for each of {languages} languages"
            message += f"; the tokenizer has {len(self.language_tokens)}"
            raise SpecError(
                Problem(code="too-few-sentinels", path="tokenizer", message=message, valid=f"≥ {languages}")
            )
        minimum = 2 + self._prefix_length
        if shape.length < minimum:
            message = f"{component} needs positions for a token and its special tokens; got a length of {shape.length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=message, valid=f"≥ {minimum}"))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}  # copies and other processes start with an empty cache

    @property
    def _prefix_length(self) -> int:
        """Number of special tokens before the text of the source."""
        return 1 if len(self.language_tokens) else 0

    def count(self, tokens: Tokens) -> int:
        """Return the number of examples."""
        return len(self.documents(tokens))

    def documents(self, tokens: Tokens) -> Array:
        """(N,) the documents that are examples, computed once for each split."""
        if id(tokens) not in self._cache:  # it holds the tokens too, so that no other corpus gets their id
            lengths = self._full_lengths(tokens)
            documents = np.flatnonzero(lengths <= self.length) if self.overlong == "drop" else np.arange(len(lengths))
            if len(lengths) and not len(documents):
                raise self._too_long(lengths)
            self._check_languages(tokens)
            self._cache[id(tokens)] = (tokens, documents)
        return self._cache[id(tokens)][1]

    def lengths(self, tokens: Tokens) -> Array:
        """(N,) sequence length of the longer side of each example."""
        return np.minimum(self._full_lengths(tokens)[self.documents(tokens)], self.length)

    def skipped_documents(self, tokens: Tokens) -> dict[str, int]:
        """Return the number of pairs that are truncated or dropped."""
        action = "truncated" if self.overlong == "truncate" else "dropped"
        count = int((self._full_lengths(tokens) > self.length).sum())
        return {f"pairs {action} because a side is longer than {self.length}": count}

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        """(B,) -> encoder (B, S), body and labels (B, T)."""
        source, target = _sides(tokens)
        documents = self.documents(tokens)[draw.index.numpy()]
        prefix = self._language_prefix(source, documents)
        encoder_ids, encoder_mask = self._with_eos(source, documents, length, prefix, reverse=self.reverse_source)
        labels, decoder_mask = self._with_eos(target, documents, length, None)
        decoder_ids = np.where(decoder_mask, np.roll(labels, 1, axis=1), self.pad)
        start = self._language_prefix(target, documents)
        decoder_ids[:, 0] = self.start if start is None else start
        streams = {
            "encoder": self._stream(encoder_ids, encoder_mask, source, documents),
            "body": self._stream(decoder_ids, decoder_mask, target, documents),
        }
        return TrainingExamples(streams, {"labels": torch.from_numpy(np.where(decoder_mask, labels, IGNORED))})

    def prompt(self, ids: Sequence[int], wish: GenerationTarget) -> Prompt:
        """Return the encoder's text and the decoder's start token."""
        language, source_language, _ = wish
        has_token = bool(len(ids)) and ids[0] in self.language_tokens
        language_token, ids = (ids[:1], ids[1:]) if has_token else ((), ids)
        text = (*(reversed(ids) if self.reverse_source else ids), self.eos)
        if not len(self.language_tokens):
            return Prompt((self.start,), text, self.eos)
        start = self._language_token(language, "target")
        if has_token:
            return Prompt((start,), (*language_token, *text), self.eos)
        if source_language is None and len(self.language_tokens) == 2 and language is not None:
            source_language = 1 - language
        return Prompt((start,), (self._language_token(source_language, "source"), *text), self.eos)

    def _language_prefix(self, side: Side, documents: Array) -> Array | None:
        """(B,) the language token of each text; None without language tokens or languages."""
        if side.languages is None or not len(self.language_tokens):
            return None
        tokens: Array = self.language_tokens[side.languages[documents]]
        return tokens

    def _language_token(self, language: int | None, side: str) -> int:
        if language is None or not 0 <= language < len(self.language_tokens):
            given = "none" if language is None else f"{language}"
            message = f"{self.component} needs the {side} language; got {given}"
            valid = f"0 to {len(self.language_tokens) - 1}"
            raise SpecError(Problem(code="missing-language", path="language", message=message, valid=valid))
        return int(self.language_tokens[language])

    def _full_lengths(self, tokens: Tokens) -> Array:
        """(documents,) sequence length of the longer side of each pair without truncation."""
        source, target = _sides(tokens)
        lengths: Array = np.maximum(source.lengths + self._prefix_length, target.lengths) + 1
        return lengths

    def _with_eos(
        self, side: Side, documents: Array, length: int, prefix: Array | None, *, reverse: bool = False
    ) -> tuple[Array, Array]:
        """(B,) -> (B, T) prefix, text and eos, truncated to `length`, and (B, T) bool: False for padding."""
        position = np.arange(length)[None, :]
        start = 0 if prefix is None else 1
        end = np.minimum(side.lengths[documents] + start, length - 1)[:, None]  # position of eos
        is_text = (position >= start) & (position < end)
        offset = end - 1 - position if reverse else position - start
        ids = side.ids[np.where(is_text, side.bounds[documents][:, None] + offset, 0)].astype(np.int64)
        ids = np.where(is_text, ids, np.where(position == end, self.eos, self.pad))
        if prefix is not None:
            ids[:, 0] = prefix
        return ids, position <= end

    def _stream(self, ids: Array, mask: Array, side: Side, documents: Array) -> Stream:
        special = ~mask | (ids == self.eos) | np.isin(ids, self.language_tokens) | (ids == self.start)
        languages = None
        if side.languages is not None:
            languages = torch.from_numpy(np.broadcast_to(side.languages[documents][:, None], ids.shape).copy())
        return Stream(
            torch.from_numpy(ids),
            documents=torch.from_numpy(np.where(mask, 0, PADDING)),
            special=torch.from_numpy(special),
            languages=languages,
        )

    def label_counts(self, tokens: Tokens) -> Array:
        """(V,) frequency of each id among the labels."""
        target = _sides(tokens)[1]
        documents = self.documents(tokens)
        lengths = np.minimum(target.lengths[documents], self.length - 1)
        first = np.repeat(target.bounds[documents] - (np.cumsum(lengths) - lengths), lengths)
        counts = np.bincount(target.ids[first + np.arange(len(first))], minlength=self.classes)
        counts[self.eos] += len(documents)
        return counts

    def _check_languages(self, tokens: Tokens) -> None:
        if not len(self.language_tokens):
            return
        sides = [side.languages for side in _sides(tokens)]
        path, supported = "objective.languages", len(self.language_tokens)
        if any(languages is None for languages in sides):
            message = f"{self.component} has tokens for {supported} languages; the corpus has no language labels"
            valid = "null, or a corpus with languages"
            raise DataError(Problem(code="missing-languages", path=path, message=message, valid=valid))
        count = 1 + max(int(languages.max(initial=-1)) for languages in sides if languages is not None)
        if count > supported:
            message = f"{self.component} has tokens for {supported} languages; the corpus has {count}"
            raise DataError(Problem(code="too-few", path=path, message=message, valid=f"≥ {count}"))

    def _too_long(self, lengths: Array) -> DataError:
        message = (
            f"all {len(lengths):,} pairs are longer than {self.length} ({lengths.min():,} or more) and are dropped"
        )
        valid = f"dims.length ≥ {lengths.min():,}, or {self.component} with overlong: truncate"
        return DataError(Problem(code="too-long", path="dims.length", message=message, valid=valid))


def _sides(tokens: Tokens) -> tuple[Side, Side]:
    assert tokens.targets is not None, "the engine checks that the corpus has pairs"
    source, target = (
        Side(np.asarray(side.ids), document_bounds(side), side.languages) for side in (tokens, tokens.targets)
    )
    return source, target
