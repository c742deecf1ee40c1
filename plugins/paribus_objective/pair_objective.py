"""Shared methods of objectives on pairs of texts; each method delegates to the `pairs` of the objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from paribus import Draw, Tokens, TrainingExamples
from paribus_objective import scoring

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class Pairs(Protocol):
    """Examples made from a corpus of pairs."""

    def count(self, tokens: Tokens) -> int: ...

    def lengths(self, tokens: Tokens) -> Array: ...

    def skipped_documents(self, tokens: Tokens) -> Mapping[str, int]: ...

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples: ...

    def label_counts(self, tokens: Tokens) -> Array: ...


class HasPairs(Protocol):
    """Objective on pairs of texts."""

    @property
    def pairs(self) -> Pairs: ...


def example_count(objective: HasPairs, tokens: Tokens, length: int) -> int:
    return objective.pairs.count(tokens)


def example_lengths(objective: HasPairs, tokens: Tokens, length: int) -> Array:
    return objective.pairs.lengths(tokens)


def skipped_documents(objective: HasPairs, tokens: Tokens, length: int) -> Mapping[str, int]:
    return objective.pairs.skipped_documents(tokens)


def form(objective: HasPairs, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
    return objective.pairs.form(tokens, length, draw)


def unigram_loss(objective: HasPairs, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
    """Return the loss of predicting the label frequencies of the training split, with add-one smoothing."""
    return scoring.frequency_loss(objective.pairs.label_counts(train), targets["labels"])
