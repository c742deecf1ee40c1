"""Checks at lengths beyond those of other checks: masks, positions and caches that fail for long sequences only."""

from __future__ import annotations

from typing import Final

import torch

from paribus.parts.batch import PADDING, Stream
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.small_model import (
    TOLERANCE,
    SmallModel,
    max_difference,
    relative_change,
    replace_tokens,
    tokens,
)

MAX_LENGTH: Final = 128
EXAMPLES: Final = 32  # examples of one batch


def long_sequences(case: Case, host: HostModel) -> Verdict:
    """Up to 128 tokens: no access to future tokens, other documents and padding; prefixes and decoding are equal."""
    model = case.small_model(host)
    if model.has_fixed_length:
        return DOES_NOT_APPLY
    length = min(MAX_LENGTH, model.topology.stage("body").shape.length)
    faults = [_documents_fault(model, length)] if case.all_attentions_declare(host, "documents") else []
    if model.body.causal:
        faults += [_future_fault(model, length), _prefix_fault(model, length)]
        if case.all_attentions_declare(host, "decodes"):
            faults.append(_decoding_fault(model, length))
    return next(filter(None, faults), HOLDS) if faults else DOES_NOT_APPLY


def _future_fault(model: SmallModel, length: int) -> str:
    """Replace all tokens after each position; no output up to this position may change."""
    token_ids = tokens(1, length)
    expected = model.hidden(token_ids)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)  # (position, token)
    for start in range(0, length - 1, EXAMPLES):
        after = future[start : start + EXAMPLES]
        changed = torch.where(after, replace_tokens(token_ids), token_ids)
        source = tokens(1, 6, "source").expand(len(changed), -1)
        changes = relative_change(model.hidden(changed, source=source), expected).masked_fill(after, 0)
        if not float(changes.max()) <= TOLERANCE:
            row, position = (~(changes <= TOLERANCE)).nonzero()[0].tolist()
            return (
                f"in a sequence of {length} tokens, changing the tokens after {start + row} changes the output at "
                f"position {position} by {changes[row, position]:.2g}; expected no change"
            )
    return HOLDS


def _prefix_fault(model: SmallModel, length: int) -> str:
    full_output = model.hidden(tokens(1, length))
    for part in {min(49, length), min(97, length)}:
        difference = max_difference(model.hidden(tokens(1, part)), full_output[:, :part])
        if difference > TOLERANCE:
            return f"the output of {part} tokens changes by {difference:.2g} with {length - part} more tokens"
    return HOLDS


def _decoding_fault(model: SmallModel, length: int) -> str:
    chunks = [length - length // 4, 1, length // 4 - 1]
    token_ids = tokens(1, length)
    difference = max_difference(model.decode_chunks(token_ids, chunks), model.hidden(token_ids))
    if difference > TOLERANCE:
        return f"{length} tokens decoded in chunks of {chunks} differ by {difference:.2g} from one pass"
    return HOLDS


def _documents_fault(model: SmallModel, length: int) -> str:
    """Pack two documents and padding; each document must have the output that it has alone."""
    sizes = [length // 2 + 5, length // 2 - 15, 10]
    token_ids = tokens(1, length)
    stream = Stream(
        token_ids,
        documents=torch.tensor([0] * sizes[0] + [1] * sizes[1] + [PADDING] * sizes[2]).unsqueeze(0),
        positions=torch.cat([torch.arange(size) for size in sizes]).unsqueeze(0),
    )
    packed = model.hidden(stream, source=tokens(1, 6, "source"))
    for part, document in zip(packed.split(sizes, 1)[:2], token_ids.split(sizes, 1)[:2], strict=True):
        difference = max_difference(part, model.hidden(document, source=tokens(1, 6, "source")))
        if difference > TOLERANCE:
            return (
                f"documents of {sizes[0]} and {sizes[1]} tokens, packed with padding into {length}, differ by "
                f"{difference:.2g} from separate ones"
            )
    return HOLDS
