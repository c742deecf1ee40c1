"""What a measure finds of a small model that has learned nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from paribus.assembly.components import make
from paribus.errors import ParibusError
from paribus.inference.translate import translate_validation
from paribus.slots.measure import Measure
from paribus.testing.host_models import Case, Cell
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.synthetic_corpus import babbled
from paribus.train.assemble import build_data, build_model
from paribus.train.evaluate import evaluation_mode
from paribus.train.measures import measured_model as ask
from paribus.train.model import Model

LENGTH: Final = 32
BATCHES: Final = (8, 3)
CLOSE: Final = 1e-4  # float32, summed in another order

Answers = Mapping[str, float | str]


def measuring(case: Case, cell: Cell) -> Verdict:
    """A measure finds what it names, the same each time and whatever the batches, and draws and changes nothing.

    One whose library is not installed is not asked.
    """
    dims = cell.spec["dims"] if case.specimen(cell).whole else {**cell.spec["dims"], "length": LENGTH}
    spec = {**cell.spec, "dims": dims}
    model = build_model(spec, case.registry, babbled(spec, case.registry).vocabulary)
    try:
        return next(_faults(case, spec, model), HOLDS)
    except ParibusError as error:
        if any(problem.code == "not-installed" for problem in error.problems):
            return DOES_NOT_APPLY
        raise


def _faults(case: Case, spec: Mapping[str, Any], model: Model) -> Iterator[str]:
    state, before = torch.get_rng_state(), {name: each.clone() for name, each in model.state_dict().items()}
    first, named = _answers(case, spec, model, BATCHES[0])
    unnamed = {name for name, value in first.items() if name not in named and not isinstance(value, str)}
    if unnamed or not named <= set(first):
        yield f"it says that it measures {sorted(named)}, and measured {sorted(first)}"
    for name, value in first.items():
        if not isinstance(value, str) and not math.isfinite(value):
            yield f"`{name}` is {value}; where there is no number, the reason takes its place"
    if _answers(case, spec, model, BATCHES[0])[0] != first:
        yield "it finds something else of the same model the second time"
    otherwise, _ = _answers(case, spec, model, BATCHES[1])
    for name, value in first.items():
        if not _alike(value, otherwise[name]):
            found = f"`{name}` is {value} in batches of {BATCHES[0]} examples"
            yield f"{found}, and {otherwise[name]} in batches of {BATCHES[1]}"
    if not torch.equal(torch.get_rng_state(), state):
        yield "it draws from the global generator, and so moves the dropout of whatever is trained on"
    if any(not torch.equal(each, before[name]) for name, each in model.state_dict().items()):
        yield "it changes the model that it measures"


def _answers(case: Case, spec: Mapping[str, Any], model: Model, rows: int) -> tuple[Answers, set[str]]:
    """What is found with batches of so many examples, and what was to be found."""
    text = babbled(spec, case.registry)
    spec = {**spec, "data": {**spec["data"], "batch": rows}}
    asked = ask(spec, case.registry, model, build_data(spec, case.registry, text), translate_validation)
    asked.learning_curve = [{"step": 1, **{f"val/{name}": 1.0 for name in asked.trial.metrics}}]
    (node,) = spec["measure"]
    measure = make(case.registry, "measure", node, kind=Measure)
    with evaluation_mode(model):
        return measure.measure(asked), set(measure.names(asked.trial))


def _alike(one: float | str, other: float | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return abs(one - other) <= CLOSE * max(1.0, abs(one))
