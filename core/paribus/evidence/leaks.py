"""Leaks: outputs of a model that depend on future tokens, padding, other documents or other examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import torch
from torch import Tensor

from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch, Stream
from paribus.slots.attention import Attention
from paribus.slots.topology import Part, memory_of

FUTURE: Final = "reads future tokens"
DOCUMENTS: Final = "reads other documents"
PADDED: Final = "reads padding"
EXAMPLES: Final = "reads other examples"
STATE: Final = "keeps state between passes"

CUTS: Final = 4  # positions after which tokens are replaced
BATCH: Final = 3  # examples of a batch that is compared with one of them alone

Context = Callable[[], AbstractContextManager[Any]]
"""The precision of training steps."""
Hidden = Mapping[str, Tensor]
"""Hidden states of the parts of a model, (B, T, D), by path."""


@final
@dataclass(frozen=True)
class ModelPass:
    """Forward passes of a model in one precision, and when two of their results differ."""

    model: Model
    context: Context
    tolerance: float  # relative to the norm of the hidden state of a token
    is_half: bool = False

    def hidden(self, batch: Batch) -> Hidden:
        """Return the hidden states of all parts that a batch has streams for."""
        with torch.no_grad(), self.context():
            run = self.model.run(batch, ())
            paths = [part.path for part in self.model.topology.parts if part.path in batch.streams]
            return {path: run.output(path).hidden for path in paths}

    def differs(self, one: Hidden, other: Hidden, batch: Batch) -> bool:
        """Return whether the outputs for the same example differ by more than rounding.

        In half precision, the median of its tokens counts: rounding may send single tokens to another expert.
        """
        for path, content in content_tokens(batch).items():
            changes = self.changes(one[path], other[path])
            if content.shape == changes.shape:
                changes = changes[content]
            if float(changes.median() if self.is_half else changes.max()) > self.tolerance:
                return True
        return False

    def changes(self, one: Tensor, other: Tensor) -> Tensor:
        """Return the relative difference of each hidden state: (B, T, D), (B, T, D) -> (B, T)."""
        one, other = one.double(), other.double()
        floor = one.norm(dim=-1).mean() + torch.finfo(torch.float32).tiny
        relative: Tensor = (one - other).norm(dim=-1) / torch.maximum(one.norm(dim=-1), floor)
        return relative


def leak_faults(forward: ModelPass, batch: Batch) -> Iterator[tuple[str, str]]:
    """Yield each kind of token that an output must not depend on and does, with an example.

    The outputs of a model that keeps state, or that reads other examples, are tested no further.
    """
    row = fullest_row(batch)
    example = batch.rows([row])
    others = [other for other in range(len(batch.index)) if other != row][: BATCH - 1]
    alone = forward.hidden(example)
    together = {path: hidden[:1] for path, hidden in forward.hidden(batch.rows([row, *others])).items()}
    if forward.differs(alone, forward.hidden(example), example):
        yield STATE, "the output for the same example changes after another batch"
        return
    if forward.differs(alone, together, example):
        yield EXAMPLES, f"an output changes with {len(others)} other examples in its batch"
        return
    for part in forward.model.topology.parts:
        is_causal = part.causal and part.path in batch.streams
        if is_causal and (
            fault := _future_fault(forward, batch, part.path, row) or _length_fault(forward, example, part)
        ):
            yield FUTURE, fault
            break
    yield from _document_faults(forward, batch)


def _future_fault(forward: ModelPass, batch: Batch, path: str, row: int) -> str:
    """Return a message if tokens that a position must not see change its output."""
    stream = batch.streams[path]
    tokens = stream.tokens[row]
    order = torch.arange(len(tokens), device=tokens.device) if stream.order is None else stream.order[row]
    orders = order.unique()
    if len(orders) < 2 or (pool := token_pool(stream)) is None:
        return ""
    chosen = {0, len(orders) - 2, *torch.randint(len(orders) - 1, (CUTS - 2,)).tolist()}
    cuts = orders[sorted(chosen)]
    replaced = replaced_tokens(tokens, pool)
    rows = torch.stack([tokens, *(torch.where(order > cut, replaced, tokens) for cut in cuts)])
    hidden = forward.hidden(_with_tokens(batch.rows([row] * len(rows)), {path: rows}))[path]
    content = content_tokens(batch.rows([row]))[path][0]
    for number, cut in enumerate(cuts, 1):
        kept = (order <= cut) & content
        changes = forward.changes(hidden[:1, : len(tokens)], hidden[number : number + 1, : len(tokens)])[0]
        changes = torch.where(kept, changes, 0.0)
        if float(changes.max()) > forward.tolerance:
            position = int(changes.argmax())
            first = int((order > cut).nonzero()[0])
            return (
                f"the output at position {position} changes when the tokens from position {first} on change{_in(path)}"
            )
    return ""


def _length_fault(forward: ModelPass, example: Batch, part: Part) -> str:
    """Return a message if the output of a token changes when the text ends after it."""
    stream, model = example.streams[part.path], forward.model
    length = stream.tokens.shape[1]
    if stream.order is not None or stream.query_positions is not None or length < 2 or has_fixed_length(model):
        return ""
    end = int(torch.randint(1, length, ()))
    shortened = example._replace(streams={**example.streams, part.path: stream.span(0, end)})
    whole, alone = forward.hidden(example)[part.path], forward.hidden(shortened)[part.path]
    changes = torch.where(content_tokens(shortened)[part.path], forward.changes(whole[:, :end], alone), 0.0)
    changed = float(changes.max()) if not forward.is_half else float(changes.median())
    if changed > forward.tolerance:
        position = int(changes.argmax())
        return f"the output at position {position} changes when the text ends at position {end}{_in(part.path)}"
    return ""


def decoding_fault(forward: ModelPass, example: Batch) -> str:
    """Return a message if tokens that are decoded in chunks, with a cache, have other outputs than in one pass."""
    topology, stream = forward.model.topology, example.streams.get("body")
    body = next(part for part in topology.parts if part.path == "body")
    attentions = [module for module in topology.stage("body").modules() if isinstance(module, Attention)]
    if stream is None or not body.causal or stream.order is not None or has_fixed_length(forward.model):
        return ""
    if stream.query_positions is not None or not all(module.traits.get("decodes") for module in attentions):
        return ""
    try:
        decoded = _decoded(forward, example, body)
    except Exception as error:  # of any component
        return f"decoding raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    whole = forward.hidden(example)["body"]
    changes = torch.where(content_tokens(example)["body"], forward.changes(whole, decoded), 0.0)
    if float(changes.max()) > forward.tolerance:
        return (
            f"decoded in chunks, with a cache, the output at position {int(changes.argmax())} is not that of one pass"
        )
    return ""


def _decoded(forward: ModelPass, example: Batch, body: Part) -> Tensor:
    """Return the hidden states of the body, decoded in chunks of drawn sizes."""
    topology, stream = forward.model.topology, example.streams["body"]
    length = stream.tokens.shape[1]
    ends = sorted({0, length, max(1, length - 1), *torch.randint(1, max(2, length), (CUTS,)).tolist()})
    with torch.no_grad(), forward.context():
        memory = None if body.cross is None else memory_of(topology.run(example.streams, body.cross))
        states = topology.start(len(stream.tokens), length)
        chunks = ({"body": stream.span(start, stop)} for start, stop in pairwise(ends))
        return torch.cat([topology.run(chunk, "body", memory=memory, states=states).hidden for chunk in chunks], dim=1)


def has_fixed_length(model: Model) -> bool:
    """Return whether inputs have a fixed size, as images do."""
    return model.topology.embedding.values_per_example is not None


def _document_faults(forward: ModelPass, batch: Batch) -> Iterator[tuple[str, str]]:
    """Yield a message if tokens of other documents, or padding, change the output of the first or last document."""
    streams = {path: stream for path, stream in batch.streams.items() if stream.documents is not None}
    for name, what in ((PADDED, "padding"), (DOCUMENTS, "other documents")):
        if any(_document_changes(forward, batch, streams, name, is_last=is_last) for is_last in (False, True)):
            yield name, f"the output of a document changes when tokens of {what} change"


def _document_changes(
    forward: ModelPass, batch: Batch, streams: Mapping[str, Stream], name: str, *, is_last: bool
) -> bool:
    """Return whether padding or other documents, by `name`, change the output of a row's first or last document."""
    own = {path: _document(stream, is_last=is_last) for path, stream in streams.items()}
    contents = content_tokens(batch)
    others = {path: ~contents[path] if name == PADDED else contents[path] & ~own[path] for path in streams}
    if not streams or not any(bool(other.any()) for other in others.values()):
        return False
    row = int(torch.stack([other.sum(1) for other in others.values()]).sum(0).argmax())
    tokens: dict[str, Tensor] = {}
    for path, stream in streams.items():
        if (pool := token_pool(stream)) is not None:
            original = stream.tokens[row]
            tokens[path] = torch.stack(
                [original, torch.where(others[path][row], replaced_tokens(original, pool), original)]
            )
    hidden = forward.hidden(_with_tokens(batch.rows([row, row]), tokens))
    for path in streams:
        kept = own[path][row]
        changes = forward.changes(hidden[path][:1, : len(kept)], hidden[path][1:, : len(kept)])[0]
        if float(torch.where(kept, changes, 0.0).max()) > forward.tolerance:
            return True
    return False


def _with_tokens(batch: Batch, tokens: Mapping[str, Tensor]) -> Batch:
    """Return a batch with other tokens in some streams."""
    replaced = {path: batch.streams[path]._replace(tokens=rows) for path, rows in tokens.items()}
    return batch._replace(streams={**batch.streams, **replaced})


def content_tokens(batch: Batch) -> dict[str, Tensor]:
    """Return which tokens are no padding, (B, T), by the path of the stream."""
    return {
        path: torch.ones_like(stream.tokens, dtype=torch.bool) if stream.documents is None else stream.documents >= 0
        for path, stream in batch.streams.items()
    }


def fullest_row(batch: Batch) -> int:
    """Return the row with the least padding."""
    return int(torch.stack([content.sum(1) for content in content_tokens(batch).values()]).sum(0).argmax())


def _document(stream: Stream, *, is_last: bool) -> Tensor:
    """Return which tokens belong to the first or last document of each row."""
    assert stream.documents is not None
    documents = stream.documents
    is_content = (documents >= 0).int()
    index = documents.shape[1] - 1 - is_content.flip(1).argmax(1) if is_last else is_content.argmax(1)
    return (documents == documents.gather(1, index.unsqueeze(1))) & (documents >= 0)


def token_pool(stream: Stream) -> Tensor | None:
    """Return the distinct tokens of the text of a stream, or None if there are fewer than two."""
    is_text = torch.ones_like(stream.tokens, dtype=torch.bool)
    if stream.documents is not None:
        is_text &= stream.documents >= 0
    if stream.special is not None:
        is_text &= ~stream.special
    pool = stream.tokens[is_text].unique()
    return pool if len(pool) > 1 else None


def replaced_tokens(tokens: Tensor, pool: Tensor) -> Tensor:
    """Return another token of the pool for each token."""
    index = torch.searchsorted(pool, tokens.contiguous()).clamp(max=len(pool) - 1)
    shift = torch.randint(1, len(pool), tokens.shape, device=tokens.device)
    return pool[(index + shift) % len(pool)]


def _in(path: str) -> str:
    return "" if path == "body" else f" in `{path}`"
