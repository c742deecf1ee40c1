"""Documents of tokens as vectors, for attentions that compute no T x S mask.

A document is a contiguous run of tokens, apart from padding among them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paribus.parts.batch import PADDING
from paribus.parts.context import Context


def is_content(documents: Tensor) -> Tensor:
    """Return a mask (B|1, T), True at tokens that are not padding."""
    return documents >= 0


def fill_padding(documents: Tensor) -> Tensor:
    """Replace padding by the document before it: (B|1, T) -> (B|1, T), with PADDING before the first document."""
    index = torch.arange(documents.shape[-1], device=documents.device)
    last_content = torch.where(is_content(documents), index, 0).cummax(-1).values
    return documents.gather(-1, last_content)


def previous_document(ctx: Context) -> Tensor:
    """Return the document (B|1, 1) of the last token in the decoding state, PADDING where the state is empty."""
    documents = ctx.key_layout.documents
    assert documents is not None, "called only for batches with documents"
    if ctx.past == 0:
        return torch.full_like(documents[:, :1], PADDING)
    return fill_padding(documents[:, : ctx.past])[:, -1:]
