"""Checks of a module outside a model: declared hooks, positions, norms, feed-forwards and placements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from paribus.parts.context import Pair
from paribus.parts.stack import Layer
from paribus.slots.norm import Norm
from paribus.slots.placement import Sublayer
from paribus.slots.position import Position
from paribus.testing.host_models import Case, HostModel
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.small_model import TOLERANCE, max_difference, noise

HOOKS: Final = ("embed", "rotate", "bias", "mix")
FAR: Final = 10_000
NEAR: Final = 128


def position_hooks(case: Case, cell: HostModel) -> Verdict:
    """The hooks that a position declares are those that it overrides; others are never called."""
    declared = set(case.entry.traits.get("hooks", []))
    for moment in HOOKS:
        has = getattr(case.component, moment) is not getattr(Position, moment)
        if has and moment not in declared:
            return f"it overrides `{moment}`, but its trait `hooks` does not contain it, so it is never called"
        if moment in declared and not has:
            return f"its trait `hooks` has `{moment}`, but it does not override it"
    if ("bias" in declared) != (case.entry.traits.get("bias", "none") != "none"):
        return f"its trait `bias` is {case.entry.traits.get('bias')!r}, but `hooks` is {sorted(declared)}"
    return HOLDS


def distance_bias(case: Case, cell: HostModel) -> Verdict:
    """A bias declared as `distance_bias` depends only on the distance between two positions."""
    if not case.entry.traits.get("distance_bias"):
        return DOES_NOT_APPLY
    position = _position(case.small_model(cell).topology)
    positions = torch.tensor([[0, 3, 4, 9]])
    bias, shifted_bias = (
        position.bias(Pair(None, None, indices, indices, 1.0, 4, dtype=torch.float64))
        for indices in (positions, positions + 31)
    )
    difference = max_difference(bias, shifted_bias)
    return (
        f"shifted by 31 positions, its bias differs by {difference:.2g}; expected: a function of distance only"
        if difference > TOLERANCE
        else HOLDS
    )


def position_range(case: Case, cell: HostModel) -> Verdict:
    """A position is finite up to its declared limit, and at negative positions, where padding may be."""
    model = case.small_model(cell)
    position = _position(model.topology)
    reach = position.position_limit()
    width = model.stack().shape.head_width
    x = noise("rows", 1, 1, model.stack().shape.width)
    for index in (-3, 0, (reach if reach is not None else FAR) - 1):
        positions = torch.tensor([[index]])
        rotated = position.rotate(noise("heads", 1, 4, 1, width), position.tables(positions, width), "query")
        if not (torch.isfinite(position.embed(x, positions)).all() and torch.isfinite(rotated).all()):
            return f"at position {index} it is not finite; declared limit: {reach or 'any'}"
    return _neighbours(position, min(reach if reach is not None else NEAR, NEAR), x)


def _neighbours(position: Position, limit: int, x: Tensor) -> str:
    """Return a message if two adjacent positions below the declared limit get the same embedding."""
    if "embed" not in position.traits["hooks"]:
        return HOLDS
    placed = position.embed(x.expand(1, limit, -1), torch.arange(limit).unsqueeze(0))
    equal_neighbours = (placed[:, 1:] == placed[:, :-1]).all(-1).nonzero()
    if len(equal_neighbours):
        index = int(equal_neighbours[0, 1])
        return f"positions {index} and {index + 1} have the same embedding; declared limit: {limit}"
    return HOLDS


def relative_rotation(case: Case, cell: HostModel) -> Verdict:
    """Scores under a rotation depend only on the distance between query and key."""
    if "rotate" not in case.entry.traits.get("hooks", []):
        return DOES_NOT_APPLY
    model = case.small_model(cell)
    position, width = _position(model.topology), model.stack().shape.head_width
    positions = torch.tensor([[0, 5, 7, 12, 90, 95]])  # three pairs, 5 apart
    tables = position.tables(positions, width)
    vectors = [noise(side, 1, 4, 1, width).expand(-1, -1, positions.shape[-1], -1) for side in ("query", "key")]
    q, k = position.rotate(vectors[0], tables, "query"), position.rotate(vectors[1], tables, "key")
    scores = (q[:, :, 1::2] * k[:, :, ::2]).sum(-1)  # (1, H, 3): score of the later against the earlier of each pair
    difference = max_difference(scores, scores[..., :1].expand_as(scores))
    if difference > TOLERANCE:
        return f"the score at distance 5 differs by {difference:.2g} at positions {positions[0, -2:].tolist()}"
    return HOLDS


def _position(topology: nn.Module) -> Position:
    return next(module for module in topology.modules() if isinstance(module, Position))


def norm_per_token(case: Case, cell: HostModel) -> Verdict:
    """A norm keeps shape and dtype, and normalizes each token independently."""
    model = case.small_model(cell)
    norms = [module for module in model.topology.modules() if isinstance(module, Norm)]
    for norm in norms[:1]:
        x = noise("rows", 2, 5, model.stack().shape.width)
        return _per_token_fault(norm, x, norm(x))
    return "the model contains no norm"


def feedforward_per_token(case: Case, cell: HostModel) -> Verdict:
    """A feed-forward keeps the shape, transforms each token independently, and has a scalar auxiliary loss."""
    model = case.small_model(cell)
    layer = model.stack().layers[0]
    assert isinstance(layer, Layer)
    x = noise("rows", 2, 5, model.stack().shape.width)
    feedforward = layer.feedforward
    assert feedforward is not None, "it was put there"
    y, auxiliary = feedforward(x)
    if auxiliary is not None and auxiliary.ndim:
        return f"its auxiliary loss has the shape {tuple(auxiliary.shape)}; expected: a scalar"
    return _per_token_fault(lambda rows: feedforward(rows)[0], x, y)


def _per_token_fault(function: Any, x: Tensor, y: Tensor) -> str:
    if y.shape != x.shape or y.dtype != x.dtype:
        return f"{tuple(x.shape)} of {x.dtype} becomes {tuple(y.shape)} of {y.dtype}; expected: the same"
    for index in range(x.shape[1]):
        difference = max_difference(function(x[:, index : index + 1]), y[:, index : index + 1])
        if difference > TOLERANCE:
            return f"row {index} of {x.shape[1]} differs by {difference:.2g} from the same row alone"
    return HOLDS


def placement_wiring(case: Case, cell: HostModel) -> Verdict:
    """A placement runs each sublayer once, uses its output, and keeps the shape."""
    model = case.small_model(cell)
    layer = model.stack().layers[0]
    assert isinstance(layer, Layer)
    placement = layer.placement
    assert placement is not None, "it was put there"
    names = model.stack().shape.sublayers
    x = noise("rows", 2, 3, model.stack().shape.width)
    called: list[str] = []
    y = placement(x, _sublayers(names, called, ""))
    if sorted(called) != sorted(names):
        return f"of the sublayers {', '.join(names)} it runs {', '.join(called) or 'none'}; expected: each once"
    if y.shape != x.shape:
        return f"{tuple(x.shape)} becomes {tuple(y.shape)}; expected: the same"
    for name in names:
        if torch.equal(placement(x, _sublayers(names, [], name)), y):
            return f"the output of the sublayer `{name}` does not change the result"
    return HOLDS


def _sublayers(names: tuple[str, ...], called: list[str], doubled: str) -> Mapping[str, Sublayer]:
    def sublayer(name: str) -> Sublayer:
        def run(h: Tensor) -> Tensor:
            called.append(name)
            fixed = noise(name, *h.shape[1:])
            return fixed.tanh() * h.sin() * (2 if name == doubled else 1) + fixed * (2 if name == doubled else 1)

        return run

    return {name: sublayer(name) for name in names}
