"""Batches of examples of about one length, where examples differ: less padding, and the same examples an epoch."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from paribus.keyed import key64

Ints = np.ndarray[tuple[int], np.dtype[Any]]

STEP: Final = 8  # lengths of batches are whole numbers of these: few shapes, and those that hardware likes


def bucketed(order: Ints, lengths: Ints, batch: int, window: int, *, seed: int, epoch: int) -> Ints:
    """The examples of an epoch, batch behind batch: sorted by length within each `window` of batches.

    Those that are left over by whole batches are the ones that `order` has last, as if none were sorted; the batches of
    a window come in an order of their own, keyed by seed and epoch, so that lengths do not grow and fall.
    """
    kept = order[: len(order) // batch * batch]
    found = []
    for number, start in enumerate(range(0, len(kept), batch * window)):
        part = kept[start : start + batch * window]
        part = part[np.argsort(lengths[part], kind="stable")].reshape(-1, batch)
        luck = np.random.Generator(np.random.Philox(key=key64(seed, epoch, "bucket", number)))
        found.append(part[luck.permutation(len(part))].reshape(-1))
    return np.concatenate(found) if found else kept


def needed(lengths: Ints, most: int) -> int:
    """How many rows a batch of examples of these lengths is padded to."""
    return min(most, -(-int(lengths.max()) // STEP) * STEP)
