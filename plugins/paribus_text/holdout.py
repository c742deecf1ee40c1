"""Choice of the held-out documents by hashes of their content, independent of their order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping


def hold_out(sizes: Mapping[str, int], share: float) -> frozenset[str]:
    """Return the keys to hold out, about `share` of the sum of sizes: in the order of their hashes, each that fits.

    Of two or more keys, at least one is held out and at least one is not.
    """
    remaining = share * sum(sizes.values())
    held_out: set[str] = set()
    for key in sorted(sizes, key=text_hash):
        if sizes[key] <= remaining:
            held_out.add(key)
            remaining -= sizes[key]
    if not held_out and len(sizes) > 1:
        held_out.add(min(sizes, key=lambda key: (sizes[key], text_hash(key))))
    if len(held_out) == len(sizes) > 1:
        held_out.remove(max(held_out, key=lambda key: (sizes[key], text_hash(key))))
    return frozenset(held_out)


def text_hash(text: str) -> str:
    """Return the sha256 in hexadecimal: Python's own hash differs between processes."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def digest(parts: Iterable[str]) -> str:
    """Return the sha256 of texts in order, each with its length, so that no two lists of texts share one."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()
