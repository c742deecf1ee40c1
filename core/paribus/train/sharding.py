"""A trial whose parameters lie in pieces: each of its processes keeps a share of every tensor, and borrows the rest.

The model is cut into its attentions and feed-forwards, each of which is gathered while it is at work, and what is left
(embeddings, norms, heads), which is gathered for a step. What is kept of a trial is whole: whoever writes a checkpoint
or a digest asks for `whole` tensors, for which all processes have to ask together.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from paribus.errors import Problem, SpecError, join_names
from paribus.parts.layer import Layer

FORWARD_METHODS: Final = ("training_step", "observe")  # of a model, what is done with its parameters gathered


def shard(model: nn.Module, device: torch.device) -> None:
    """Cuts a model into pieces, of which this process keeps its own."""
    if numbers := [name for name, parameter in model.named_parameters() if not parameter.ndim]:
        what = f"a parameter that is a single number cannot be cut into pieces, as are {join_names(numbers)}"
        raise SpecError(Problem(code="trainer-refused", path="trainer.strategy", message=what, valid="ddp"))
    mesh = _mesh(device)
    for unit in shard_units(model):
        unit.register_forward_hook(_own)
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for method in FORWARD_METHODS:
        register_fsdp_forward_method(model, method)


def _mesh(device: torch.device) -> DeviceMesh:
    """All processes, in a row. Torch remembers what it did on an equal mesh, and in a process that was copied since it
    would take itself for the one that did it: so each trial's has a name of its own."""
    name = f"pieces-{os.environ.get('MASTER_PORT', '')}"
    return init_device_mesh(device.type, (torch.distributed.get_world_size(),), mesh_dim_names=(name,))


def _own(module: nn.Module, given: object, output: Tensor | tuple[Tensor | None, ...]) -> Any:
    """A view would lose, by an operation in place on it, the hook that gathers the module's parameters for backward."""
    if isinstance(output, tuple):
        return tuple(None if each is None else _own(module, given, each) for each in output)
    return output.clone() if output._is_view() else output


def shard_units(model: nn.Module) -> list[nn.Module]:
    """The attentions and feed-forwards of the layers, but for those that share a parameter with anything else."""
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    parts = [part for layer in layers for part in (layer.attention, layer.cross, layer.feedforward) if part is not None]
    distinct = list(dict.fromkeys(parts))
    inside = {module for part in distinct for module in part.modules()}
    others = {id(own) for each in model.modules() if each not in inside for own in each.parameters(recurse=False)}
    held = Counter(id(own) for part in distinct for own in part.parameters())
    return [part for part in distinct if _alone([id(own) for own in part.parameters()], held, others)]


def _alone(own: list[int], held: Counter[int], others: set[int]) -> bool:
    return bool(own) and all(held[each] == 1 and each not in others for each in own)


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


@contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """The whole model in each process, for what may ask anything of it; as it was, where it is not in pieces."""
    pieces = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in pieces:
        module.unshard()
        module.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for module in pieces:
            module.reshard()
            module.set_reshard_after_forward(module is not model, recurse=False)


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor that may lie in pieces, itself where it does not; all processes ask for the same one."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        return tensor.full_tensor().cpu()


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor, in pieces if the other one is: as that one is cut where it has its shape, else all of it."""
    if not isinstance(other, DTensor) or not tensor.ndim:
        return tensor
    mesh = other.device_mesh
    assert mesh.get_coordinate() == (mesh.get_local_rank(),), "this process takes itself for another"
    alike = tensor.shape == other.shape
    placements = other.placements if alike else [Replicate()]
    found: Tensor = distribute_tensor(tensor.to(other.device), mesh, placements, src_data_rank=None)
    return found
