"""What rows are, for attentions that never compare each with each: documents as vectors, and no mask of T x S.

Documents are unbroken runs of rows, but for the padding among them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paribus import PADDING, Context


def awake(documents: Tensor) -> Tensor:
    """(B|1, T) -> (B|1, T) bool: which rows hold something."""
    return documents >= 0


def filled(documents: Tensor) -> Tensor:
    """(B|1, T) -> (B|1, T): the document that each row is in or comes after; PADDING before the first."""
    rows = torch.arange(documents.shape[-1], device=documents.device)
    last = torch.where(awake(documents), rows, 0).cummax(-1).values
    return documents.gather(-1, last)


def running(ctx: Context) -> Tensor:
    """(B|1, 1): the document that the rows which the state holds ended in; PADDING where it holds none."""
    documents = ctx.keys.documents
    assert documents is not None, "asked only where rows say which document they are of"
    if ctx.past == 0:
        return torch.full_like(documents[:, :1], PADDING)
    return filled(documents[:, : ctx.past])[:, -1:]


def numbered(queries: Tensor | None, keys: Tensor) -> tuple[Tensor, Tensor]:
    """(B|1, T), (B|1, S) -> (B|1, T), (B|1, S): both sides' documents counted from 0 on, the same number for the same.

    Rows that say no document are of document 0.
    """
    asks = torch.zeros_like(keys[:, :1]) if queries is None else queries
    batch = max(asks.shape[0], keys.shape[0])
    both = torch.cat([asks.expand(batch, -1), keys.expand(batch, -1)], dim=-1)
    ascending, places = both.sort(dim=-1)
    new = functional.pad(ascending[:, 1:] != ascending[:, :-1], (1, 0))
    number = torch.empty_like(both).scatter(-1, places, new.cumsum(-1))
    return number[:, : asks.shape[-1]], number[:, asks.shape[-1] :]


def front(documents: Tensor) -> Tensor:
    """(B|1, T) -> (B|1, T): the rows that hold something, in order, and then those of padding."""
    return (~awake(documents)).to(torch.uint8).argsort(dim=-1, stable=True)
