"""Shared methods of objectives on segment pairs; each method delegates to the `chunks` of the objective."""

from __future__ import annotations

from typing import Protocol

from paribus import Tokens
from paribus_objective.segments import Array, ChunkCache


class HasChunks(Protocol):
    """Objective on segment pairs."""

    @property
    def chunks(self) -> ChunkCache: ...


def example_count(objective: HasChunks, tokens: Tokens, length: int) -> int:
    return len(objective.chunks(tokens, length).start)


def example_lengths(objective: HasChunks, tokens: Tokens, length: int) -> Array:
    return objective.chunks(tokens, length).lengths(length)
