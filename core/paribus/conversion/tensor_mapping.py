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
    problems = [*_unexpected_tensors(moves, hf_tensors, constants), *_changed_constants(constants, hf_tensors)]
    tensors: dict[str, Tensor] = {}
    for move in [_with_existing_name(move, hf_tensors) for move in moves]:
        if move.hf_name not in hf_tensors:
            problems.append(_problem("missing-tensor", move.hf_name, f"missing tensor `{move.hf_name}`"))
            continue
        tensor = hf_tensors[move.hf_name]
        problems += _untied_tensors(move, hf_tensors)
        if not torch.isfinite(tensor).all():
            problems.append(_problem("not-finite", move.hf_name, "this tensor contains NaN or infinity"))
        shape = shapes[move.parameter]
        part = _part(tensor, move, shape)
        if part is None or part.shape != shape:
            message = f"expected the shape {tuple(shape)} of `{move.parameter}`, got {tuple(tensor.shape)}"
            problems.append(_problem("wrong-shape", move.hf_name, message))
            continue
        tensors[move.parameter] = part
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
    parts_by_name: dict[str, list[tuple[Move, Tensor]]] = {}
    for move in moves:
        parts_by_name.setdefault(move.hf_name, []).append((move, parameters[move.parameter].detach()))
    tensors: dict[str, Tensor] = {}
    for hf_name, parts in parts_by_name.items():
        parts.sort(key=lambda move_and_tensor: move_and_tensor[0].part)
        move, tensor = parts[0]
        assert [part_move.part for part_move, _ in parts] == list(range(move.parts)), hf_name
        if move.parts > 1:
            tensor = _join_parts([part for _, part in parts], move.interleaved)
        tensor = (tensor.mT if move.transposed and tensor.ndim == 2 else tensor).contiguous()
        tensor = tensor.reshape(move.hf_shape) if move.hf_shape else tensor
        for name in (hf_name, *move.tied_names):
            tensors[name] = tensor
    like = next(iter(tensors.values()))
    return tensors | {name: constant.to(like) for name, constant in constants.items()}


def _with_existing_name(move: Move, hf_tensors: Tensors) -> Move:
    """Return the mapping with the name that the original model has."""
    has_alternative = move.hf_name not in hf_tensors and move.hf_alternative in hf_tensors
    return move._replace(hf_name=move.hf_alternative) if has_alternative else move


def _part(tensor: Tensor, move: Move, shape: torch.Size) -> Tensor | None:
    """Return the part of an original tensor that a parameter equals, or None if the shapes do not fit."""
    if move.hf_shape:
        if tensor.shape != move.hf_shape or tensor.numel() != shape.numel():
            return None
        tensor = tensor.reshape(tuple(reversed(shape)) if move.transposed else shape)
    whole = tensor.mT if move.transposed and tensor.ndim == 2 else tensor
    if move.parts == 1:
        return whole
    if whole.shape[0] % (move.parts * move.interleaved):
        return None
    part_rows: Tensor = whole.unflatten(0, (move.interleaved, move.parts, -1))[:, move.part]
    return part_rows.flatten(0, 1)


def _join_parts(parts: list[Tensor], interleaved: int) -> Tensor:
    """Concatenate parts, with `interleaved` > 1 in turns."""
    joined: Tensor = torch.cat([part.unflatten(0, (interleaved, -1)) for part in parts], dim=1)
    return joined.flatten(0, 1)


def _unexpected_tensors(moves: Collection[Move], hf_tensors: Tensors, constants: Tensors) -> list[Problem]:
    names_of_moves = {name for move in moves for name in (move.hf_name, move.hf_alternative, *move.tied_names)}
    unexpected = sorted(set(hf_tensors) - names_of_moves - set(constants))
    message = "unexpected tensor, which the configuration does not explain"
    return [_problem("extra-tensor", name, message) for name in unexpected]


def _changed_constants(constants: Tensors, hf_tensors: Tensors) -> list[Problem]:
    """Return a problem for each constant with another value."""
    return [
        _problem("not-constant", name, f"expected {_describe_constant(constant)}, got other values")
        for name, constant in constants.items()
        if name in hf_tensors and not torch.equal(hf_tensors[name], constant.to(hf_tensors[name]))
    ]


def _describe_constant(constant: Tensor) -> str:
    return f"{float(constant.flatten()[0]):g} everywhere, in the shape {tuple(constant.shape)}"


def _untied_tensors(move: Move, hf_tensors: Tensors) -> list[Problem]:
    """Return a problem for each tied tensor with another value."""
    return [
        _problem(
            "tied-weights-differ", name, f"expected a tensor equal to `{move.hf_name}`, as the configuration ties them"
        )
        for name in move.tied_names
        if name in hf_tensors and not torch.equal(hf_tensors[name], hf_tensors[move.hf_name])
    ]


def _problem(code: str, path: str, message: str) -> Problem:
    return Problem(code=code, path=path, message=message)
