"""Checks of measures on a small untrained model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from paribus.assembly.components import make
from paribus.errors import ParibusError
from paribus.inference.generate import translate_validation
from paribus.slots.measure import Measure
from paribus.testing.host_models import Case, HostModel
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.synthetic_corpus import encode_synthetic_corpus
from paribus.train.assemble import build_data, build_model
from paribus.train.evaluate import evaluation_mode
from paribus.train.lightning_module import Model
from paribus.train.measures import measured_model as ask

LENGTH: Final = 32
BATCHES: Final = (8, 3)
RELATIVE_TOLERANCE: Final = 1e-4  # float32 sums in another order

Answers = Mapping[str, float | str]


def measure_values(case: Case, cell: HostModel) -> Verdict:
    """A measure returns the values that it names, deterministically and for any batch size, without side effects.

    A measure whose library is not installed is skipped.
    """
    dims = cell.spec["dims"] if case.small_model(cell).has_fixed_length else {**cell.spec["dims"], "length": LENGTH}
    spec = {**cell.spec, "dims": dims}
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
        yield f"expected values for {sorted(named)}, got {sorted(results)}"
    for name, value in results.items():
        if not isinstance(value, str) and not math.isfinite(value):
            yield f"`{name}` is {value}; expected a finite number, or a string with the reason"
    if _measure(case, spec, model, BATCHES[0])[0] != results:
        yield "the second measurement of the same model gives other values"
    other_results, _ = _measure(case, spec, model, BATCHES[1])
    for name, value in results.items():
        if not _is_close(value, other_results[name]):
            prefix = f"`{name}` is {value} in batches of {BATCHES[0]} examples"
            yield f"{prefix}, and {other_results[name]} in batches of {BATCHES[1]}"
    if not torch.equal(torch.get_rng_state(), state):
        yield "it draws from the global generator, which changes the dropout of later training"
    if any(not torch.equal(parameter, parameters[name]) for name, parameter in model.state_dict().items()):
        yield "it changes the model that it measures"


def _measure(case: Case, spec: Mapping[str, Any], model: Model, batch_size: int) -> tuple[Answers, set[str]]:
    """Return the measured values for a batch size, and the names that the measure declares."""
    text = encode_synthetic_corpus(spec, case.registry)
    spec = {**spec, "data": {**spec["data"], "batch": batch_size}}
    evaluated = ask(spec, case.registry, model, build_data(spec, case.registry, text), translate_validation)
    evaluated.learning_curve = [{"step": 1, **{f"val/{name}": 1.0 for name in evaluated.trial.metrics}}]
    (node,) = spec["measure"]
    measure = make(case.registry, "measure", node, kind=Measure)
    with evaluation_mode(model):
        return measure.measure(evaluated), set(measure.names(evaluated.trial))


def _is_close(a: float | str, b: float | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return abs(a - b) <= RELATIVE_TOLERANCE * max(1.0, abs(a))
