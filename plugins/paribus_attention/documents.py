"""What rows are, for attentions that never compare each with each: documents as vectors, and no mask of T x S.

Documents are unbroken runs of rows, but for the padding among them.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
