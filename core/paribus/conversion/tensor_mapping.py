"""How tensors of two models correspond, said once and applied in both directions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from paribus.errors import Problem, StoreError, join_names

Tensors = Mapping[str, Tensor]


class Move(NamedTuple):
    """One of our tensors, and where theirs has it."""

    ours: str
    theirs: str
    turned: bool = False  # theirs keeps the matrix the other way around
    part: int = 0  # which of
    parts: int = 1  # so many equal parts, along the rows of the matrix as we keep it
    also: tuple[str, ...] = ()  # further names that theirs has for the same tensor
    spread: tuple[int, ...] = ()  # the shape that theirs has, where it has more dimensions than ours
    otherwise: str = ""  # what it may be called in place of that; read, and never written
    turns: int = 1  # the parts take turns so many times (DeBERTa: once for each head)


def convert_tensors(
    moves: Iterable[Move], theirs: Tensors, shapes: Mapping[str, torch.Size], constants: Tensors = MappingProxyType({})
) -> dict[str, Tensor]:
    """Our tensors, of theirs; every tensor on either side is accounted for, or all that are not are told of.

    `constants` are tensors of theirs that nothing is made of, as every model has them alike.
    """
    moves = list(moves)
    problems = [*_strays(moves, theirs, constants), *_varied(constants, theirs)]
    found: dict[str, Tensor] = {}
    for move in [_called(move, theirs) for move in moves]:
        if move.theirs not in theirs:
            problems.append(_problem("missing-tensor", move.theirs, f"the model has no tensor `{move.theirs}`"))
            continue
        tensor = theirs[move.theirs]
        problems += _untied(move, theirs)
        if not torch.isfinite(tensor).all():
            problems.append(_problem("not-finite", move.theirs, "this tensor holds NaN or infinity"))
        wanted = shapes[move.ours]
        made = _part(tensor, move, wanted)
        if made is None or made.shape != wanted:
            what = f"this tensor is {tuple(tensor.shape)}; `{move.ours}`, which comes of it, is {tuple(wanted)}"
            problems.append(_problem("misshapen", move.theirs, what))
            continue
        found[move.ours] = made
    problems = list(dict.fromkeys(problems))  # a tensor of three parts has one problem
    if problems:
        raise StoreError(*problems)
    left = sorted(set(shapes) - set(found))
    assert not left, f"no move leads to {join_names(left)}"
    return found


def export_tensors(
    moves: Iterable[Move], ours: Tensors, constants: Tensors = MappingProxyType({})
) -> dict[str, Tensor]:
    """Their tensors, of ours, each under every name that they have for it."""
    parts: dict[str, list[tuple[Move, Tensor]]] = {}
    for move in moves:
        parts.setdefault(move.theirs, []).append((move, ours[move.ours]))
    made: dict[str, Tensor] = {}
    for name, found in parts.items():
        found.sort(key=lambda each: each[0].part)
        move = found[0][0]
        assert [each.part for each, _ in found] == list(range(move.parts)), name
        tensor = found[0][1].detach() if move.parts == 1 else _joined([each.detach() for _, each in found], move.turns)
        tensor = (tensor.mT if move.turned and tensor.ndim == 2 else tensor).contiguous()
        tensor = tensor.reshape(move.spread) if move.spread else tensor
        for each in (name, *move.also):
            made[each] = tensor
    like = next(iter(made.values()))
    return made | {name: constant.to(like) for name, constant in constants.items()}


def _called(move: Move, theirs: Tensors) -> Move:
    """The move, by the name that theirs has."""
    return move._replace(theirs=move.otherwise) if move.theirs not in theirs and move.otherwise in theirs else move


def _part(tensor: Tensor, move: Move, wanted: torch.Size) -> Tensor | None:
    """The part of their tensor that ours is; None where it has no such part."""
    if move.spread:
        if tensor.shape != move.spread or tensor.numel() != wanted.numel():
            return None
        tensor = tensor.reshape(tuple(reversed(wanted)) if move.turned else wanted)
    whole = tensor.mT if move.turned and tensor.ndim == 2 else tensor
    if move.parts == 1:
        return whole
    if whole.shape[0] % (move.parts * move.turns):
        return None
    in_turns: Tensor = whole.unflatten(0, (move.turns, move.parts, -1))[:, move.part]
    return in_turns.flatten(0, 1)


def _joined(parts: list[Tensor], turns: int) -> Tensor:
    """Parts one behind the other, or in turns."""
    joined: Tensor = torch.cat([part.unflatten(0, (turns, -1)) for part in parts], dim=1)
    return joined.flatten(0, 1)


def _strays(moves: Collection[Move], theirs: Tensors, constants: Tensors) -> list[Problem]:
    known = {name for move in moves for name in (move.theirs, move.otherwise, *move.also)} | set(constants)
    strays = sorted(set(theirs) - known)
    what = "the model has this tensor, which its configuration does not account for"
    return [_problem("extra-tensor", name, what) for name in strays]


def _varied(constants: Tensors, theirs: Tensors) -> list[Problem]:
    """What nothing here is made of may not say anything."""
    return [
        _problem("not-constant", name, f"there is no such tensor here: it must be {_shown(constant)}, and is not")
        for name, constant in constants.items()
        if name in theirs and not torch.equal(theirs[name], constant.to(theirs[name]))
    ]


def _shown(constant: Tensor) -> str:
    return f"{float(constant.flatten()[0]):g} everywhere, in the shape {tuple(constant.shape)}"


def _untied(move: Move, theirs: Tensors) -> list[Problem]:
    """What is one tensor by the configuration must not be two in the file."""
    return [
        _problem("wrongly-tied", name, f"by its configuration this is `{move.theirs}`, but the two differ")
        for name in move.also
        if name in theirs and not torch.equal(theirs[name], theirs[move.theirs])
    ]


def _problem(code: str, path: str, what: str) -> Problem:
    return Problem(code=code, path=path, message=what)
