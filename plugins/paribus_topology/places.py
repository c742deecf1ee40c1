"""Where documents begin, and which rows are padding: what a recurrence has to know of rows.

Documents are unbroken runs of rows, but for the padding among them. N is how many directions there are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paribus import PADDING
from paribus_topology.cells import Hidden


class Places(NamedTuple):
    """Where a state begins anew, and where it is held, as rows come one after the other."""

    new: Tensor  # (N, B, T) bool
    awake: Tensor  # (N, B, T) bool
    begins: list[bool]  # (T,) whether any sequence of the batch begins there
    holds: list[bool]  # (T,) whether any is padded there

    def entering(self, t: int, state: Hidden, first: Hidden) -> Hidden:
        """The state that row `t` is read from."""
        return chosen(self.new[..., t], first, state) if self.begins[t] else state

    def leaving(self, t: int, after: Hidden, before: Hidden) -> Hidden:
        """The state that row `t` leaves: padding leaves the one that it found."""
        return chosen(self.awake[..., t], after, before) if self.holds[t] else after


def places(documents: Tensor, before: Tensor | None = None) -> Places:
    """(N, B, T), and (N, B, 1) in which document the rows before them ended, if any came."""
    awake = documents >= 0
    if before is None:
        before = torch.full_like(documents[..., :1], PADDING)
    new = awake & (documents != filled(torch.cat([before, documents], dim=-1))[..., :-1])
    return Places(new, awake, new.flatten(0, -2).any(0).tolist(), (~awake).flatten(0, -2).any(0).tolist())


def filled(documents: Tensor) -> Tensor:
    """(…, T) -> (…, T): the document that each row is in or comes after; PADDING before the first."""
    rows = torch.arange(documents.shape[-1], device=documents.device)
    last = torch.where(documents >= 0, rows, 0).cummax(-1).values
    return documents.gather(-1, last)


def chosen(condition: Tensor, one: Hidden, other: Hidden) -> Hidden:
    """(N, B) bool; (N, B, K) each."""
    there = condition.unsqueeze(-1)
    return tuple(torch.where(there, yes, no) for yes, no in zip(one, other, strict=True))
