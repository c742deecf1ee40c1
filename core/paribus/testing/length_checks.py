"""Checks at lengths beyond those of other checks: masks, positions and caches that fail for long sequences only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from paribus.errors import SpecError
from paribus.parts.batch import PADDING, Stream
from paribus.parts.context import Pair
from paribus.parts.shape import Shape
from paribus.slots.position import Position
from paribus.specs import resolved
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.small_model import (
    TOLERANCE,
    SmallModel,
    max_difference,
    noise,
    relative_change,
    replace_tokens,
    sampled_length,
    tokens,
)

MAX_LENGTH: Final = 128
LONG: Final = 520, 640  # minimum and maximum of the length that is sampled beyond the others
EXAMPLES: Final = 32  # examples of one batch


def long_sequences(case: Case, host: HostModel) -> Verdict:
    """Up to 640 tokens: no access to future tokens, other documents and padding; prefixes and decoding are equal.

    In one sequence of 520 to 640 tokens, prefixes, documents and decoding are equal as well, and far keys do not have
    the position of near ones.
    """
    model = case.small_model(host)
    if model.has_fixed_length:
        return DOES_NOT_APPLY
    length = min(MAX_LENGTH, model.topology.stage("body").shape.length)
    verdict = _length_fault(case, host, model, length)
    return _long_fault(case, host) if verdict == HOLDS else verdict


def _length_fault(case: Case, host: HostModel, model: SmallModel, length: int) -> Verdict:
    faults = []
    if case.all_attentions_declare(host, "documents"):
        faults.append(_documents_fault(model, [length // 2 + 5, length // 2 - 15, 10]))
    if model.body.causal:
        faults += [_future_fault(model, length), _prefix_fault(model, length, (49, 97))]
        if case.all_attentions_declare(host, "decodes"):
            faults.append(_decoding_fault(model, [length - length // 4, 1, length // 4 - 1]))
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


def _prefix_fault(model: SmallModel, length: int, parts: Sequence[int]) -> str:
    full_output = model.hidden(tokens(1, length))
    for part in {min(part, length) for part in parts}:
        difference = max_difference(model.hidden(tokens(1, part)), full_output[:, :part])
        if difference > TOLERANCE:
            return f"the output of {part} tokens changes by {difference:.2g} with {length - part} more tokens"
    return HOLDS


def _decoding_fault(model: SmallModel, chunks: Sequence[int]) -> str:
    token_ids = tokens(1, sum(chunks))
    difference = max_difference(model.decode_chunks(token_ids, chunks), model.hidden(token_ids))
    if difference > TOLERANCE:
        return f"{sum(chunks)} tokens decoded in chunks of {list(chunks)} differ by {difference:.2g} from one pass"
    return HOLDS


def _documents_fault(model: SmallModel, sizes: Sequence[int]) -> str:
    """Pack two documents and padding; each document must have the output that it has alone."""
    token_ids = tokens(1, sum(sizes))
    stream = Stream(
        token_ids,
        documents=torch.tensor([0] * sizes[0] + [1] * sizes[1] + [PADDING] * sizes[2]).unsqueeze(0),
        positions=torch.cat([torch.arange(size) for size in sizes]).unsqueeze(0),
    )
    packed = model.hidden(stream, source=tokens(1, 6, "source"))
    parts = [output.split(list(sizes), 1)[:2] for output in (packed, token_ids)]
    for part, document in zip(*parts, strict=True):
        difference = max_difference(part, model.hidden(document, source=tokens(1, 6, "source")))
        if difference > TOLERANCE:
            return (
                f"documents of {sizes[0]} and {sizes[1]} tokens, packed with padding into {sum(sizes)}, differ by "
                f"{difference:.2g} from separate ones"
            )
    return HOLDS


def _long_fault(case: Case, host: HostModel) -> str:
    """Return a fault of one sequence, of a length beyond those of all other checks."""
    length = sampled_length(*LONG)
    try:
        spec = resolved({**host.spec, "dims": {**host.spec["dims"], "length": length}}, registry=case.registry)
        model = SmallModel(spec, case.registry)
    except SpecError:  # another option limits the length
        return HOLDS
    if model.topology.stage("body").shape.length < length:
        return HOLDS
    faults = [_distance_fault(model, length)] if case.entry.slot == "position" else []
    if model.body.causal:
        faults.append(_prefix_fault(model, length, (97, 300)))
        if case.all_attentions_declare(host, "decodes"):
            faults.append(_decoding_fault(model, [300, 1, length - 301]))
    elif case.all_attentions_declare(host, "documents"):
        faults.append(_documents_fault(model, [97, length - 107, 10]))
    return next(filter(None, faults), HOLDS)


def _distance_fault(model: SmallModel, length: int) -> str:
    """Return a message if a far key has the score of a near one, and keys between them have others."""
    position, shape = _position(model), model.stack().shape
    limit = min(position.position_limit() or length, length)
    sides = {"before": range(limit - 1, -1, -1)} | ({} if model.body.causal else {"after": range(limit)})
    for side, keys in sides.items():  # the first key has the position of the query
        k_positions = torch.tensor([list(keys)])
        scores = _scores_of_equal_vectors(position, shape, k_positions[:, :1], k_positions)
        is_equal = (scores.unsqueeze(1) - scores).abs().amax(-1) <= TOLERANCE  # (near distance, far distance)
        others = (~is_equal).cumsum(1)
        returns = is_equal & (others > others.diagonal().unsqueeze(1)) & (torch.arange(limit) >= MAX_LENGTH)
        for near, far in returns.triu(1)[:MAX_LENGTH].nonzero()[:1].tolist():
            between = near + int((~is_equal[near, near:far]).nonzero()[0])
            return (
                f"a key {far} positions {side} the query has the score of an equal key {near} positions {side} it, but "
                f"one {between} positions {side} it has another. Usual cause: a distance that wraps around, such as in "
                "8 bits"
            )
    return HOLDS


def _position(model: SmallModel) -> Position:
    return next(module for module in model.topology.modules() if isinstance(module, Position))


def _scores_of_equal_vectors(position: Position, shape: Shape, query: Tensor, keys: Tensor) -> Tensor:
    """Return what a position makes of equal keys for one query, (S, N): scores of rotated vectors, and the bias."""
    scores = [torch.zeros(1, keys.shape[1], dtype=torch.float64)]
    if "rotate" in position.traits["hooks"]:
        q, k = (noise(side, 1, shape.heads, 1, shape.head_width) for side in ("q", "k"))
        k = k.expand(-1, -1, keys.shape[1], -1)
        rotated_q = position.rotate(q, position.tables(query, shape.head_width), "query")
        rotated_k = position.rotate(k, position.tables(keys, shape.head_width), "key")
        scores.append((rotated_q * rotated_k).sum(-1)[0])
    if position.traits["bias"] == "positions":
        pair = Pair(None, None, query, keys, 1.0, shape.heads, dtype=torch.float64)
        scores.append(position.bias(pair)[0, :, 0].double())
    return torch.cat(scores).T
