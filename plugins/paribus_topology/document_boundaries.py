"""Document boundaries and padding, for recurrent stacks.

A document is a contiguous run of tokens, apart from padding among them. N is the number of directions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paribus import PADDING
from paribus_topology.cells import Hidden


class DocumentBoundaries(NamedTuple):
    """Positions where a recurrent state restarts, and where padding leaves it unchanged."""

    starts: Tensor  # (N, B, T) bool: the first token of a document
    content: Tensor  # (N, B, T) bool: not padding
    any_start: list[bool]  # (T,): a document of the batch starts there
    any_padding: list[bool]  # (T,): an example of the batch has padding there

    def first(self, directions: int) -> DocumentBoundaries:
        """Return the boundaries of the first directions."""
        return self._replace(starts=self.starts[:directions], content=self.content[:directions])

    def state_before(self, t: int, state: Hidden, initial: Hidden) -> Hidden:
        """Return the state before token `t`."""
        return select_states(self.starts[..., t], initial, state) if self.any_start[t] else state

    def state_after(self, t: int, next_state: Hidden, state: Hidden) -> Hidden:
        """Return the state after token `t`, unchanged at padding."""
        return select_states(self.content[..., t], next_state, state) if self.any_padding[t] else next_state


def document_boundaries(documents: Tensor, previous_document: Tensor | None = None) -> DocumentBoundaries:
    """Find the boundaries of documents (N, B, T), after tokens that ended in `previous_document` (N, B, 1)."""
    is_content = documents >= 0
    if previous_document is None:
        previous_document = torch.full_like(documents[..., :1], PADDING)
    starts = is_content & (documents != fill_padding(torch.cat([previous_document, documents], dim=-1))[..., :-1])
    by_position = torch.stack([starts.flatten(0, -2).any(0), (~is_content).flatten(0, -2).any(0)])
    any_start, any_padding = by_position.tolist()  # of both at once: the CPU waits for the device here
    return DocumentBoundaries(starts, is_content, any_start, any_padding)


def fill_padding(documents: Tensor) -> Tensor:
    """Replace padding by the document before it: (…, T) -> (…, T), with PADDING before the first document."""
    index = torch.arange(documents.shape[-1], device=documents.device)
    last_content = torch.where(documents >= 0, index, 0).cummax(-1).values
    return documents.gather(-1, last_content)


def select_states(condition: Tensor, if_true: Hidden, if_false: Hidden) -> Hidden:
    """Select states by a condition (N, B), (N, B, K) each."""
    mask = condition.unsqueeze(-1)
    return tuple(torch.where(mask, yes, no) for yes, no in zip(if_true, if_false, strict=True))
