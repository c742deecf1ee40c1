"""Reserved ids of tokenizers (special tokens and sentinels), and storage of tokenizer states."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paribus import DataError, Problem, SpecError, Vocabulary


def reserve_tokens(first: int, sentinels: int, *, unknown: bool = False) -> Vocabulary:
    """Return special tokens and then sentinels, numbered from `first`; the size is the next free id."""
    special_names = ("pad", *(("unk",) if unknown else ()), "cls", "sep", "mask", "bos", "eos")
    start = first + len(special_names)
    specials = {name: first + place for place, name in enumerate(special_names)}
    return Vocabulary(start + sentinels, specials, tuple(range(start, start + sentinels)))


def display_names(vocabulary: Vocabulary) -> dict[int, str]:
    """Return the text of each reserved id in `decode`: `<mask>`, `<sentinel 3>`."""
    special = {token: f"<{name}>" for name, token in vocabulary.specials.items()}
    return special | {token: f"<sentinel {place}>" for place, token in enumerate(vocabulary.sentinels)}


def display(special: Mapping[int, str], token: int) -> str:
    """Return the text in `decode` of an id that is not text."""
    return special.get(token, f"<no token {token}>")


def pack_state(name: str, content: Mapping[str, Any]) -> bytes:
    """Return a state as JSON: the same bytes for the same content."""
    return json.dumps({name: content}, sort_keys=True, separators=(",", ":")).encode()


@contextmanager
def unpack_state(name: str, state: bytes) -> Iterator[Any]:
    """Yield the content of `pack_state`; any error, up to the end of the block, is raised as a DataError."""
    try:
        yield json.loads(state)[name]
    except Exception as error:  # exceptions of the library have no common base
        raise DataError(
            Problem(
                code="tokenizer-state",
                path="tokenizer",
                message=f"invalid state of the tokenizer `{name}`: {type(error).__name__}: {error}",
                valid="a state of the same tokenizer; remove the file to train it again",
            )
        ) from error


def vocabulary_too_small(name: str, size: int, minimum: int, reason: str) -> SpecError:
    """Return the error of a vocabulary that cannot hold the reserved tokens."""
    return SpecError(
        Problem(
            code="vocabulary-too-small",
            path="dims.vocabulary",
            message=f"the tokenizer `{name}` needs more than {size:,} ids: {reason}",
            valid=f"{minimum:,} or more, or null for the default",
        )
    )
