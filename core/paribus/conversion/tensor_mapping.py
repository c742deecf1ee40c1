"""Mapping between the tensors of two models, applied in both directions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from paribus.errors import Problem, StoreError, join_names
from paribus.slots.family import Move

Tensors = Mapping[str, Tensor]


def convert_tensors(
    moves: Iterable[Move],
    hf_tensors: Tensors,
    shapes: Mapping[str, torch.Size],
    constants: Tensors = MappingProxyType({}),
) -> dict[str, Tensor]:
    """Convert the original tensors to parameters, or raise a problem for each tensor without a counterpart.

    `constants` are original tensors without a parameter, which are equal in every model.
    """
    moves = list(moves)
    problems = [*_strays(moves, hf_tensors, constants), *_varied(constants, hf_tensors)]
    tensors: dict[str, Tensor] = {}
    for move in [_called(move, hf_tensors) for move in moves]:
        if move.theirs not in hf_tensors:
            problems.append(_problem("missing-tensor", move.theirs, f"missing tensor `{move.theirs}`"))
            continue
        tensor = hf_tensors[move.theirs]
        problems += _untied(move, hf_tensors)
        if not torch.isfinite(tensor).all():
            problems.append(_problem("not-finite", move.theirs, "this tensor contains NaN or infinity"))
        shape = shapes[move.ours]
        part = _part(tensor, move, shape)
        if part is None or part.shape != shape:
            message = f"expected the shape {tuple(shape)} of `{move.ours}`, got {tuple(tensor.shape)}"
            problems.append(_problem("wrong-shape", move.theirs, message))
            continue
        tensors[move.ours] = part
    problems = list(dict.fromkeys(problems))  # a tensor of three parts has one problem
    if problems:
        raise StoreError(*problems)
    missing = sorted(set(shapes) - set(tensors))
    assert not missing, f"no move leads to {join_names(missing)}"
    return tensors


def export_tensors(
    moves: Iterable[Move], parameters: Tensors, constants: Tensors = MappingProxyType({})
) -> dict[str, Tensor]:
    """Convert parameters to original tensors, under all of their names."""
    parts: dict[str, list[tuple[Move, Tensor]]] = {}
    for move in moves:
        parts.setdefault(move.theirs, []).append((move, parameters[move.ours]))
    tensors: dict[str, Tensor] = {}
    for name, moves_and_tensors in parts.items():
        moves_and_tensors.sort(key=lambda name_or_part: name_or_part[0].part)
        move = moves_and_tensors[0][0]
        assert [name_or_part.part for name_or_part, _ in moves_and_tensors] == list(range(move.parts)), name
        tensor = (
            moves_and_tensors[0][1].detach()
            if move.parts == 1
            else _joined([name_or_part.detach() for _, name_or_part in moves_and_tensors], move.turns)
        )
        tensor = (tensor.mT if move.turned and tensor.ndim == 2 else tensor).contiguous()
        tensor = tensor.reshape(move.spread) if move.spread else tensor
        for name_or_part in (name, *move.also):
            tensors[name_or_part] = tensor
    like = next(iter(tensors.values()))
    return tensors | {name: constant.to(like) for name, constant in constants.items()}


def _called(move: Move, hf_tensors: Tensors) -> Move:
    """Return the mapping with the name that the original model has."""
    return (
        move._replace(theirs=move.otherwise) if move.theirs not in hf_tensors and move.otherwise in hf_tensors else move
    )


def _part(tensor: Tensor, move: Move, shape: torch.Size) -> Tensor | None:
    """Return the part of an original tensor that a parameter equals, or None if the shapes do not fit."""
    if move.spread:
        if tensor.shape != move.spread or tensor.numel() != shape.numel():
            return None
        tensor = tensor.reshape(tuple(reversed(shape)) if move.turned else shape)
    whole = tensor.mT if move.turned and tensor.ndim == 2 else tensor
    if move.parts == 1:
        return whole
    if whole.shape[0] % (move.parts * move.turns):
        return None
    in_turns: Tensor = whole.unflatten(0, (move.turns, move.parts, -1))[:, move.part]
    return in_turns.flatten(0, 1)


def _joined(parts: list[Tensor], turns: int) -> Tensor:
    """Concatenate parts, interleaved if `turns` > 1."""
    joined: Tensor = torch.cat([part.unflatten(0, (turns, -1)) for part in parts], dim=1)
    return joined.flatten(0, 1)


def _strays(moves: Collection[Move], hf_tensors: Tensors, constants: Tensors) -> list[Problem]:
    known_names = {name for move in moves for name in (move.theirs, move.otherwise, *move.also)} | set(constants)
    strays = sorted(set(hf_tensors) - known_names)
    message = "unexpected tensor, which the configuration does not explain"
    return [_problem("extra-tensor", name, message) for name in strays]


def _varied(constants: Tensors, hf_tensors: Tensors) -> list[Problem]:
    """Return a problem for each constant with another value."""
    return [
        _problem("not-constant", name, f"expected {_shown(constant)}, got other values")
        for name, constant in constants.items()
        if name in hf_tensors and not torch.equal(hf_tensors[name], constant.to(hf_tensors[name]))
    ]


def _shown(constant: Tensor) -> str:
    return f"{float(constant.flatten()[0]):g} everywhere, in the shape {tuple(constant.shape)}"


def _untied(move: Move, hf_tensors: Tensors) -> list[Problem]:
    """Return a problem for each tied tensor with another value."""
    return [
        _problem(
            "tied-weights-differ", name, f"expected a tensor equal to `{move.theirs}`, as the configuration ties them"
        )
        for name in move.also
        if name in hf_tensors and not torch.equal(hf_tensors[name], hf_tensors[move.theirs])
    ]


def _problem(code: str, path: str, message: str) -> Problem:
    return Problem(code=code, path=path, message=message)
