"""Prompt and answer in one sequence; only the answer is predicted."""

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
from paribus_objective import special_tokens
from paribus_objective.labelled import document_bounds

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
Overlong = Literal["error", "truncate", "drop"]

MINIMUM_LENGTH = 3  # a token of the prompt, a separator, and a token of the answer


class Examples(NamedTuple):
    """The pairs of a split that are examples, and their location in the flat ids."""

    prompt_start: Array  # (N,) in the ids of the source; prompts are truncated at the start
    prompt_length: Array  # (N,)
    answer_start: Array  # (N,) in the ids of the target
    answer_length: Array  # (N,)
    document: Array  # (N,)
    is_label: Array  # (ids of the target,) bool: whether an id is predicted
    full_lengths: Array  # (documents,) sequence length of each pair without truncation


@final
class PromptAnswerPairs:
    """Layout `prompt [sep] answer eos`, padded."""

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        component: str,
        *,
        separator: bool,
        stop: bool,
        marks: bool,
        overlong: Overlong,
    ) -> None:
        if shape.length < MINIMUM_LENGTH:
            message = f"{component} needs positions for a prompt and an answer; got a length of {shape.length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=message, valid=f"≥ {MINIMUM_LENGTH}"))
        self.component, self.length, self.overlong = component, shape.length, overlong
        self.stop, self.marks = stop, marks
        self.classes = shape.vocabulary
        self.sep = (special_tokens.require(vocabulary, "sep", component),) if separator else ()
        self.eos = special_tokens.require(vocabulary, "eos", component)
        self.pad = vocabulary.specials.get("pad", self.eos)  # any id serves: no token attends to padding
        self._cache: dict[int, tuple[Tokens, Examples]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}  # copies and other processes start with an empty cache

    def count(self, tokens: Tokens) -> int:
        """Return the number of examples."""
        return len(self.examples(tokens).document)

    def examples(self, tokens: Tokens) -> Examples:
        """Return the pairs that are examples, computed once for each split."""
        if id(tokens) not in self._cache:  # it holds the tokens too, so that no other corpus gets their id
            self._cache[id(tokens)] = (tokens, self._select(tokens))
        return self._cache[id(tokens)][1]

    def lengths(self, tokens: Tokens) -> Array:
        """(N,) sequence length of each example."""
        examples = self.examples(tokens)
        return np.minimum(examples.full_lengths[examples.document], self.length)

    def skipped_documents(self, tokens: Tokens) -> Mapping[str, int]:
        """Return the number of pairs that are truncated or dropped."""
        count = int((self.examples(tokens).full_lengths > self.length).sum())
        action = "with a truncated prompt" if self.overlong == "truncate" else "dropped"
        return {f"pairs {action} because they are longer than {self.length}": count}

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        """(B,) -> tokens (B, T), labels (B, T)."""
        assert tokens.targets is not None, "the engine checks that the corpus has pairs"
        examples, index = self.examples(tokens), draw.index.numpy()
        position = np.arange(length + 1)[None, :]
        prompt_length, answer_length = (
            lengths[index][:, None] for lengths in (examples.prompt_length, examples.answer_length)
        )
        answer_start = prompt_length + len(self.sep)
        answer_end = answer_start + answer_length  # position of eos
        in_prompt = position < prompt_length
        in_answer = (position >= answer_start) & (position < answer_end)
        source = np.where(in_prompt, examples.prompt_start[index][:, None] + position, 0)
        target = np.where(in_answer, examples.answer_start[index][:, None] + position - answer_start, 0)
        ids = np.where(in_prompt, np.asarray(tokens.ids)[source], np.asarray(tokens.targets.ids)[target])
        ids = ids.astype(np.int64)
        special = [(position == answer_end, self.eos), (position > answer_end, self.pad)]
        if self.sep:
            special.insert(0, (position == prompt_length, self.sep[0]))
        for mask, token in special:
            ids = np.where(mask & ~in_answer, token, ids)
        has_label = (in_answer & examples.is_label[target]) | ((position == answer_end) & self.stop)
        labels = np.where(has_label, ids, IGNORED)[:, 1:]
        body = Stream(
            torch.from_numpy(ids[:, :-1]),
            documents=torch.from_numpy(np.where(position < answer_end, 0, PADDING)[:, :-1]),
            special=torch.from_numpy(~(in_prompt | in_answer)[:, :-1]),
            languages=self._languages(tokens, examples.document[index], (position >= answer_start)[:, :-1]),
        )
        return TrainingExamples({"body": body}, {"labels": torch.from_numpy(labels)})

    def _languages(self, tokens: Tokens, documents: Array, in_answer: Array) -> torch.Tensor | None:
        """(B, T): the language of the prompt, and that of the answer from its start on."""
        if tokens.languages is None:
            return None
        source = tokens.languages[documents][:, None]
        target = source
        if tokens.targets is not None and tokens.targets.languages is not None:
            target = tokens.targets.languages[documents]
        return torch.from_numpy(np.where(in_answer, target.reshape(-1, 1), source))

    def label_counts(self, tokens: Tokens) -> Array:
        """(V,) frequency of each id among the labels."""
        assert tokens.targets is not None, "the engine checks that the corpus has pairs"
        examples = self.examples(tokens)
        lengths = examples.answer_length
        first = np.repeat(examples.answer_start - (np.cumsum(lengths) - lengths), lengths)
        positions = first + np.arange(len(first))
        ids = np.asarray(tokens.targets.ids)[positions[examples.is_label[positions]]]
        counts = np.bincount(ids, minlength=self.classes)
        counts[self.eos] += len(examples.document) * self.stop
        return counts

    def _select(self, tokens: Tokens) -> Examples:
        assert tokens.targets is not None, "the engine checks that the corpus has pairs"
        source, target = document_bounds(tokens), document_bounds(tokens.targets)
        prompt_lengths, answer_lengths = np.diff(source), np.diff(target)
        full_lengths = prompt_lengths + len(self.sep) + answer_lengths  # eos is predicted and never read
        room = self.length - len(self.sep)
        if self.overlong == "drop":
            document = np.flatnonzero(full_lengths <= self.length)
        else:
            document = np.arange(len(full_lengths))
        is_error = self.overlong == "error" and full_lengths.max(initial=0) > self.length
        if len(full_lengths) and (not len(document) or is_error):
            raise self._too_long(full_lengths)
        answer_length = np.minimum(answer_lengths[document], room - 1)
        prompt_length = np.minimum(prompt_lengths[document], room - answer_length)
        return Examples(
            source[:-1][document] + prompt_lengths[document] - prompt_length,
            prompt_length,
            target[:-1][document],
            answer_length,
            document,
            self._label_mask(tokens),
            full_lengths,
        )

    def _label_mask(self, tokens: Tokens) -> Array:
        """(ids of the target,) bool: all of them, or those of sentences whose mark is not 0."""
        assert tokens.targets is not None, "the engine checks that the corpus has pairs"
        sentences = np.asarray(tokens.targets.sentences)
        if not self.marks:
            return np.ones(sentences[-1], dtype=bool)
        values = np.empty(0) if tokens.labels is None else np.asarray(tokens.labels.values)
        if len(values) != len(sentences) - 1:
            message = f"{self.component} expects a mark for each of {len(sentences) - 1:,} sentences of the targets"
            message += f"; the corpus has {len(values):,}"
            raise DataError(
                Problem(code="wrong-number-of-marks", path="objective.marks", message=message, valid="false")
            )
        return np.repeat(values != 0, np.diff(sentences))

    def _too_long(self, full_lengths: Array) -> DataError:
        count = int((full_lengths > self.length).sum())
        message = (
            f"{count:,} of {len(full_lengths):,} pairs are longer than {self.length}, up to {full_lengths.max():,}"
        )
        valid = f"dims.length ≥ {full_lengths.max():,}, or {self.component} with overlong: truncate or drop"
        return DataError(Problem(code="too-long", path="dims.length", message=message, valid=valid))
