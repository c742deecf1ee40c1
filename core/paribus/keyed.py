"""Keys for everything that is drawn: one 32-bit number from names, the same on every machine and in every process.

A generator is never shared between two things that are drawn. Each gets its own, keyed by what it is (a seed and a
path, a seed and a step), so that swapping one component moves no other component's draws.
"""

from __future__ import annotations

import hashlib

Part = str | int


def key32(*parts: Part) -> int:
    """A 32-bit key of `parts`: torch's CPU generator keeps no more bits of a seed than these."""
    return int.from_bytes(_hash(parts)[:4], "little")


def key64(*parts: Part) -> int:
    """A 64-bit key of `parts`, for the counter-based draws of the data."""
    return int.from_bytes(_hash(parts)[:8], "little")


def _hash(parts: tuple[Part, ...]) -> bytes:
    # The type tag keeps 1 and "1" apart; the separator cannot occur in a tag.
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return hashlib.sha256(text.encode()).digest()
