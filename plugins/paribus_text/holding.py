"""Which documents are held out: decided by what they are, never by where they stand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping


def hold_out(sizes: Mapping[str, int], share: float) -> frozenset[str]:
    """The keys to hold out, about `share` of the sum of sizes: in the order of their hashes, each that still fits.

    At least one is held out and at least one is not, where there are two.
    """
    left = share * sum(sizes.values())
    held: set[str] = set()
    for key in sorted(sizes, key=hashed):
        if sizes[key] <= left:
            held.add(key)
            left -= sizes[key]
    if not held and len(sizes) > 1:
        held.add(min(sizes, key=lambda key: (sizes[key], hashed(key))))
    if len(held) == len(sizes) > 1:
        held.remove(max(held, key=lambda key: (sizes[key], hashed(key))))
    return frozenset(held)


def hashed(text: str) -> str:
    """sha256 in hexadecimal: Python's own hash differs from process to process."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest(parts: Iterable[str]) -> str:
    """sha256 of texts in order, each with its length, so that no two lists of texts share one."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()
