"""What a component does by itself: what it declares is what it overrides, and each row is its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from paribus.parts.context import Pair
from paribus.parts.layer import Layer
from paribus.slots.norm import Norm
from paribus.slots.placement import Sublayer
from paribus.slots.position import Position
from paribus.testing.host_models import Case, Cell
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.small_model import TOLERANCE, differ, noise

MOMENTS: Final = ("embed", "rotate", "bias", "mix")
FAR: Final = 10_000
NEAR: Final = 128


def moments(case: Case, cell: Cell) -> Verdict:
    """The moments that a position declares are those that it overrides; others would never be called."""
    declared = set(case.entry.traits.get("hooks", []))
    for moment in MOMENTS:
        has = getattr(case.component, moment) is not getattr(Position, moment)
        if has and moment not in declared:
            return f"it overrides `{moment}`, but its trait `hooks` does not say so: nobody would call it"
        if moment in declared and not has:
            return f"its trait `hooks` has `{moment}`, but it does not override it"
    if ("bias" in declared) != (case.entry.traits.get("bias", "none") != "none"):
        return f"its trait `bias` is {case.entry.traits.get('bias')!r}, but `hooks` is {sorted(declared)}"
    return HOLDS


def distances(case: Case, cell: Cell) -> Verdict:
    """A bias that is declared to be of distances is the same wherever two rows stand."""
    if not case.entry.traits.get("distance_bias"):
        return DOES_NOT_APPLY
    position = _position(case.specimen(cell).topology)
    places = torch.tensor([[0, 3, 4, 9]])
    here, there = (position.bias(Pair(None, None, at, at, 1.0, 4, dtype=torch.float64)) for at in (places, places + 31))
    by = differ(here, there)
    return (
        f"31 rows further on, its bias differs by {by:.2g}: it is not of distances alone" if by > TOLERANCE else HOLDS
    )


def reaching(case: Case, cell: Cell) -> Verdict:
    """A position is finite as far as it says that it reaches, and before its first row, where padding may be."""
    made = case.specimen(cell)
    position = _position(made.topology)
    reach = position.position_limit()
    width = made.stack().shape.head_width
    x = noise("rows", 1, 1, made.stack().shape.width)
    for place in (-3, 0, (reach if reach is not None else FAR) - 1):
        positions = torch.tensor([[place]])
        turned = position.rotate(noise("heads", 1, 4, 1, width), position.tables(positions, width), "query")
        if not (torch.isfinite(position.embed(x, positions)).all() and torch.isfinite(turned).all()):
            return f"at position {place} it is not finite, and it says that it reaches {reach or 'any'}"
    return _neighbours(position, min(reach if reach is not None else NEAR, NEAR), x)


def _neighbours(position: Position, reach: int, x: Tensor) -> str:
    """What a position adds to a row is another for the next one, as far as it says that it reaches."""
    if "embed" not in position.traits["hooks"]:
        return HOLDS
    placed = position.embed(x.expand(1, reach, -1), torch.arange(reach).unsqueeze(0))
    same = (placed[:, 1:] == placed[:, :-1]).all(-1).nonzero()
    if len(same):
        place = int(same[0, 1])
        return f"positions {place} and {place + 1} are the same to it, and it says that it reaches {reach}"
    return HOLDS


def turning(case: Case, cell: Cell) -> Verdict:
    """A rotation says how far apart rows are: moved alike, a query and a key are scored as before."""
    if "rotate" not in case.entry.traits.get("hooks", []):
        return DOES_NOT_APPLY
    made = case.specimen(cell)
    position, width = _position(made.topology), made.stack().shape.head_width
    places = torch.tensor([[0, 5, 7, 12, 90, 95]])  # three pairs, 5 apart
    tables = position.tables(places, width)
    rows = [noise(side, 1, 4, 1, width).expand(-1, -1, places.shape[-1], -1) for side in ("query", "key")]
    q, k = position.rotate(rows[0], tables, "query"), position.rotate(rows[1], tables, "key")
    scores = (q[:, :, 1::2] * k[:, :, ::2]).sum(-1)  # (1, H, 3): of the later of each pair against the earlier
    by = differ(scores, scores[..., :1].expand_as(scores))
    if by > TOLERANCE:
        return f"a query 5 rows behind a key is scored by where both are: {places[0, -2:].tolist()} differs by {by:.2g}"
    return HOLDS


def _position(topology: nn.Module) -> Position:
    return next(module for module in topology.modules() if isinstance(module, Position))


def norming(case: Case, cell: Cell) -> Verdict:
    """A norm keeps shape and dtype, and each row is normed by itself."""
    made = case.specimen(cell)
    norms = [module for module in made.topology.modules() if isinstance(module, Norm)]
    for norm in norms[:1]:
        x = noise("rows", 2, 5, made.stack().shape.width)
        return _row_by_row(norm, x, norm(x))
    return "no norm stands anywhere in the model"


def feeding(case: Case, cell: Cell) -> Verdict:
    """A feed-forward keeps the shape, transforms each row by itself, and its auxiliary loss is one number."""
    made = case.specimen(cell)
    layer = made.stack().layers[0]
    assert isinstance(layer, Layer)
    x = noise("rows", 2, 5, made.stack().shape.width)
    feedforward = layer.feedforward
    assert feedforward is not None, "it was put there"
    y, auxiliary = feedforward(x)
    if auxiliary is not None and auxiliary.ndim:
        return f"its auxiliary loss has the shape {tuple(auxiliary.shape)}, and is to be one number"
    return _row_by_row(lambda rows: feedforward(rows)[0], x, y)


def _row_by_row(function: Any, x: Tensor, y: Tensor) -> str:
    if y.shape != x.shape or y.dtype != x.dtype:
        return f"{tuple(x.shape)} of {x.dtype} becomes {tuple(y.shape)} of {y.dtype}; expected: the same"
    for row in range(x.shape[1]):
        by = differ(function(x[:, row : row + 1]), y[:, row : row + 1])
        if by > TOLERANCE:
            return f"row {row} of {x.shape[1]} differs by {by:.2g} from the same row alone"
    return HOLDS


def wiring(case: Case, cell: Cell) -> Verdict:
    """A placement runs each sublayer once, gives each a share in the output, and keeps the shape."""
    made = case.specimen(cell)
    layer = made.stack().layers[0]
    assert isinstance(layer, Layer)
    placement = layer.placement
    assert placement is not None, "it was put there"
    names = made.stack().shape.sublayers
    x = noise("rows", 2, 3, made.stack().shape.width)
    called: list[str] = []
    y = placement(x, _sublayers(names, called, ""))
    if sorted(called) != sorted(names):
        return f"of the sublayers {', '.join(names)} it runs {', '.join(called) or 'none'}; expected: each once"
    if y.shape != x.shape:
        return f"{tuple(x.shape)} becomes {tuple(y.shape)}; expected: the same"
    for name in names:
        if torch.equal(placement(x, _sublayers(names, [], name)), y):
            return f"what the sublayer `{name}` gives changes nothing"
    return HOLDS


def _sublayers(names: tuple[str, ...], called: list[str], doubled: str) -> Mapping[str, Sublayer]:
    def sublayer(name: str) -> Sublayer:
        def run(h: Tensor) -> Tensor:
            called.append(name)
            fixed = noise(name, *h.shape[1:])
            return fixed.tanh() * h.sin() * (2 if name == doubled else 1) + fixed * (2 if name == doubled else 1)

        return run

    return {name: sublayer(name) for name in names}
