"""Error of a task whose questions have more distinct symbols than it draws from."""

from __future__ import annotations

from paribus import Problem


def too_few_symbols(count: int, needed: int) -> Problem:
    """Return the problem of a graph with more nodes than symbols."""
    message = f"{needed} nodes need {needed} different symbols, got {count}"
    return Problem(code="too-few-symbols", path="corpus.symbols", message=message, valid=f"≥ {needed}")
