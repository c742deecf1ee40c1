"""Keyed initialisation: each parameter is a function of its own random draws.

The draws of a parameter are standard normal float32, made on the CPU from a Philox generator whose key is the seed and
the parameter's path. So swapping one component leaves every other tensor bitwise equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from paribus.errors import PluginError, Problem
from paribus.parts.shape import Role
from paribus.parts.stack import Stage
from paribus.random_keys import key64
from paribus.slots.component import Component
from paribus.slots.initialisation import Initialisation, ParameterInfo


def standard_normal(seed: int, path: str, shape: tuple[int, ...]) -> Tensor:
    """Return standard normal float32 draws, keyed by (seed, path)."""
    key = (key64(seed, path) << 64) | key64(path, seed)
    values = np.random.Generator(np.random.Philox(key=key)).standard_normal(shape, dtype=np.float32)
    return torch.from_numpy(np.asarray(values))


def initialise(children: Mapping[str, nn.Module], scheme: Initialisation, seed: int) -> dict[str, ParameterInfo]:
    """Give every parameter storage and its initial value; return the information about each, by path."""
    root = nn.ModuleDict(children)
    described = parameter_info(root)
    parameters: dict[int, nn.Parameter] = {}  # by identity, so that tied parameters stay one
    for path, owner, name, parameter in list(_parameters(root)):
        if id(parameter) not in parameters:
            value = _first_value(scheme, described[path], seed, parameter.dtype)
            parameters[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
        owner._parameters[name] = parameters[id(parameter)]
    for path, module in root.named_modules():
        if isinstance(module, Component):
            module.prepare(lambda name, shape, path=path: standard_normal(seed, f"{path}.{name}", shape))
    _check_no_meta_tensors(root)
    return described


def parameter_info(root: nn.Module) -> dict[str, ParameterInfo]:
    """Return the information about each parameter that an initialisation receives, by path."""
    roles = _roles(root)
    stacks = [(f"{path}.", module) for path, module in root.named_modules() if isinstance(module, Stage)]
    described: dict[str, ParameterInfo] = {}
    for path, owner, name, parameter in _parameters(root):
        role = roles.get(path) or _default_role(path, owner, name, parameter)
        stack = next((module for prefix, module in stacks if path.startswith(prefix)), None)
        described[path] = ParameterInfo(
            path=path,
            role=role,
            shape=tuple(parameter.shape),
            layers=stack.shape.layers if stack else 0,
            branches=stack.shape.branches if stack else 0,
            gain=_gain(root, path, role),
            width=stack.shape.width if stack else 0,
            head_width=stack.shape.head_width if stack else 0,
            bias_of=_matrix_role(path, owner, roles) if role == "bias" else None,
        )
    return described


def _first_value(scheme: Initialisation, info: ParameterInfo, seed: int, dtype: torch.dtype) -> Tensor:
    if info.role == "bias":
        return torch.zeros(info.shape, dtype=dtype)
    if info.role == "gain":
        return torch.ones(info.shape, dtype=dtype)
    values = scheme.draw(standard_normal(seed, info.path, info.shape), info)
    assert values.shape == info.shape, f"{type(scheme).__name__}.draw changed the shape of {info.path}"
    return values.to(dtype)


def _parameters(root: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Yield each parameter with its path, its module and its name; tied ones under each of their paths."""
    for prefix, module in root.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield f"{prefix}.{name}" if prefix else name, module, name, parameter


def _roles(root: nn.Module) -> dict[str, Role]:
    """Return the roles that modules declare for parameters; outer modules override inner ones."""
    roles: dict[str, Role] = {}
    for prefix, module in reversed(list(root.named_modules())):
        for name, role in getattr(module, "roles", {}).items():
            roles[f"{prefix}.{name}"] = role
    return roles


def _default_role(path: str, owner: nn.Module, name: str, parameter: nn.Parameter) -> Role:
    if isinstance(owner, nn.Embedding):
        return "embedding"
    if name.endswith("bias"):
        return "bias"
    if parameter.ndim >= 2:
        return "weight"
    raise PluginError(
        Problem(
            code="missing-role",
            path=path,
            message="this vector has no role, so its initial value is not known",
            valid=f'`roles = {{"{name}": "gain"}}` (starts at 1) or `"bias"` (starts at 0) on the class that owns it',
        )
    )


def _matrix_role(path: str, owner: nn.Module, roles: Mapping[str, Role]) -> Role | None:
    """Return the role of the matrix of a module whose bias is at `path`, or None if it has no matrix."""
    weight = owner._parameters.get("weight")
    if weight is None or weight.ndim < 2 or not path.endswith(".bias"):
        return None
    return roles.get(f"{path.removesuffix('bias')}weight", "weight")


def _gain(root: nn.Module, path: str, role: Role) -> float:
    """Return the gain that the placement of the parameter's layer gives its role."""
    words = path.split(".")
    if "layers" not in words[:-1]:
        return 1.0
    index = words.index("layers")
    layer = root.get_submodule(".".join(words[: index + 2]))
    placement = getattr(layer, "placement", None)
    return float(placement.gain(role)) if placement is not None else 1.0


def _check_no_meta_tensors(root: nn.Module) -> None:
    """Reject tensors that were computed on the meta device: they have no values."""
    for prefix, module in root.named_modules():
        attributes = {name: value for name, value in vars(module).items() if name not in _MODULE_ATTRIBUTES}
        for name, value in {**module._buffers, **attributes}.items():
            if isinstance(value, _PLAIN) or (isinstance(value, dict) and not value):
                continue  # most values; searching them takes as long as building the model
            if any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_leaves(value)):
                raise PluginError(
                    Problem(
                        code="tensor-in-init",
                        path=f"{prefix}.{name}",
                        message=f"{type(module).__name__} computes a tensor in __init__, where there is no storage yet",
                        valid="make it in `prepare(keyed)`, or derive it in `forward`",
                    )
                )


_PLAIN = (int, float, str, type(None))
_MODULE_ATTRIBUTES = frozenset({"_parameters", "_buffers", "_modules"})  # of nn.Module
