"""Numbers and order of documents, for attentions that compute no T x S mask."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paribus import is_content


def number_documents(queries: Tensor | None, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Number the documents of queries and keys from 0: (B|1, T), (B|1, S) -> (B|1, T), (B|1, S).

    The same document has the same number on both sides. Queries without documents belong to document 0.
    """
    q_documents = torch.zeros_like(keys[:, :1]) if queries is None else queries
    batch = max(q_documents.shape[0], keys.shape[0])
    both = torch.cat([q_documents.expand(batch, -1), keys.expand(batch, -1)], dim=-1)
    ascending, order = both.sort(dim=-1)
    is_new = functional.pad(ascending[:, 1:] != ascending[:, :-1], (1, 0))
    numbers = torch.empty_like(both).scatter(-1, order, is_new.cumsum(-1))
    return numbers[:, : q_documents.shape[-1]], numbers[:, q_documents.shape[-1] :]


def content_first(documents: Tensor) -> Tensor:
    """Return the order (B|1, T) that puts padding last and keeps the order of the other tokens."""
    return (~is_content(documents)).to(torch.uint8).argsort(dim=-1, stable=True)
