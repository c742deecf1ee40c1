"""Keys of random draws: one integer from names, the same on every machine and in every process.

Two draws never share a generator. Each draw has its own key, made of its names (a seed and a path, a seed and a step),
so that swapping one component changes no other component's draws.
"""

from __future__ import annotations

import hashlib

Part = str | int


def key32(*parts: Part) -> int:
    """Return a 32-bit key of `parts`: torch's CPU generator uses only 32 bits of a seed."""
    return int.from_bytes(_hash(parts)[:4], "little")


def key64(*parts: Part) -> int:
    """Return a 64-bit key of `parts`, for the counter-based draws of the data."""
    return int.from_bytes(_hash(parts)[:8], "little")


def _hash(parts: tuple[Part, ...]) -> bytes:
    # The type tag keeps 1 and "1" apart; the separator cannot occur in a tag.
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return hashlib.sha256(text.encode()).digest()
