"""Checks of gradients: finite differences in float64, and units that no gradient reaches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from paribus.parts.batch import Stream
from paribus.parts.stack import Layer
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.option_specs import changed_choices
from paribus.testing.small_model import SmallModel, draw_seed, fed_apart, noise, tokens

LENGTH: Final = 12
MANY_TOKENS: Final = 64  # enough for a unit that only some tokens use
DRAWS: Final = 5  # of weights and tokens, in all of which a unit without effect has no gradient
STEPS: Final = (1e-6, 1e-5, 1e-8)  # a mismatch at some steps only is due to rounding, or to kinks nearby
GRADIENT_TOLERANCE: Final = 1e-4
UNIT_ROLES: Final = frozenset({"query", "key", "value", "inner", "residual"})


def finite_differences(case: Case, host: HostModel) -> Verdict:
    """Gradients equal finite differences in float64; a detached or float32 value breaks this.

    They do so in the model in which all choices are changed as well, except those of a topology, which may choose what
    trains a shared embedding. The trait `exact_gradients: False` declares an estimator, such as a straight-through one.
    """
    if not case.entry.traits.get("exact_gradients", True):
        return DOES_NOT_APPLY
    changed = changed_choices(case, host) if case.entry.slot != "topology" else None
    verdict = _differences_fault(case.small_model(host))
    if verdict or changed is None or case.rejects_options(changed):
        return verdict
    fault = _differences_fault(case.small_model(changed))
    return f"{changed.label}: {fault}" if fault else verdict


def _differences_fault(model: SmallModel) -> Verdict:
    stream = model.full_stream(model.tokens(2, LENGTH))
    parameters = dict(model.topology.named_parameters())
    if not parameters:
        return DOES_NOT_APPLY
    with torch.enable_grad():
        grads = torch.autograd.grad(_loss(model, stream), [*parameters.values()], allow_unused=True)
    gradients = {
        path: torch.zeros_like(parameter) if grad is None else grad
        for (path, parameter), grad in zip(parameters.items(), grads, strict=True)
    }
    if all(_mismatch(model, stream, gradients, [*parameters], step) for step in STEPS):
        # A kink near the weights bends the loss along all directions at once; a wrong gradient is wrong alone as well.
        errors = {path: min(_mismatch(model, stream, gradients, [path], step) for step in STEPS) for path in parameters}
        path = max(errors, key=lambda name: errors[name])
        if not errors[path]:
            return HOLDS
        return (
            f"the gradient of `{path}` differs from finite differences by {errors[path]:.2g} (relative). Usual cause: "
            "a value that is detached, computed under `no_grad`, or computed in float32"
        )
    return HOLDS


def _loss(model: SmallModel, stream: Stream) -> Tensor:
    output = model.output(stream)
    scores = model.scores(output.hidden)
    loss = (scores * noise("loss", *scores.shape)).sum()
    return loss if output.auxiliary is None else loss + 100 * output.auxiliary


def _mismatch(
    model: SmallModel, stream: Stream, gradients: Mapping[str, Tensor], paths: list[str], step: float
) -> float:
    """Return the relative error of the derivative along a random direction, or 0 if it is within the tolerance.

    At a kink within one step, the gradient equals the difference of one side.
    """
    parameters = {path: model.topology.get_parameter(path) for path in paths}
    originals = {path: parameter.detach().clone() for path, parameter in parameters.items()}
    directions = {path: noise(f"direction of {path}", *gradients[path].shape) for path in paths}
    terms = torch.stack([(gradients[path] * directions[path]).sum() for path in paths])
    losses: list[float] = []
    for sign in (-1, 0, 1):
        for path, parameter in parameters.items():
            parameter.data.copy_(originals[path] + sign * step * directions[path])
        losses.append(float(_loss(model, stream)))
    for path, parameter in parameters.items():
        parameter.data.copy_(originals[path])
    before, here, after = losses
    differences = ((after - before) / (2 * step), (after - here) / step, (here - before) / step)
    error = min(abs(difference - float(terms.sum())) for difference in differences) / (1 + float(terms.norm()))
    return 0.0 if error <= GRADIENT_TOLERANCE else error


def living_units(case: Case, host: HostModel) -> Verdict:
    """Every row and column of the projections has a gradient: no head or hidden unit is without effect.

    A ReLU may be 0 at all tokens by chance, so a unit has to be without one for several draws of weights and tokens.
    """
    dead = _dead_units(case, case.small_model(host))
    for seed in range(1, DRAWS):
        if not dead:
            return HOLDS
        with draw_seed(seed):
            again = _dead_units(case, SmallModel(host.spec, case.registry))
        shared = {place: [unit for unit in units if unit in again.get(place, [])] for place, units in dead.items()}
        dead = {place: units for place, units in shared.items() if units}
    for (path, name, size), units in dead.items():
        return (
            f"no gradient reaches {name} {units[0]} of `{path}` ({len(units)} of {size}). "
            "Usual cause: a mask or a slice that drops heads or hidden units"
        )
    return HOLDS


def _dead_units(case: Case, model: SmallModel) -> dict[tuple[str, str, int], list[int]]:
    """Return rows and columns without a gradient, by the path of their matrix, the name of the axis and its size."""
    dead: dict[tuple[str, str, int], list[int]] = {}
    for path, grad in _projection_gradients(case, model):
        matrix = grad.flatten(1)
        for axis, name in ((1, "row"), (0, "column")):
            units = (matrix == 0).all(axis).nonzero().flatten().tolist()
            if units:
                dead[path, name, matrix.shape[1 - axis]] = units
    return dead


def _projection_gradients(case: Case, model: SmallModel) -> Iterator[tuple[str, Tensor]]:
    """Yield the gradients of the projections of the component on many tokens: of feed-forwards by themselves."""
    length = min(MANY_TOKENS, *(model.topology.stage(part.path).shape.length for part in model.topology.parts))
    for layer_path, layer in model.topology.named_modules():
        if not isinstance(layer, Layer) or getattr(layer, case.entry.slot) is None:
            continue
        with torch.enable_grad():
            if layer.feedforward is not None and case.entry.slot == "feedforward":
                x = noise("rows", 8, MANY_TOKENS, model.stack(layer_path.partition(".")[0]).shape.width)
                y = fed_apart(layer.feedforward, x)[0]
            else:
                y = model.hidden(model.tokens(2, length), source=tokens(2, length, "source"))
            named = {
                f"{layer_path}.{path}": parameter
                for path, parameter in layer.named_parameters()
                if path.startswith((case.entry.slot, "cross." if case.entry.slot == "attention" else case.entry.slot))
                and parameter.ndim >= 2
                and model.parameter_info[f"{layer_path}.{path}"].role in UNIT_ROLES
            }
            if named:
                grads = torch.autograd.grad((y * noise("loss", *y.shape)).sum(), [*named.values()], allow_unused=True)
                yield from ((path, grad) for path, grad in zip(named, grads, strict=True) if grad is not None)
