"""What a model and an optimiser hold, by the parameters' names: taken out for a checkpoint, and put back strictly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paribus.errors import Problem, StoreError, join_names
from paribus.storage.atomic import Json
from paribus.train.distributed import full_tensor, shard_like
from paribus.train.tensor_file import pack, unpack


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer under every name that it has, itself and not a copy."""
    named: dict[str, Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            what = f"the state of the model holds a {type(value).__name__}"
            raise StoreError(Problem(code="not-saved", path=name, message=what, valid="tensors only"))
        named[name] = value
    return named


def tied_names(named: Mapping[str, Tensor]) -> dict[str, str]:
    """For each tensor with several names (tied, or in a shared module): its later names, and the first of them."""
    first: dict[int, str] = {}
    return {name: kept for name in sorted(named) if (kept := first.setdefault(id(named[name]), name)) != name}


def distinct_tensors(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor once, under the first of its names."""
    later = tied_names(named)
    return {name: tensor for name, tensor in named.items() if name not in later}


def fill_model(model: nn.Module, tensors: Mapping[str, Tensor], tied: Mapping[str, str], path: Path) -> None:
    """Copy tensors into a model that has exactly these, of these shapes, types and ties; or change nothing."""
    named = named_tensors(model)
    problems = _differences(named, {**tensors, **{name: tensors[kept] for name, kept in tied.items()}}, path)
    problems += _ties(tied_names(named), tied, path)
    if problems:
        raise StoreError(*problems)
    with torch.no_grad():
        for name, tensor in tensors.items():
            named[name].copy_(shard_like(tensor, named[name]))


def pack_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Json]:
    """The state and the hyper-parameters of an optimiser, each parameter by its name in the model."""
    groups = _named_groups(optimizer, model)
    names = {parameter: name for group in groups for name, parameter in group.items()}
    strays = [key for key in optimizer.state if key not in names]
    if strays:
        what = f"the optimiser keeps a state for {len(strays)} things that are none of its parameters"
        raise StoreError(Problem(code="not-saved", message=what))
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    state = {name: optimizer.state[parameter] for parameter, name in names.items() if parameter in optimizer.state}
    state = {name: {key: _each(full_tensor, value) for key, value in held.items()} for name, held in state.items()}
    return {
        "class": _class(optimizer),
        "groups": [sorted(group) for group in groups],
        "options": pack(options, "optimizer/options", tensors),
        "state": {name: pack(held, f"optimizer/state/{name}", tensors) for name, held in state.items()},
    }


def fill_optimizer(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    packed: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    path: Path,
) -> None:
    """Put back what `pack_optimizer` took from an optimiser of the same class over the same named parameters."""
    groups = check_optimizer(optimizer, model, packed, path)
    parameters = {name: parameter for group in groups for name, parameter in group.items()}
    device = next((parameter.device for parameter in parameters.values()), torch.device("cpu"))
    hyperparameters = unpack(packed["options"], tensors, device)
    state = {
        parameters[name]: {
            key: _each(partial(shard_like, other=parameters[name]), unpack(value, tensors, parameters[name].device))
            for key, value in held["dict"].items()
        }
        for name, held in packed["state"].items()
    }
    for group, options in zip(optimizer.param_groups, hyperparameters, strict=True):
        held = group["params"]
        group.clear()  # in place: a schedule may hold the group
        group.update(params=held, **options)
    optimizer.state.clear()
    optimizer.state.update(state)


def _each(do: Callable[[Tensor], Tensor], value: Any) -> Any:
    return do(value) if isinstance(value, Tensor) else value


def check_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, packed: Mapping[str, Any], path: Path
) -> list[dict[str, Tensor]]:
    """The groups of an optimiser by name, if what was packed fits them."""
    groups = _named_groups(optimizer, model)
    found, here = packed["class"], _class(optimizer)
    if found != here:
        raise _mismatch(path, f"it holds the state of the optimiser {found}", here)
    sorted_here = [sorted(group) for group in groups]
    if len(packed["groups"]) != len(sorted_here):
        raise _mismatch(path, f"the optimiser had {len(packed['groups'])} groups of parameters", str(len(sorted_here)))
    for index, (then, now) in enumerate(zip(packed["groups"], sorted_here, strict=True)):
        if then != now:
            odd = join_names(f"`{name}`" for name in sorted(set(then) ^ set(now)))
            raise _mismatch(path, f"group {index} of the optimiser held other parameters, which differ in {odd}")
    return groups


def _named_groups(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[dict[str, Tensor]]:
    names = {id(tensor): name for name, tensor in distinct_tensors(named_tensors(model)).items()}
    groups: list[dict[str, Tensor]] = []
    for index, group in enumerate(optimizer.param_groups):
        foreign = [list(parameter.shape) for parameter in group["params"] if id(parameter) not in names]
        if foreign:
            shapes = join_names(foreign)
            what = f"group {index} of the optimiser has parameters that are not the model's, of shapes {shapes}"
            raise StoreError(Problem(code="foreign-parameter", message=what))
        groups.append({names[id(parameter)]: parameter for parameter in group["params"]})
    return groups


def _class(optimizer: torch.optim.Optimizer) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _differences(now: Mapping[str, Tensor], then: Mapping[str, Tensor], path: Path) -> list[Problem]:
    problems = []
    if missing := sorted(now.keys() - then.keys()):
        problems.append(_problem(path, f"the file lacks tensors that the model has: {join_names(missing)}"))
    if unexpected := sorted(then.keys() - now.keys()):
        problems.append(_problem(path, f"the file has tensors that the model lacks: {join_names(unexpected)}"))
    problems += [
        _problem(path, f"`{name}` is {_kind(then[name])} in the file", _kind(now[name]))
        for name in sorted(now.keys() & then.keys())
        if _kind(then[name]) != _kind(now[name])
    ]
    return problems


def _ties(now: Mapping[str, str], then: Mapping[str, str], path: Path) -> list[Problem]:
    problems = []
    for name in sorted(now.keys() | then.keys()):
        if now.get(name) != then.get(name):
            tied = [f"tied to `{ties[name]}`" if name in ties else "not tied" for ties in (then, now)]
            problems.append(_problem(path, f"`{name}` is {tied[0]} in the file, but {tied[1]} in the model"))
    return problems


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _problem(path: Path, what: str, valid: str = "") -> Problem:
    return Problem(code="does-not-fit", location=str(path), message=what, valid=valid)


def _mismatch(path: Path, what: str, valid: str = "") -> StoreError:
    return StoreError(_problem(path, what, valid))
