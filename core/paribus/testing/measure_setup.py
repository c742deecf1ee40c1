"""Small model, data and evaluated model of the measure under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, final

import torch

from paribus.assembly.components import make
from paribus.datamodule.synthetic_corpus import encode_synthetic_corpus
from paribus.datamodule.token_store import EncodedCorpus
from paribus.errors import ParibusError
from paribus.evidence.model_properties import add_noise
from paribus.inference.generate import translate_validation
from paribus.models.assemble import build_data, build_model
from paribus.models.evaluate import evaluation_mode
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.slots.measure import EvaluatedModel, Measure
from paribus.testing.host_models import Case, HostModel
from paribus.train.measures import MeasuredModel, measured_model

LENGTH: Final = 32
BATCHES: Final = (8, 3)  # batch sizes
CURVE: Final = (0.05, 0.2, 0.3, 0.7, 0.45, 1.5)  # every metric at each evaluation
MEMBERS: Final = frozenset(name for name in vars(EvaluatedModel) if not name.startswith("_"))

Values = Mapping[str, float | str]


class Setup(NamedTuple):
    """Model of a spec with its encoded data."""

    spec: Mapping[str, Any]
    model: Model
    text: EncodedCorpus


class Measured(NamedTuple):
    """Result of a measurement, with the members of the model that the measure used."""

    values: Values
    names: set[str]
    used: set[str]


@final
class ObservedModel:
    """Evaluated model that has only what `EvaluatedModel` declares, some of it replaced, and records what is used."""

    def __init__(self, model: MeasuredModel, replaced: Mapping[str, Any], used: set[str]) -> None:
        self._model, self._replaced, self._used = model, replaced, used

    def __getattr__(self, name: str) -> Any:
        if name not in MEMBERS:
            raise AttributeError(f"`EvaluatedModel` declares no `{name}`")
        self._used.add(name)
        return self._replaced[name] if name in self._replaced else getattr(self._model, name)


Replace = Callable[[MeasuredModel], Mapping[str, Any]]


def run_measure(
    case: Case,
    setup: Setup,
    *,
    batch_size: int = BATCHES[0],
    options: Mapping[str, Any] | None = None,
    replace: Replace | None = None,
    factor: float = 1.0,
    measure: Measure | None = None,
) -> Measured:
    """Measure a model; `factor` multiplies its learning curve, `replace` changes members of the evaluated model."""
    evaluated = evaluated_model(case, setup, batch_size, factor)
    measure = measure or make_measure(case, setup, options or {})
    used: set[str] = set()
    observed: Any = evaluated if replace is None else ObservedModel(evaluated, replace(evaluated), used)
    with evaluation_mode(setup.model):
        return Measured(measure.measure(observed), set(measure.names(observed.trial)), used)


def evaluated_model(case: Case, setup: Setup, batch_size: int = BATCHES[0], factor: float = 1.0) -> MeasuredModel:
    """Return a model with its data and a learning curve, multiplied by `factor`."""
    spec = {**setup.spec, "data": {**setup.spec["data"], "batch": batch_size}}
    data = build_data(spec, case.registry, setup.text)
    evaluated = measured_model(spec, case.registry, setup.model, data, translate_validation)
    metrics = [f"val/{name}" for name in evaluated.trial.metrics]
    evaluated.learning_curve = [
        {"step": 10 * index, **dict.fromkeys(metrics, factor * value)} for index, value in enumerate(CURVE, start=1)
    ]
    return evaluated


def make_measure(case: Case, setup: Setup, options: Mapping[str, Any]) -> Measure:
    """Return the measure with other values of some options."""
    (node,) = setup.spec["measure"]
    return make(case.registry, "measure", {**node, **options}, kind=Measure)


def measure_setup(case: Case, host: HostModel) -> Setup | None:
    """Return the model of a spec and its data, made once; None if a library of the measure is not installed.

    A list that may be empty, such as one of scores, is empty if a library is missing.
    """
    key = ("measured", host.label)
    if key not in case.setups:
        dims = host.spec["dims"] if case.small_model(host).has_fixed_length else {**host.spec["dims"], "length": LENGTH}
        spec = {**host.spec, "dims": dims}
        text = encode_synthetic_corpus(spec, case.registry)
        model = build_model(spec, case.registry, text.vocabulary)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            add_noise(model)  # predictions of initial weights are nearly equal for all tokens
        setup = Setup(spec, model, text)
        (node,) = spec["measure"]
        empty_lists: list[dict[str, Any]] = [
            {option.name: []} for option in case.entry.options if option.kind.name == "list"
        ]
        setups = (setup._replace(spec={**spec, "measure": [{**node, **changes}]}) for changes in ({}, *empty_lists))
        case.setups[key] = next((setup for setup in setups if _is_installed(case, setup)), None)
    cached: Setup | None = case.setups[key]
    return cached


def _is_installed(case: Case, setup: Setup) -> bool:
    try:
        run_measure(case, setup)
    except ParibusError as error:
        missing = [str(problem) for problem in error.problems if problem.code == "not-installed"]
        case.obstacles.extend(missing)
        return not missing
    except Exception:  # the check of the values reports it
        return True
    return True


def used_members(case: Case, setup: Setup) -> set[str]:
    """Return the members of the evaluated model that a measure uses."""
    return run_measure(case, setup, replace=lambda model: {}).used


def changed_batches(change: Callable[[Batch], Batch]) -> Replace:
    """Return a replacement of the batches by changed ones."""

    def replace(model: MeasuredModel) -> Mapping[str, Any]:
        return {"batches": lambda examples, *, times=1: map(change, model.batches(examples, times=times))}

    return replace
