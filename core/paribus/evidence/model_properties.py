"""Properties that components promise, checked on the model of a trial before its first step.

The conformance kit tests a component in small models and in float64. These checks test the model that is trained: its
sizes, its precision and its device, on examples of its first batch. They run on a copy with noise on its weights, since
a branch that starts at 0 hides what it does, and without dropout.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch import Tensor

from paribus.assembly.components import Classes
from paribus.evidence.dropout_properties import dropout_faults
from paribus.evidence.leaks import (
    EXAMPLES,
    FUTURE,
    STATE,
    Context,
    ModelPass,
    decoding_fault,
    fullest_row,
    leak_faults,
)
from paribus.evidence.objective_properties import loss_faults
from paribus.evidence.process_state import process_state
from paribus.evidence.property_names import DECODING
from paribus.models.assemble import build_model
from paribus.models.evaluate import evaluation_mode
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.random_keys import key32
from paribus.slots.component import Component
from paribus.slots.tokenizer import Vocabulary

TRAINING: Final = "computes something else in training"
GRADIENTS: Final = "has other gradients than its loss"
PRECISION: Final = "has other gradients in this precision"

WEIGHT_NOISE: Final = 0.5  # relative to the weights of a matrix
VECTOR_NOISE: Final = 0.1
TOLERANCE: Final = 1e-4
HALF_TOLERANCE: Final = 0.1
DOUBLE_TOLERANCE: Final = 1e-9
GRADIENT_TOLERANCE: Final = 0.05
HALF_GRADIENT_TOLERANCE: Final = 0.5
SMALL_SHARE: Final = 0.01  # of the norm of all gradients: those that are zero but for rounding are much smaller
HALF_SMALL_SHARE: Final = 0.1
BYTES_PER_PARAMETER: Final = 32  # of copies in float32 and float64, and their gradients in float64
MEMORY_SHARE: Final = 0.5  # of this machine, besides the training
DIFFERENCE_STEPS: Final = (1e-6, 1e-5, 1e-8)  # a mismatch at some steps only is due to rounding, or to kinks nearby
DIFFERENCE_TOLERANCE: Final = 1e-3


def broken_properties(
    model: Model, classes: Classes, vocabulary: Vocabulary, batch: Batch, context: Context
) -> dict[str, str]:
    """Return the properties that the components of a model lack, each with an example; empty if all hold.

    `context` is the precision of training steps. In half precision, rounding hides small effects, so what a token reads
    is tested in float64 as well.
    """
    _check_memory(model)
    with process_state(key32("properties"), 0.0, model.device):
        batch = batch._replace(counts=None, micro_batches=1)
        replica = _replica(model, {**model.spec, "dropout": 0.0}, classes, vocabulary)
        add_noise(replica)
        double = copy.deepcopy(replica).double()
        passes = [_model_pass(replica, context)]
        if passes[0].is_half:
            passes.append(ModelPass(double, nullcontext, DOUBLE_TOLERANCE))
        faults = dict(fault for forward in reversed(passes) for fault in leak_faults(forward, batch))
        if faults.keys() & {STATE, EXAMPLES}:
            return faults
        example = batch.rows([row := fullest_row(batch)])
        if FUTURE not in faults and (
            fault := decoding_fault(ModelPass(double, nullcontext, DOUBLE_TOLERANCE), example)
        ):
            faults[DECODING] = fault
        for forward in passes:
            faults |= _mode_faults(forward, example)
        others = [other for other in range(len(batch.index)) if other != row]
        faults |= loss_faults(replica, example, batch.rows(others[:1] or [row]))
        if TRAINING not in faults:
            faults |= _gradient_faults(passes[0], double, example)
        if model.spec["dropout"] and not _declares(replica, "stochastic", default=False):
            del double, passes, forward
            with_dropout = _replica(model, model.spec, classes, vocabulary)
            with_dropout.load_state_dict(replica.state_dict())
            del replica
            faults |= dropout_faults(ModelPass(with_dropout.double(), nullcontext, DOUBLE_TOLERANCE), example)
        return faults


def trained_faults(model: Model, batch: Batch, context: Context) -> dict[str, str]:
    """Return the tokens that a trained model reads and must not, each with an example.

    A component may have learned to read them, or begun to after some steps.
    """
    with process_state(key32("properties"), 0.0, model.device), evaluation_mode(model):
        faults = leak_faults(_model_pass(model, context), batch._replace(counts=None, micro_batches=1))
        return {name: f"after training, {fault}" for name, fault in faults}


def _model_pass(model: Model, context: Context) -> ModelPass:
    with context():
        is_half = torch.is_autocast_enabled(model.device.type) or next(model.parameters()).dtype.itemsize == 2
    return ModelPass(model, context, HALF_TOLERANCE if is_half else TOLERANCE, is_half)


def _check_memory(model: Model) -> None:
    """Raise an error before copies of the model would take too much of the memory of this machine."""
    needed = BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in model.parameters())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if model.device.type == "cpu" and needed > MEMORY_SHARE * memory:
        raise MemoryError(f"copies in float64 would take {needed / 2**30:.1f} of {memory / 2**30:.1f} GiB")


def _replica(model: Model, spec: Mapping[str, Any], classes: Classes, vocabulary: Vocabulary) -> Model:
    """Return a model of another spec with the weights, the teacher, the device and the dtype of a model."""
    replica = build_model(spec, classes, vocabulary)
    replica.load_state_dict(model.state_dict())
    if model.teacher is not None:
        replica.set_teacher(copy.deepcopy(model.teacher))
    return replica.to(model.device, next(model.parameters()).dtype).eval()


def add_noise(model: Model) -> None:
    """Add noise to every parameter, so that no branch is 0."""
    with torch.no_grad():
        for parameter in model.parameters():
            scale = VECTOR_NOISE
            if parameter.ndim >= 2:
                typical = float(parameter.float().square().mean().sqrt())
                scale = WEIGHT_NOISE * max(typical, parameter.shape[-1] ** -0.5)
            noise = torch.randn(parameter.shape, device=parameter.device, dtype=torch.float32)
            parameter.add_(noise.to(parameter.dtype), alpha=scale)


def _mode_faults(forward: ModelPass, example: Batch) -> Iterator[tuple[str, str]]:
    """Yield an output without dropout that differs in training mode, and leave the model in this mode."""
    evaluated = forward.hidden(example)
    forward.model.train()
    if not _declares(forward.model, "stochastic", default=False) and forward.differs(
        evaluated, forward.hidden(example), example
    ):
        yield TRAINING, "without dropout, its output in training is not that in evaluation"


def _gradient_faults(forward: ModelPass, double: Model, example: Batch) -> Iterator[tuple[str, str]]:
    """Yield gradients in training mode that are not those in float64, or not those of the output."""
    double.train()
    if _declares(double, "stochastic", default=False):
        return
    for part in forward.hidden(example):
        expected = _gradients(double, example, part)
        path, error = _gradient_error(_gradients(forward.model, example, part, forward.context), expected, forward)
        if error > (HALF_GRADIENT_TOLERANCE if forward.is_half else GRADIENT_TOLERANCE):
            yield PRECISION, f"the gradient of `{path}` is not that in float64"
            return
        errors = (_difference_error(double, example, part, expected, step) for step in DIFFERENCE_STEPS)
        is_exact = not _declares(double, "exact_gradients", default=True, value=False)
        if is_exact and all(error > DIFFERENCE_TOLERANCE for error in errors):
            yield GRADIENTS, "they differ from finite differences in float64"
            return


def _declares(model: Model, trait: str, *, default: bool, value: bool = True) -> bool:
    """Return whether a component of the model has this value of a trait."""
    return any(
        module.traits.get(trait, default) is value for module in model.modules() if isinstance(module, Component)
    )


def _loss(model: Model, batch: Batch, part: str) -> Tensor:
    """Return a loss of all hidden states of a part, their sum with random weights, and its auxiliary loss."""
    run = model.run(batch, ())
    hidden = run.output(part).hidden
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0)).to(hidden.device, hidden.dtype)
    loss: Tensor = (hidden * weights).sum().double() / hidden.shape[-1] ** 0.5
    auxiliary = run.auxiliary()
    return loss if auxiliary is None else loss + auxiliary.double()


def _gradients(model: Model, batch: Batch, part: str, context: Context = nullcontext) -> dict[str, Tensor]:
    """Return the gradients of the loss of a part, in float64, by parameter."""
    named = {path: parameter for path, parameter in model.named_parameters() if parameter.requires_grad}
    with torch.enable_grad():
        with context():
            loss = _loss(model, batch, part)
        grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        path: (grad.to_dense() if grad.is_sparse else grad).double()
        for path, grad in zip(named, grads, strict=True)
        if grad is not None
    }


def _gradient_error(
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], forward: ModelPass
) -> tuple[str, float]:
    """Return the largest relative error of a gradient, with its path.

    A share of the norm of all gradients is added to that of each: gradients that are zero but for rounding differ.
    """
    norms = {path: float(value.norm()) for path, value in expected.items()}
    floor = (HALF_SMALL_SHARE if forward.is_half else SMALL_SHARE) * sum(norm**2 for norm in norms.values()) ** 0.5
    errors = {
        path: float((actual[path] - value).norm() if path in actual else value.norm()) / ((norms[path] + floor) or 1.0)
        for path, value in expected.items()
    }
    path = max(errors, key=lambda name: errors[name], default="")
    return path, errors.get(path, 0.0)


def _difference_error(model: Model, batch: Batch, part: str, gradients: Mapping[str, Tensor], step: float) -> float:
    """Return the relative error of the derivative along a random direction of all parameters with a gradient.

    At a kink within one step, the gradient equals the difference of one side.
    """
    parameters = {path: parameter for path, parameter in model.named_parameters() if path in gradients}

    def directions() -> Iterator[tuple[str, Tensor]]:  # drawn again each time, as they are as large as the model
        generator = torch.Generator(model.device).manual_seed(1)
        for path, parameter in parameters.items():
            yield path, torch.randn(parameter.shape, generator=generator, device=model.device, dtype=torch.float64)

    def move(distance: float) -> None:
        for path, direction in directions():
            parameters[path].add_(direction, alpha=distance)

    losses: list[float] = []
    with torch.no_grad():
        terms = torch.stack([(gradients[path] * direction).sum() for path, direction in directions()])
        move(-step)
        for _ in range(3):
            losses.append(float(_loss(model, batch, part)))
            move(step)
        move(-2 * step)
    before, here, after = losses
    differences = ((after - before) / (2 * step), (after - here) / step, (here - before) / step)
    return min(abs(difference - float(terms.sum())) for difference in differences) / (1 + float(terms.norm()))
