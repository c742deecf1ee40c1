"""Checks of positions: declared hooks, range, distances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn

from paribus.errors import ParibusError
from paribus.parts.attend import Attend
from paribus.parts.context import Pair, PositionHooks
from paribus.parts.stack import Layer
from paribus.slots.position import Position
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.option_specs import option_models
from paribus.testing.small_model import TOLERANCE, SmallModel, max_difference, noise

HOOKS: Final = ("embed", "rotate", "bias", "mix")
FAR_POSITION: Final = 10_000
DISTINCT_POSITIONS: Final = 512
VALUES: Final = 2  # other values of a number: the nearest
STARTS: Final = (0, 7, 90, 123, 500, 4000)  # of pairs of positions


def position_hooks(case: Case, host: HostModel) -> Verdict:
    """The trait `hooks` of a position names exactly the hooks that its class implements."""
    declared = set(case.entry.traits.get("hooks", []))
    for hook in HOOKS:
        implemented = getattr(case.component, hook) is not getattr(Position, hook)
        if implemented and hook not in declared:
            return (
                f"it implements `{hook}`, but its trait `hooks` does not contain `{hook}`, so the hook is never called"
            )
        if hook in declared and not implemented:
            return f"its trait `hooks` contains `{hook}`, but it does not implement `{hook}`"
    if ("bias" in declared) != (case.entry.traits.get("bias", "none") != "none"):
        return (
            f"its trait `bias` is {case.entry.traits.get('bias')!r}, but its trait `hooks` is {sorted(declared)}; "
            "expected a `bias` other than 'none' if, and only if, `hooks` contains 'bias'"
        )
    return HOLDS


def distance_bias(case: Case, host: HostModel) -> Verdict:
    """A bias declared as `distance_bias` depends only on the distance between two positions, with all options."""
    if not case.entry.traits.get("distance_bias"):
        return DOES_NOT_APPLY
    positions = torch.tensor([[0, 3, 4, 9, 70, 120]])
    for description, model in _models(case, host):
        position = _position(model.topology)
        bias, shifted_bias = (
            position.bias(Pair(None, None, indices, indices, 1.0, 4, dtype=torch.float64))
            for indices in (positions, positions + 31)
        )
        difference = max_difference(bias, shifted_bias)
        if difference > TOLERANCE:
            return (
                f"its bias{description} changes by {difference:.2g} when all positions are shifted by 31; expected no "
                "change, as its trait `distance_bias` is True"
            )
    return HOLDS


def _models(case: Case, host: HostModel) -> Iterator[tuple[str, SmallModel]]:
    """Yield the model, then with other options of the position, in the first model only."""
    is_first = host == case.host_models[0]
    for description, model in option_models(case, host, VALUES) if is_first else [("", host)]:
        yield description, case.small_model(model)


def position_range(case: Case, host: HostModel) -> Verdict:
    """A position is finite and distinct up to its `position_limit`, and finite at negative positions of padding.

    Beyond the limit it is clamped or raises a `DataError`. The same holds for other values of the options.
    """
    for description, model in _models(case, host):
        fault = _range_fault(model)
        if fault:
            return fault + description
    return HOLDS


def _range_fault(model: SmallModel) -> str:
    position = _position(model.topology)
    limit = position.position_limit()
    width = model.stack().shape.head_width
    x = noise("rows", 1, 1, model.stack().shape.width)
    for index in (-3, 0, (limit if limit is not None else FAR_POSITION) - 1):
        positions = torch.tensor([[index]])
        rotated = position.rotate(noise("heads", 1, 4, 1, width), position.tables(positions, width), "query")
        if not (torch.isfinite(position.embed(x, positions)).all() and torch.isfinite(rotated).all()):
            return f"its output at position {index} is not finite; declared limit: {limit or 'none'}"
    if limit is not None and "embed" in position.traits["hooks"]:
        with suppress(ParibusError):  # or a clamp; another error does not name the limit
            position.embed(x, torch.tensor([[limit]]))
    return _equal_positions_fault(
        position, min(limit if limit is not None else DISTINCT_POSITIONS, DISTINCT_POSITIONS), x
    )


def _equal_positions_fault(position: Position, limit: int, x: Tensor) -> str:
    """Return a message if two positions below the limit have the same embedding."""
    if "embed" not in position.traits["hooks"]:
        return HOLDS
    placed = position.embed(x.expand(1, limit, -1), torch.arange(limit).unsqueeze(0))[0]
    equal = (placed.unsqueeze(0) == placed.unsqueeze(1)).all(-1).triu(1).nonzero()
    if len(equal):
        first, second = equal[0].tolist()
        return f"positions {first} and {second} have the same embedding; expected different ones up to the limit"
    return HOLDS


def relative_rotation(case: Case, host: HostModel) -> Verdict:
    """Scores of rotated queries and keys depend only on their distance, with all options."""
    if "rotate" not in case.entry.traits.get("hooks", []):
        return DOES_NOT_APPLY
    for description, model in _models(case, host):
        position, width = _position(model.topology), model.stack().shape.head_width
        limit = position.position_limit() or FAR_POSITION
        positions = torch.tensor([[index for start in STARTS if start + 5 < limit for index in (start, start + 5)]])
        tables = position.tables(positions, width)
        vectors = [noise(side, 1, 4, 1, width).expand(-1, -1, positions.shape[-1], -1) for side in ("query", "key")]
        q, k = position.rotate(vectors[0], tables, "query"), position.rotate(vectors[1], tables, "key")
        scores = (q[:, :, 1::2] * k[:, :, ::2]).sum(-1)  # (1, H, N): one score for each pair
        difference = max_difference(scores, scores[..., :1].expand_as(scores))
        if difference > TOLERANCE:
            return (
                f"scores of equal vectors at distance 5 differ by {difference:.2g} between positions{description}; "
                "expected equal scores. Usual cause: queries and keys are rotated differently"
            )
    return HOLDS


def far_positions(case: Case, host: HostModel) -> Verdict:
    """Scores of a key next to the query and of one 127 positions before it differ, if the position changes scores."""
    hooks = case.entry.traits.get("hooks", [])
    model = case.small_model(host)
    position = _position(model.topology)
    far = min(position.position_limit() or DISTINCT_POSITIONS, 128) - 1
    positions = torch.tensor([[0, far - 1, far]])
    scores: list[Tensor] = []  # (…, 3) each: of the last query
    if "rotate" in hooks:
        tables = position.tables(positions, model.stack().shape.head_width)
        q, k = (noise(side, 1, 4, 1, model.stack().shape.head_width).expand(-1, -1, 3, -1) for side in ("q", "k"))
        rotated_q, rotated_k = position.rotate(q, tables, "query"), position.rotate(k, tables, "key")
        scores.append((rotated_q[:, :, -1:] * rotated_k).sum(-1))
    if "bias" in hooks:
        pair = position_pair(model, positions, positions, equal=True)
        if pair is None:
            return DOES_NOT_APPLY
        scores.append(position.bias(pair[1])[..., -1, :])
    if not scores:
        return DOES_NOT_APPLY
    if all(max_difference(score[..., :1], score[..., 1:2]) <= TOLERANCE for score in scores):
        return (
            f"equal keys 1 and {far} positions before the query have the same score. Usual cause: a distance with the "
            "wrong sign, or one that is clamped"
        )
    return HOLDS


def position_pair(
    model: SmallModel, q_positions: Tensor, k_positions: Tensor, *, equal: bool = False
) -> tuple[PositionHooks, Pair] | None:
    """Return the position of the first layer and a pair for it; None if the attention has no projections for the bias.

    With `equal`, all queries are equal, and all keys.
    """
    layer, shape = model.stack().layers[0], model.stack().shape
    assert isinstance(layer, Layer)
    heads: Any = getattr(layer.attention, "heads", None)
    attend = next((module for module in layer.attention.modules() if isinstance(module, Attend)), None)
    if attend is None or heads is None:
        return None
    q, k = (
        noise(side, 1, shape.heads, 1 if equal else positions.shape[-1], shape.head_width).expand(
            -1, -1, positions.shape[-1], -1
        )
        for side, positions in (("q", q_positions), ("k", k_positions))
    )
    part = attend._part[0] if attend._part else None
    scale, dtype = 1.0, torch.float64
    return attend.position, Pair(q, k, q_positions, k_positions, scale, shape.heads, heads.project, dtype, part)


def _position(topology: nn.Module) -> Position:
    return next(module for module in topology.modules() if isinstance(module, Position))
