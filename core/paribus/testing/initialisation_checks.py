"""Checks of initial weights: they depend on seed and path only, so a component changes no other tensor."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from paribus.testing.host_models import Case, HostModel
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.small_model import SmallModel

_CONSTANT_ROLES: Final = frozenset({"bias", "gain"})  # 0 and 1 for every seed


def seeded_weights(case: Case, cell: HostModel) -> Verdict:
    """A rebuilt model is bitwise equal whatever the global generator state; another seed gives other weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = SmallModel(cell.spec, case.registry, perturbed=False)
        torch.manual_seed(2)
        rebuilt_tensors = _tensors(SmallModel(cell.spec, case.registry, perturbed=False))
    for path, tensor in _tensors(model).items():
        if not torch.equal(tensor, rebuilt_tensors[path]):
            return f"`{path}` is drawn from the global generator: two models of one seed differ in it"
    reseeded_tensors = _tensors(
        SmallModel({**cell.spec, "seed": cell.spec["seed"] + 1}, case.registry, perturbed=False)
    )
    unchanged = [
        path for path, tensor in _random_parameters(model).items() if torch.equal(tensor, reseeded_tensors[path])
    ]
    if unchanged and len(unchanged) == len(_random_parameters(model)):
        return f"`{unchanged[0]}` and all others are the same for two seeds"
    return HOLDS


def unrelated_weights(case: Case, cell: HostModel) -> Verdict:
    """Adding a component changes no tensor whose path, role, shape and scale stay the same."""
    base = cell.label.partition(",")[0]
    base_model = SmallModel(case.resolved(base, {}), case.registry, perturbed=False)
    model = SmallModel(cell.spec, case.registry, perturbed=False)
    if case.entry.slot == "initialisation":
        return DOES_NOT_APPLY  # an initialisation changes tensors by design
    base_tensors, tensors = _tensors(base_model), _tensors(model)
    for path, info in model.parameter_info.items():
        if (
            path in tensors
            and base_model.parameter_info.get(path) == info
            and not torch.equal(base_tensors[path], tensors[path])
        ):
            return f"`{path}` has other initial weights with the component than without it"
    return HOLDS


def _tensors(model: SmallModel) -> dict[str, Tensor]:
    return {**dict(model.topology.named_parameters()), **dict(model.topology.named_buffers())}


def _random_parameters(model: SmallModel) -> dict[str, Tensor]:
    tensors = dict(model.topology.named_parameters())
    return {path: tensor for path, tensor in tensors.items() if model.parameter_info[path].role not in _CONSTANT_ROLES}
