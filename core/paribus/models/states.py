"""State of a model and an optimizer by parameter names: packed for a checkpoint, and restored strictly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paribus.errors import Problem, StoreError, join_names
from paribus.models.distributed import full_tensor, shard_like
from paribus.models.optimizer_schedule import Float32Updates
from paribus.models.tensor_file import pack, unpack
from paribus.storage.atomic import Json


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and persistent buffer under each of its names, without copying."""
    named: dict[str, Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            message = f"the model's state_dict contains a {type(value).__name__}"
            raise StoreError(Problem(code="cannot-save", path=name, message=message, valid="tensors only"))
        named[name] = value
    return named


def tied_names(named: Mapping[str, Tensor]) -> dict[str, str]:
    """Map the later names of tied tensors, and of tensors in shared modules, to their first names."""
    first_names: dict[int, str] = {}
    firsts = {name: first_names.setdefault(id(named[name]), name) for name in sorted(named)}
    return {name: first_name for name, first_name in firsts.items() if first_name != name}


def distinct_tensors(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return each tensor once, under the first of its names."""
    tied = tied_names(named)
    return {name: tensor for name, tensor in named.items() if name not in tied}


def fill_model(model: nn.Module, tensors: Mapping[str, Tensor], tied: Mapping[str, str], path: Path) -> None:
    """Copy tensors into a model with exactly these names, shapes, dtypes and ties; or change nothing."""
    named = named_tensors(model)
    problems = _differences(
        named, {**tensors, **{name: tensors[first_name] for name, first_name in tied.items()}}, path
    )
    problems += _ties(tied_names(named), tied, path)
    if problems:
        raise StoreError(*problems)
    with torch.no_grad():
        for name, tensor in tensors.items():
            named[name].copy_(shard_like(tensor, named[name]))


def pack_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Json]:
    """Pack the state and the options of an optimizer, each parameter by its name in the model."""
    groups = _named_groups(optimizer, model)
    names = {parameter: name for group in groups for name, parameter in group.items()}
    unknown = [key for key in optimizer.state if key not in names]
    if unknown:
        message = f"the optimizer has state for {len(unknown)} objects that are not its parameters"
        raise StoreError(Problem(code="cannot-save", message=message))
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    state = {name: optimizer.state[parameter] for parameter, name in names.items() if parameter in optimizer.state}
    state = {
        name: {key: _map_tensor(full_tensor, value) for key, value in entries.items()}
        for name, entries in state.items()
    }
    return {
        "class": _class(optimizer),
        "groups": [sorted(group) for group in groups],
        "options": pack(options, "optimizer/options", tensors),
        "state": {name: pack(entries, f"optimizer/state/{name}", tensors) for name, entries in state.items()},
    }


def fill_optimizer(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    packed: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    path: Path,
) -> None:
    """Restore what `pack_optimizer` packed, for an optimizer of the same class over the same named parameters."""
    groups = check_optimizer(optimizer, model, packed, path)
    parameters = {name: parameter for group in groups for name, parameter in group.items()}
    device = next((parameter.device for parameter in parameters.values()), torch.device("cpu"))
    hyperparameters = unpack(packed["options"], tensors, device)
    state = {
        parameters[name]: {
            key: _map_tensor(
                partial(shard_like, reference=parameters[name]), unpack(value, tensors, parameters[name].device)
            )
            for key, value in entries["dict"].items()
        }
        for name, entries in packed["state"].items()
    }
    for group, options in zip(optimizer.param_groups, hyperparameters, strict=True):
        parameter_list = group["params"]
        group.clear()  # in place: a schedule may have a reference to the group
        group.update(params=parameter_list, **options)
    optimizer.state.clear()
    optimizer.state.update(state)


def _map_tensor(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    return function(value) if isinstance(value, Tensor) else value


def check_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, packed: Mapping[str, Any], path: Path
) -> list[dict[str, Tensor]]:
    """Return the parameter groups of an optimizer by name, if the packed state fits them."""
    groups = _named_groups(optimizer, model)
    saved_class, expected_class = packed["class"], _class(optimizer)
    if saved_class != expected_class:
        raise _mismatch(path, f"it holds the state of the optimizer {saved_class}", expected_class)
    expected_groups = [sorted(group) for group in groups]
    if len(packed["groups"]) != len(expected_groups):
        raise _mismatch(
            path, f"the optimizer had {len(packed['groups'])} groups of parameters", str(len(expected_groups))
        )
    for index, (saved_group, expected) in enumerate(zip(packed["groups"], expected_groups, strict=True)):
        if saved_group != expected:
            odd = join_names(f"`{name}`" for name in sorted(set(saved_group) ^ set(expected)))
            raise _mismatch(path, f"group {index} of the optimizer had other parameters; they differ in {odd}")
    return groups


def _named_groups(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[dict[str, Tensor]]:
    names = {id(tensor): name for name, tensor in distinct_tensors(named_tensors(model)).items()}
    groups: list[dict[str, Tensor]] = []
    for index, group in enumerate(optimizer.param_groups):
        foreign = [list(parameter.shape) for parameter in group["params"] if id(parameter) not in names]
        if foreign:
            shapes = join_names(foreign)
            message = f"group {index} of the optimizer has parameters that are not the model's, of shapes {shapes}"
            raise StoreError(Problem(code="unknown-parameter", message=message))
        groups.append({names[id(parameter)]: parameter for parameter in group["params"]})
    return groups


def _class(optimizer: torch.optim.Optimizer) -> str:
    kind = type(optimizer.updates if isinstance(optimizer, Float32Updates) else optimizer)
    return f"{kind.__module__}.{kind.__qualname__}"


def _differences(current: Mapping[str, Tensor], saved: Mapping[str, Tensor], path: Path) -> list[Problem]:
    problems = []
    if missing := sorted(current.keys() - saved.keys()):
        problems.append(_problem(path, f"the file lacks tensors that the model has: {join_names(missing)}"))
    if unexpected := sorted(saved.keys() - current.keys()):
        problems.append(_problem(path, f"the file has tensors that the model lacks: {join_names(unexpected)}"))
    problems += [
        _problem(path, f"`{name}` is {_kind(saved[name])} in the file", _kind(current[name]))
        for name in sorted(current.keys() & saved.keys())
        if _kind(saved[name]) != _kind(current[name])
    ]
    return problems


def _ties(current: Mapping[str, str], saved: Mapping[str, str], path: Path) -> list[Problem]:
    problems = []
    for name in sorted(current.keys() | saved.keys()):
        if current.get(name) != saved.get(name):
            tied = [f"tied to `{ties[name]}`" if name in ties else "not tied" for ties in (saved, current)]
            problems.append(_problem(path, f"`{name}` is {tied[0]} in the file, but {tied[1]} in the model"))
    return problems


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _problem(path: Path, message: str, valid: str = "") -> Problem:
    return Problem(code="does-not-fit", location=str(path), message=message, valid=valid)


def _mismatch(path: Path, message: str, valid: str = "") -> StoreError:
    return StoreError(_problem(path, message, valid))
