"""Questions with several choices as examples, in which each choice is a document of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paribus import PADDING, DataError, ForwardPass, Problem, Shape, SpecError, Stream, Tokens, Unembed, Vocabulary
from paribus_objective import labelled
from paribus_objective.segments import MARKS, SegmentLayout, Span, truncated_lengths
from paribus_objective.windows import Array


class ChoiceBatch(NamedTuple):
    """A batch of questions as the model reads them."""

    stream: Stream
    first: Tensor  # (B, C) position of the first special token of each choice
    last: Tensor  # (B, C) position of the last one


@final
class ChoiceTexts:
    """Layout `[cls] context [sep] choice [sep]` for each of C choices, one after the other as documents of one example;
    `marks` replaces the special tokens.

    Positions start at 0 in each. Padding follows the last one. A choice has at most the C-th part of the length.
    """

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        component: str,
        choices: int,
        marks: tuple[str, str, str] = ("cls", "sep", "sep"),
    ) -> None:
        self.component = component
        self.choices = choices
        self.limit = shape.length // choices  # tokens of a choice with its context
        if self.limit < MARKS + 2:
            message = (
                f"{component} puts {choices} choices into one example, which gives each {self.limit} positions of "
            )
            message += f"{shape.length}"
            valid = f"≥ {choices * (MARKS + 2)}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=message, valid=valid))
        self.layout = SegmentLayout(dataclasses.replace(shape, length=self.limit), vocabulary, component, marks)

    def __call__(self, tokens: Tokens, index: Array, length: int) -> ChoiceBatch:
        """Return the questions of the index; of a context and a choice that are too long, the longer is truncated."""
        a, b = self._spans(tokens, index)
        length_a, length_b = truncated_lengths(a.length, b.length, self.limit - MARKS)
        a, b = a._replace(length=length_a), b._replace(length=length_b)
        parts = self.layout(tokens, a, b, self.limit, other=tokens.targets)
        sizes = (length_a + length_b + MARKS).reshape(-1, self.choices)
        ends = torch.from_numpy(np.cumsum(sizes, axis=1))
        return ChoiceBatch(self._joined(parts, length), ends - torch.from_numpy(sizes), ends - 1)

    def full_lengths(self, tokens: Tokens) -> Array:
        """(documents, C) length of the sequence of each choice, without truncation."""
        a, b = self._spans(tokens, np.arange(len(tokens.documents) - 1))
        lengths: Array = (a.length + b.length + MARKS).reshape(-1, self.choices)
        return lengths

    def check(self, tokens: Tokens) -> None:
        """Raise a DataError unless every document has these many choices, and the number of one as its label."""
        assert tokens.targets is not None, "the engine checks that the corpus has choices"
        counts = np.diff(np.asarray(tokens.targets.documents))
        wrong = np.flatnonzero(counts != self.choices)
        if wrong.size:
            message = f"{self.component} has {self.choices} choices; document {wrong[0]:,} has {counts[wrong[0]]}"
            valid = f"`objective.choices={counts[wrong[0]]}`, if all questions have as many"
            raise DataError(Problem(code="labels", path="corpus", message=message, valid=valid))
        labelled.check_one_label_each(tokens, self.component)
        labelled.check_class_range(labelled.require_labels(tokens).values, self.choices, self.component)

    def _spans(self, tokens: Tokens, index: Array) -> tuple[Span, Span]:
        """(B * C,) contexts and choices."""
        assert tokens.targets is not None, "the engine checks that the corpus has choices"
        context = labelled.document_spans(tokens, np.repeat(index, self.choices))
        bounds, documents = np.asarray(tokens.targets.sentences), np.asarray(tokens.targets.documents)
        choice = (documents[index][:, None] + np.arange(self.choices)).reshape(-1)
        return context, Span(bounds[choice], bounds[choice + 1] - bounds[choice])

    def _joined(self, parts: Stream, length: int) -> Stream:
        """(B * C, W) -> (B, T): the choices one after the other, without the padding between them."""
        assert parts.documents is not None, "a layout has padding"
        number = torch.arange(self.choices).repeat(len(parts.tokens) // self.choices).unsqueeze(1)
        is_padding = parts.documents < 0
        parts = parts._replace(documents=torch.where(is_padding, PADDING, number))
        parts = parts.apply(lambda vector: vector.reshape(-1, self.choices * self.limit))
        order = is_padding.reshape(parts.tokens.shape).int().argsort(dim=1, stable=True)[:, :length]
        joined = parts.apply(lambda vector: vector.gather(1, order))
        rest = length - order.shape[1]
        padded = joined.apply(lambda vector: functional.pad(vector, (0, rest)))
        assert joined.documents is not None, "as above"
        return padded._replace(
            tokens=functional.pad(joined.tokens, (0, rest), value=self.layout.pad),
            documents=functional.pad(joined.documents, (0, rest), value=PADDING),
        )


class HasChoices(Protocol):
    """Objective that scores one position of each choice."""

    @property
    def texts(self) -> ChoiceTexts: ...

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor: ...


def example_count(objective: HasChoices, tokens: Tokens, length: int) -> int:
    objective.texts.check(tokens)
    return len(tokens.documents) - 1


def example_lengths(objective: HasChoices, tokens: Tokens, length: int) -> Array:
    """Return the length of each example, the sum of those of its choices."""
    lengths: Array = np.minimum(objective.texts.full_lengths(tokens), objective.texts.limit).sum(axis=1)
    return lengths


def skipped_documents(objective: HasChoices, tokens: Tokens, length: int) -> Mapping[str, int]:
    """Return the number of tokens truncated from long contexts and choices, each context counted with each choice."""
    truncated = int(np.maximum(objective.texts.full_lengths(tokens) - objective.texts.limit, 0).sum())
    return {"tokens truncated from choices longer than their share of the sequence": truncated}


def head_positions(objective: HasChoices, length: int) -> int:
    """Return the number of choices, of which the head scores one position each."""
    return objective.texts.choices


def class_logits(objective: HasChoices, run: ForwardPass) -> Tensor:
    """(B, C): a score for each choice."""

    def compute() -> Tensor:
        hidden, scored = run.hidden("body"), run.targets["scored"]
        rows = torch.arange(len(hidden), device=hidden.device).unsqueeze(1)
        return objective.logits(hidden[rows, scored], run.unembed).squeeze(-1)

    return run.cached("logits", compute)
