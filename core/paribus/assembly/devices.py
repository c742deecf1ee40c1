"""Functions of the device that a model is trained on, by the module that torch has for each type of device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from paribus.parts.batch import Batch

_WITHOUT_STATES: Final = ("cpu", "mps")  # devices whose generators have no state of their own for each device
_UNPINNED: Final = ("cpu", "mps", "meta")  # pinned memory does not make copies to these asynchronous


def training_device(spec: Mapping[str, Any]) -> torch.device:
    """Return the device that Lightning will choose for a spec, before there is a trainer."""
    accelerator = (spec["trainer"] or {}).get("accelerator", "auto")
    return torch.device("cuda" if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available() else "cpu")


def synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done what it was given."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the generators of a step. `torch.manual_seed` visits every device type, which takes 200 µs on a CPU."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def generator_state(device: torch.device) -> Tensor | None:
    """Return the state of an accelerator's generator."""
    return None if device.type in _WITHOUT_STATES else torch.get_device_module(device).get_rng_state(device)


def fork_generators(device: torch.device) -> AbstractContextManager[None]:
    """Return a context after which torch's generators have the states that they had before."""
    if device.type in _WITHOUT_STATES:
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[device], device_type=device.type)


@contextmanager
def determinism_restored() -> Iterator[None]:
    """Return a context after which torch allows the operations that it allowed before, whatever a trainer sets."""
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch to a device, from pinned memory, so that the CPU need not wait for the work that a GPU has."""
    if device == batch.index.device:
        return batch
    pins = device.type not in _UNPINNED

    def move(tensor: Tensor) -> Tensor:
        source = tensor.pin_memory() if pins and tensor.device.type == "cpu" else tensor
        return source.to(device, non_blocking=pins)

    moved: Batch = tree_map_only(Tensor, move, batch)
    return moved
