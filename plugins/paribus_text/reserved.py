"""What the tokenizers share: the ids that no text ever gets, and how what was learned is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paribus import DataError, Problem, SpecError, Vocabulary


def reserved(first: int, sentinels: int, *, unknown: bool = False) -> Vocabulary:
    """Specials, then sentinels, numbered on from `first`; its size is the next free id."""
    names = ("pad", *(("unk",) if unknown else ()), "cls", "sep", "mask", "bos", "eos")
    start = first + len(names)
    specials = {name: first + place for place, name in enumerate(names)}
    return Vocabulary(start + sentinels, specials, tuple(range(start, start + sentinels)))


def names(vocabulary: Vocabulary) -> dict[int, str]:
    """How `decode` shows each reserved id: `<mask>`, `<sentinel 3>`."""
    special = {token: f"<{name}>" for name, token in vocabulary.specials.items()}
    return special | {token: f"<sentinel {place}>" for place, token in enumerate(vocabulary.sentinels)}


def shown(special: Mapping[int, str], token: int) -> str:
    """How `decode` shows an id that is none of the text's."""
    return special.get(token, f"<no token {token}>")


def packed(name: str, learned: Mapping[str, Any]) -> bytes:
    """A state: JSON, the same bytes for the same contents."""
    return json.dumps({name: learned}, sort_keys=True, separators=(",", ":")).encode()


@contextmanager
def unpacked(name: str, state: bytes) -> Iterator[Any]:
    """What `packed` was given. Whatever is wrong with it, until it has been used, is a `DataError`."""
    try:
        yield json.loads(state)[name]
    except Exception as error:  # the library raises its own kinds, which share no base
        raise DataError(
            Problem(
                code="tokenizer-state",
                path="tokenizer",
                message=f"what was stored is no state of the tokenizer `{name}`: {type(error).__name__}: {error}",
                valid="what the same tokenizer wrote; remove it, and the tokenizer is trained anew",
            )
        ) from error


def too_small(name: str, size: int, least: int, why: str) -> SpecError:
    """A vocabulary that cannot hold what every text needs."""
    return SpecError(
        Problem(
            code="vocabulary-too-small",
            path="dims.vocabulary",
            message=f"the tokenizer `{name}` cannot do with {size:,} ids: {why}",
            valid=f"{least:,} or more, or null for as many as it wants",
        )
    )
