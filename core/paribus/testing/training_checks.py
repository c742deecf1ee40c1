"""Checks of initial weights, their conversion between options, and training steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from paribus.datamodule.data import Data
from paribus.datamodule.synthetic_corpus import encode_synthetic_corpus
from paribus.errors import DataError, SpecError
from paribus.models.assemble import build_data, build_model
from paribus.models.lightning_module import Model
from paribus.models.optimizer_schedule import build_optimizer
from paribus.parts.weight_conversion import WeightConverter
from paribus.specs import resolved
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.small_model import TOLERANCE, SmallModel, draw_seed, max_difference

STEPS: Final = 8
LENGTH: Final = 32
CONVERSION_LENGTH: Final = 12
OTHER_DRAWS: Final = 10_000  # seed of other noise in weights


def training(case: Case, host: HostModel) -> Verdict:
    """In a few steps on one batch, the loss stays finite and falls, and the component's parameters are trained."""
    built = model_and_data(case, host)
    if built is None:
        return DOES_NOT_APPLY
    model, data = built
    optimizer = build_optimizer(model.optimizer, model)
    losses: list[float] = []
    batch, untrained = data.step(0), _parameters_of(model, case.component)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        for step in range(STEPS):
            torch.manual_seed(step)
            loss = model.loss(batch)
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            untrained = {path: weight for path, weight in untrained.items() if not _has_gradient(weight)}
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
    if untrained:
        return (
            f"in {STEPS} steps from its initial value, no gradient reaches `{min(untrained)}`. Usual cause: a start at "
            "0, where its function has no slope"
        )
    return HOLDS


def _parameters_of(model: Model, component: type[Any]) -> dict[str, Tensor]:
    """Return the parameters of a component's modules, by path."""
    modules = [(path, module) for path, module in model.named_modules() if type(module) is component]
    return {f"{path}.{name}": weight for path, module in modules for name, weight in module.named_parameters()}


def _has_gradient(weight: Tensor) -> bool:
    return weight.grad is not None and bool(weight.grad.any())


def model_and_data(case: Case, host: HostModel) -> tuple[Model, Data] | None:
    """Return the model of a spec with its teacher, and synthetic data; None if the tokenizer lacks a file."""
    dims = host.spec["dims"] if case.small_model(host).has_fixed_length else {**host.spec["dims"], "length": LENGTH}
    spec = {**host.spec, "dims": dims, "trainer": {"max_steps": STEPS}}
    try:
        text = encode_synthetic_corpus(spec, case.registry)
    except DataError:  # the tokenizer reads a file that its example options do not have
        return None
    model, data = build_model(spec, case.registry, text.vocabulary), build_data(spec, case.registry, text)
    if spec.get("teacher") is not None:
        model.set_teacher(build_model({**spec, "seed": spec["seed"] + 1}, case.registry, text.vocabulary))
    return model, data


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


def conversions(case: Case, host: HostModel) -> Verdict:
    """Weights converted to more parameters, by another option, keep the output; converted back, they are restored.

    The trait `exact_conversions: False` declares other conversions, such as an interpolated table.
    """
    verdict: Verdict = DOES_NOT_APPLY
    for variant in case.host_models if case.entry.traits.get("exact_conversions", True) else ():
        if variant.label.startswith(f"{host.label}, "):
            small, large = sorted((host, variant), key=lambda model: _parameter_count(case.small_model(model)))
            if _converted_tensors(case.small_model(large), case.small_model(small)):
                fault = _conversion_fault(case, small, large)
                if fault:
                    return f"with the options of {large.label}, from {small.label}: {fault}"
                verdict = HOLDS
    return verdict


def _parameter_count(model: SmallModel) -> int:
    return sum(parameter.numel() for parameter in model.topology.parameters())


def _conversion_fault(case: Case, small: HostModel, large: HostModel) -> str:
    """Return a message if weights of the smaller model change the function of the larger one, or are not restored."""
    original = case.small_model(small)
    with draw_seed(OTHER_DRAWS):  # weights that conversions must replace
        enlarged, restored = (SmallModel(host.spec, case.registry) for host in (large, small))
    _copy_tensors(enlarged, {**dict(original.topology.named_parameters()), **_converted_tensors(enlarged, original)})
    stream = original.with_segments(original.tokens(2, CONVERSION_LENGTH))
    outputs = [model.scores(model.hidden(stream)) for model in (original, enlarged)]
    difference = max_difference(outputs[1], outputs[0])
    if difference > TOLERANCE:
        return f"the output changes by {difference:.2g} when weights are converted to more parameters"
    for path, value in _converted_tensors(restored, enlarged).items():
        difference = max_difference(value, original.topology.get_parameter(path))
        if difference > TOLERANCE:
            return f"`{path}` differs by {difference:.2g} when it is converted and converted back"
    return HOLDS


def _converted_tensors(target: SmallModel, source: SmallModel) -> dict[str, Tensor]:
    """Return the tensors that modules of one model convert from another, by path."""
    sources = dict(source.topology.named_modules())
    return {
        f"{path}.{name}": converted.value
        for path, module in target.topology.named_modules()
        if isinstance(module, WeightConverter) and path in sources
        for name, converted in module.convert_weights(sources[path]).items()
    }


def _copy_tensors(model: SmallModel, tensors: Mapping[str, Tensor]) -> None:
    for path, parameter in model.topology.named_parameters():
        if path in tensors and tensors[path].shape == parameter.shape:
            parameter.copy_(tensors[path])


def shared_layers(case: Case, host: HostModel) -> Verdict:
    """A layer that stands for several has the parameters of each; others have the trait `needs: ["layer"]`."""
    try:
        spec = resolved({**host.spec, "dims": {**host.spec["dims"], "groups": 1}}, registry=case.registry)
    except SpecError:
        return DOES_NOT_APPLY
    shared, separate = SmallModel(spec, case.registry, initialized=False), case.small_model(host)
    for part in separate.topology.parts:
        parameters = dict(shared.stack(part.path).layers[0].named_parameters())
        for index, layer in enumerate(separate.stack(part.path).layers):
            for path, parameter in layer.named_parameters():
                if path not in parameters or parameters[path].shape != parameter.shape:
                    return (
                        f"layer {index} has the parameter `{path}` of shape {tuple(parameter.shape)}; one layer that "
                        "stands for all lacks it. Usual cause: a component that reads `shape.layer` does not "
                        'declare `needs: ["layer"]`'
                    )
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
