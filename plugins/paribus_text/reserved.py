"""The ids that no text ever gets: specials, then sentinels, in one order for every tokenizer here."""

from __future__ import annotations

from collections.abc import Sequence

from paribus import DataError, Problem, Vocabulary

SPECIALS = ("pad", "cls", "sep", "mask", "bos", "eos")


def reserved(first: int, sentinels: int, *, before: Sequence[str] = ()) -> Vocabulary:
    """Specials (those of `before`, then ours) and sentinels, numbered on from `first`; `size` is the next free id."""
    names = (*before, *SPECIALS)
    specials = {name: first + place for place, name in enumerate(names)}
    start = first + len(names)
    return Vocabulary(start + sentinels, specials, tuple(range(start, start + sentinels)))


def names(vocabulary: Vocabulary) -> dict[int, str]:
    """How `decode` shows each reserved id: `<mask>`, `<sentinel 3>`."""
    shown = {token: f"<{name}>" for name, token in vocabulary.specials.items()}
    return shown | {token: f"<sentinel {place}>" for place, token in enumerate(vocabulary.sentinels)}


def too_small(name: str, size: int, least: int, why: str) -> DataError:
    """A vocabulary that cannot hold what every text needs."""
    return DataError(
        Problem(
            code="vocabulary-too-small",
            path="dims.vocabulary",
            what=f"the tokenizer `{name}` cannot do with {size:,} ids: {why}",
            valid=f"{least:,} or more, or null for as many as it wants",
        )
    )


def unreadable(name: str, why: str) -> DataError:
    """A tokenizer's state that is not what `state` wrote."""
    return DataError(
        Problem(
            code="tokenizer-state",
            path="tokenizer",
            what=f"what was stored is no state of the tokenizer `{name}`: {why}",
            valid="a state that the same tokenizer wrote; remove the stored one to train it anew",
        )
    )
