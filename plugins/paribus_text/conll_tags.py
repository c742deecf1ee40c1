"""Schemes of tags: entities of the tags of a sentence, and the tags of entities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

Scheme = Literal["file", "iob2", "bioes"]

OUTSIDE: Final = "O"
_CONTINUING: Final = ("I", "E", "L")
_OPEN: Final = ("B", "I")


def entities(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the first word, the word after the last, and the type of each entity, of tags in any scheme with prefixes.

    As in conlleval, an I- or E- continues a B- or I- of the same type, and any other tag but O starts an entity.
    """
    start = 0
    for place in range(len(tags)):
        prefix, _, kind = tags[place].partition("-")
        if place == start:
            pass
        elif not (prefix in _CONTINUING and _is_open(tags[place - 1], kind)):
            if tags[start] != OUTSIDE:
                yield start, place, tags[start].partition("-")[2]
            start = place
    if tags and tags[start] != OUTSIDE:
        yield start, len(tags), tags[start].partition("-")[2]


def _is_open(tag: str, kind: str) -> bool:
    prefix, _, other = tag.partition("-")
    return prefix in _OPEN and other == kind


def converted(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Return the tags of the same entities in another scheme; `file` is that of the tags themselves."""
    if scheme == "file":
        return list(tags)
    result = [OUTSIDE] * len(tags)
    for start, stop, kind in entities(tags):
        prefixes = ["B", *"I" * (stop - start - 1)]
        if scheme == "bioes":
            prefixes = ["S"] if stop - start == 1 else [*prefixes[:-1], "E"]
        result[start:stop] = [f"{prefix}-{kind}" for prefix in prefixes]
    return result
