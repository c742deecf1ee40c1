"""Checks of initial weights, training steps and measures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from paribus.assembly.components import make
from paribus.errors import DataError, ParibusError
from paribus.inference.generate import translate_validation
from paribus.slots.measure import Measure
from paribus.testing.data_checks import encode_synthetic_corpus
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.small_model import SmallModel
from paribus.train.assemble import build_data, build_model
from paribus.train.evaluate import evaluation_mode
from paribus.train.lightning_module import Model
from paribus.train.measures import measured_model

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


BATCHES: Final = (8, 3)
RELATIVE_TOLERANCE: Final = 1e-4  # float32 sums in another order

Values = Mapping[str, float | str]


def measure_values(case: Case, host: HostModel) -> Verdict:
    """A measure returns the values that it names, equal for any batch size and repetition, without side effects.

    A measure whose library is not installed is skipped.
    """
    dims = host.spec["dims"] if case.small_model(host).has_fixed_length else {**host.spec["dims"], "length": LENGTH}
    spec = {**host.spec, "dims": dims}
    model = build_model(spec, case.registry, encode_synthetic_corpus(spec, case.registry).vocabulary)
    try:
        return next(_measure_faults(case, spec, model), HOLDS)
    except ParibusError as error:
        if any(problem.code == "not-installed" for problem in error.problems):
            return DOES_NOT_APPLY
        raise


def _measure_faults(case: Case, spec: Mapping[str, Any], model: Model) -> Iterator[str]:
    state, parameters = (
        torch.get_rng_state(),
        {name: parameter.clone() for name, parameter in model.state_dict().items()},
    )
    results, named = _measure(case, spec, model, BATCHES[0])
    unnamed = {name for name, value in results.items() if name not in named and not isinstance(value, str)}
    if unnamed or not named <= set(results):
        yield f"`measure` returns {sorted(results)}; expected the names of `names`: {sorted(named)}"
    for name, value in results.items():
        if not isinstance(value, str) and not math.isfinite(value):
            yield f"`{name}` is {value}; expected a finite number, or a string with the reason"
    if _measure(case, spec, model, BATCHES[0])[0] != results:
        yield "a second measurement of the same model gives other values. Usual cause: unseeded random draws"
    other_results, _ = _measure(case, spec, model, BATCHES[1])
    for name, value in results.items():
        if not _is_close(value, other_results[name]):
            message = f"`{name}` is {value} with batch size {BATCHES[0]}, but {other_results[name]} with {BATCHES[1]}"
            yield f"{message}. Usual cause: an average of batch averages"
    if not torch.equal(torch.get_rng_state(), state):
        yield "it draws from torch's global generator, which changes the dropout of later training"
    if any(not torch.equal(parameter, parameters[name]) for name, parameter in model.state_dict().items()):
        yield "it changes parameters or buffers of the model that it measures"


def _measure(case: Case, spec: Mapping[str, Any], model: Model, batch_size: int) -> tuple[Values, set[str]]:
    """Return the measured values for a batch size, and the names that the measure declares."""
    text = encode_synthetic_corpus(spec, case.registry)
    spec = {**spec, "data": {**spec["data"], "batch": batch_size}}
    evaluated = measured_model(spec, case.registry, model, build_data(spec, case.registry, text), translate_validation)
    evaluated.learning_curve = [{"step": 1, **{f"val/{name}": 1.0 for name in evaluated.trial.metrics}}]
    (node,) = spec["measure"]
    measure = make(case.registry, "measure", node, kind=Measure)
    with evaluation_mode(model):
        return measure.measure(evaluated), set(measure.names(evaluated.trial))


def _is_close(a: float | str, b: float | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return abs(a - b) <= RELATIVE_TOLERANCE * max(1.0, abs(a))
