"""Checks of initial weights and training steps."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from paribus.errors import DataError
from paribus.testing.data_checks import encode_synthetic_corpus
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.small_model import SmallModel
from paribus.train.assemble import build_data, build_model

STEPS: Final = 8
LENGTH: Final = 32


def training(case: Case, host: HostModel) -> Verdict:
    """In a few steps on one batch, the loss stays finite and falls."""
    dims = host.spec["dims"] if case.small_model(host).has_fixed_length else {**host.spec["dims"], "length": LENGTH}
    spec = {**host.spec, "dims": dims, "trainer": {"max_steps": STEPS}}
    try:
        text = encode_synthetic_corpus(spec, case.registry)
    except DataError:  # the tokenizer reads a file that its example options do not have
        return DOES_NOT_APPLY
    model, data = build_model(spec, case.registry, text.vocabulary), build_data(spec, case.registry, text)
    if spec.get("teacher") is not None:
        model.set_teacher(build_model({**spec, "seed": spec["seed"] + 1}, case.registry, text.vocabulary))
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = model.optimizer.build(matrices, vectors)
    losses: list[float] = []
    batch = data.step(0)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        for step in range(STEPS):
            torch.manual_seed(step)
            loss = model.loss(batch)
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if not all(map(math.isfinite, losses)):
        failed_step = next(step for step, value in enumerate(losses) if not math.isfinite(value))
        previous = f"{losses[failed_step - 1]:.3f} at step {failed_step - 1}" if failed_step else "none"
        return f"the loss at step {failed_step} is {losses[failed_step]}; previous loss: {previous}"
    if not losses[-1] < losses[0]:
        return (
            f"after {STEPS} steps on one batch the loss is {losses[-1]:.3f}; expected less than {losses[0]:.3f} at "
            "step 0"
        )
    return HOLDS


_CONSTANT_ROLES: Final = frozenset({"bias", "gain"})  # 0 and 1 for every seed


def seeded_weights(case: Case, host: HostModel) -> Verdict:
    """Models of one seed are bitwise equal for any state of the global generator; another seed changes them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = SmallModel(host.spec, case.registry, perturbed=False)
        torch.manual_seed(2)
        rebuilt_tensors = _tensors(SmallModel(host.spec, case.registry, perturbed=False))
    for path, tensor in _tensors(model).items():
        if not torch.equal(tensor, rebuilt_tensors[path]):
            return (
                f"two models of one seed differ in `{path}`. Usual cause: it is drawn from torch's global generator; "
                "use the draws that `prepare` or `draw` receives"
            )
    reseeded_tensors = _tensors(
        SmallModel({**host.spec, "seed": host.spec["seed"] + 1}, case.registry, perturbed=False)
    )
    unchanged = [
        path for path, tensor in _random_parameters(model).items() if torch.equal(tensor, reseeded_tensors[path])
    ]
    if unchanged and len(unchanged) == len(_random_parameters(model)):
        return f"`{unchanged[0]}` and all other parameters are the same for two seeds; expected different values"
    return HOLDS


def unrelated_weights(case: Case, host: HostModel) -> Verdict:
    """A component changes no initial tensor whose path, role, shape and scale stay the same."""
    base = host.label.partition(",")[0]
    base_model = SmallModel(case.resolved(base, {}), case.registry, perturbed=False)
    model = SmallModel(host.spec, case.registry, perturbed=False)
    if case.entry.slot == "initialisation":
        return DOES_NOT_APPLY  # an initialisation is expected to change tensors
    base_tensors, tensors = _tensors(base_model), _tensors(model)
    for path, info in model.parameter_info.items():
        if (
            path in tensors
            and base_model.parameter_info.get(path) == info
            and not torch.equal(base_tensors[path], tensors[path])
        ):
            return (
                f"`{path}` has other initial weights with the component than without; expected equal ones for an equal "
                "path"
            )
    return HOLDS


def _tensors(model: SmallModel) -> dict[str, Tensor]:
    return {**dict(model.topology.named_parameters()), **dict(model.topology.named_buffers())}


def _random_parameters(model: SmallModel) -> dict[str, Tensor]:
    tensors = dict(model.topology.named_parameters())
    return {path: tensor for path, tensor in tensors.items() if model.parameter_info[path].role not in _CONSTANT_ROLES}
