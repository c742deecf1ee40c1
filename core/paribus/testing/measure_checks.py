"""Checks of measures: values, side effects, padding, options and dependence on the model."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from paribus.assembly.components import make
from paribus.errors import ParibusError
from paribus.inference.generate import translate_validation
from paribus.parts.batch import PADDING, Batch
from paribus.slots.measure import EvaluatedModel, Measure
from paribus.testing.data_checks import encode_synthetic_corpus
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.purity_checks import external_reads, generator_states, restored_settings, seed_generators
from paribus.train.assemble import build_data, build_model
from paribus.train.evaluate import evaluation_mode
from paribus.train.lightning_module import Model
from paribus.train.measures import MeasuredModel, measured_model
from paribus.train.token_store import EncodedCorpus

LENGTH: Final = 32
BATCHES: Final = (8, 3)  # batch sizes
RELATIVE_TOLERANCE: Final = 1e-4  # float32 sums in another order
CURVE: Final = (0.05, 0.2, 0.3, 0.7, 0.45, 1.5)  # every metric at each evaluation
SCALE: Final = 20.0  # of the scores of perfect predictions
DIRECTIONS: Final = {"loss": -1, "perplexity": -1, "accuracy": 1}  # of names, as `compare` knows them
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


def _measure(
    case: Case,
    setup: Setup,
    *,
    batch_size: int = BATCHES[0],
    options: Mapping[str, Any] | None = None,
    replace: Replace | None = None,
    factor: float = 1.0,
) -> Measured:
    """Measure a model; `factor` multiplies its learning curve, `replace` changes members of the evaluated model."""
    spec = {**setup.spec, "data": {**setup.spec["data"], "batch": batch_size}}
    data = build_data(spec, case.registry, setup.text)
    evaluated = measured_model(spec, case.registry, setup.model, data, translate_validation)
    metrics = [f"val/{name}" for name in evaluated.trial.metrics]
    evaluated.learning_curve = [
        {"step": 10 * index, **dict.fromkeys(metrics, factor * value)} for index, value in enumerate(CURVE, start=1)
    ]
    (node,) = spec["measure"]
    measure = make(case.registry, "measure", {**node, **(options or {})}, kind=Measure)
    used: set[str] = set()
    observed: Any = evaluated if replace is None else ObservedModel(evaluated, replace(evaluated), used)
    with evaluation_mode(setup.model):
        return Measured(measure.measure(observed), set(measure.names(evaluated.trial)), used)


def _setup(case: Case, host: HostModel) -> Setup | None:
    """Return the model of a spec and its data, made once; None if a library of the measure is not installed."""
    key = ("measured", host.label)
    if key not in case.setups:
        dims = host.spec["dims"] if case.small_model(host).has_fixed_length else {**host.spec["dims"], "length": LENGTH}
        spec = {**host.spec, "dims": dims}
        text = encode_synthetic_corpus(spec, case.registry)
        setup = Setup(spec, build_model(spec, case.registry, text.vocabulary), text)
        case.setups[key] = setup if _is_installed(case, setup) else None
    cached: Setup | None = case.setups[key]
    return cached


def _is_installed(case: Case, setup: Setup) -> bool:
    try:
        _measure(case, setup)
    except ParibusError as error:
        missing = [str(problem) for problem in error.problems if problem.code == "not-installed"]
        case.obstacles.extend(missing)
        return not missing
    except Exception:  # the check of the values reports it
        return True
    return True


def measure_values(case: Case, host: HostModel) -> Verdict:
    """A measure returns a number or a reason for each of its names, equal for any batch size and repetition.

    A measure whose library is not installed is skipped.
    """
    setup = _setup(case, host)
    return DOES_NOT_APPLY if setup is None else next(_value_faults(case, setup), HOLDS)


def _value_faults(case: Case, setup: Setup) -> Iterator[str]:
    values, names, _ = _measure(case, setup)
    unnamed = {name for name, value in values.items() if name not in names and not isinstance(value, str)}
    if unnamed or not names <= set(values):
        yield f"`measure` returns {sorted(values)}; expected the names of `names`: {sorted(names)}"
    for name, value in values.items():
        if not isinstance(value, str) and not (isinstance(value, int | float) and math.isfinite(value)):
            yield f"`{name}` is {value}; expected a finite number, or a string with the reason"
    if _measure(case, setup).values != values:
        yield "a second measurement of the same model gives other values. Usual cause: unseeded random draws"
    other_values = _measure(case, setup, batch_size=BATCHES[1]).values
    for name, value in values.items():
        if not _is_close(value, other_values[name]):
            message = f"`{name}` is {value} with batch size {BATCHES[0]}, but {other_values[name]} with {BATCHES[1]}"
            yield f"{message}. Usual cause: an average of batch averages"


def _is_close(a: float | str, b: float | str) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return a == b
    return abs(a - b) <= RELATIVE_TOLERANCE * max(1.0, abs(a))


def measure_side_effects(case: Case, host: HostModel) -> Verdict:
    """A measurement leaves parameters, buffers, modes, hooks, gradients, learning curve and generators unchanged."""
    setup = _setup(case, host)
    if setup is None:
        return DOES_NOT_APPLY
    curves: list[Any] = []

    def keep_curve(model: MeasuredModel) -> Mapping[str, Any]:
        curves.extend([model.learning_curve, copy.deepcopy(model.learning_curve)])
        return {}

    model = build_model(setup.spec, case.registry, setup.text.vocabulary).eval()
    fresh = setup._replace(model=model)  # the other one has been measured
    before = _model_state(model)
    with restored_settings():
        seed_generators(7)
        generators = generator_states()
        _measure(case, fresh)
        advanced = [name for name, state in generator_states().items() if state != generators[name]]
    changed = [name for name, value in _model_state(model).items() if value != before[name]]
    if advanced:
        return f"it draws from the global generator of {advanced[0]}, which changes later training; use `model.draw`"
    if changed:
        return f"it changes the {changed[0]} of the model that it measures"
    _measure(case, setup, replace=keep_curve)
    return "it changes the learning curve" if curves[0] != curves[1] else HOLDS


def _model_state(model: Model) -> dict[str, Any]:
    """Return what a measurement must not change, by name."""
    modules = dict(model.named_modules())
    parameters = dict(model.named_parameters())
    return {
        "parameters or buffers": {name: value.tolist() for name, value in model.state_dict().items()},
        "training mode": {name: module.training for name, module in modules.items()},
        "hooks": {name: (len(m._forward_hooks), len(m._forward_pre_hooks)) for name, m in modules.items()},
        "trainable parameters": {name: value.requires_grad for name, value in parameters.items()},
        "gradients": {name: value.grad is None for name, value in parameters.items()},
    }


def measure_inputs(case: Case, host: HostModel) -> Verdict:
    """A measure reads the members of `EvaluatedModel` only, and no clock, file or environment variable."""
    setup = _setup(case, host)
    if setup is None:
        return DOES_NOT_APPLY
    expected = _measure(case, setup).values
    if _measure(case, setup, replace=lambda model: {}).values != expected:
        return "its values change if the model has only the members of `EvaluatedModel`"
    folder = Path(inspect.getfile(case.component)).resolve().parent
    reads = external_reads(lambda: _measure(case, setup), folder=folder)
    return f"it calls {reads[0]}; expected a value that depends on the model only" if reads else HOLDS


def measure_model(case: Case, host: HostModel) -> Verdict:
    """Other weights and another learning curve change a value."""
    setup = _setup(case, host)
    if setup is None or "generate" in _used(case, setup):  # untrained models may generate the same text
        return DOES_NOT_APPLY
    spec = {**setup.spec, "seed": setup.spec["seed"] + 1}
    other = Setup(spec, build_model(spec, case.registry, setup.text.vocabulary), setup.text)
    values = _measure(case, setup).values
    if all(isinstance(value, str) for value in values.values()):
        return DOES_NOT_APPLY
    if _measure(case, other, factor=0.25).values == values:
        return "two models with other weights and another learning curve have the same values"
    return HOLDS


def _used(case: Case, setup: Setup) -> set[str]:
    return _measure(case, setup, replace=lambda model: {}).used


def measure_padding(case: Case, host: HostModel) -> Verdict:
    """The tokens of padding change no value."""
    setup = _setup(case, host)
    if setup is None or case.small_model(host).has_fixed_length:
        return DOES_NOT_APPLY
    used = _used(case, setup)
    # Metrics and generated text are computed by the engine.
    if "batches" not in used or used & {"metrics", "generate"} or not case.all_attentions_declare(host, "documents"):
        return DOES_NOT_APPLY
    texts = sorted(set(range(setup.text.vocabulary.size)) - setup.text.vocabulary.reserved)
    values, other_values = (
        _measure(case, setup, replace=_padded(token)).values for token in (texts[0], texts[len(texts) // 2])
    )
    for name, value in values.items():
        if not _is_close(value, other_values[name]):
            return f"`{name}` changes from {value} to {other_values[name]} with the tokens of padding"
    return HOLDS


def _padded(token: int) -> Replace:
    """Return batches in which `token` is padding: two thirds of every second example, and the end of the others."""

    def pad(batch: Batch) -> Batch:
        body = batch.streams["body"]
        rows, length = body.tokens.shape
        start = torch.where(torch.arange(rows) % 2 == 0, length // 3, length - 3).unsqueeze(1)
        is_padding = (torch.arange(length) >= start).to(body.tokens.device)
        documents = torch.zeros_like(body.tokens) if body.documents is None else body.documents
        padded = body._replace(
            tokens=body.tokens.masked_fill(is_padding, token), documents=documents.masked_fill(is_padding, PADDING)
        )
        return batch._replace(streams={**batch.streams, "body": padded})

    def replace(model: MeasuredModel) -> Mapping[str, Any]:
        return {"batches": lambda examples, *, times=1: map(pad, model.batches(examples, times=times))}

    return replace


def measure_directions(case: Case, host: HostModel) -> Verdict:
    """Values named `loss`, `perplexity` or `accuracy` are better for perfect predictions than for uniform ones."""
    setup = _setup(case, host)
    if setup is None or "logits" not in _used(case, setup):
        return DOES_NOT_APPLY
    perfect, uniform = (_measure(case, setup, replace=_predictions(scale)).values for scale in (SCALE, 0.0))
    compared = False
    for name, value in perfect.items():
        direction, other = DIRECTIONS.get(name.rpartition(".")[2]), uniform[name]
        if direction is None or isinstance(value, str) or isinstance(other, str):
            continue
        compared = True
        if direction * value <= direction * other:
            return f"`{name}` is {value:.4g} for perfect predictions, and {other:.4g} for uniform ones"
    return HOLDS if compared else DOES_NOT_APPLY


def _predictions(scale: float) -> Replace:
    """Return scores of the next token: 0 for all others, `scale` for the right one."""

    def replace(model: MeasuredModel) -> Mapping[str, Any]:
        def logits(batch: Batch) -> Tensor:
            scores, tokens = model.logits(batch), batch.streams["body"].tokens
            if scores.shape[:2] != tokens.shape or scores.shape[-1] < model.vocabulary.size:
                return scores
            return scale * functional.one_hot(tokens.roll(-1, 1), scores.shape[-1]).to(scores.dtype)

        return {"logits": logits}

    return replace


def behaviour(case: Case, host: HostModel, spec: Mapping[str, Any]) -> Values | None:
    """Return the values of a measure; None if it needs a library, or text of an untrained model, which may be equal."""
    setup = _setup(case, host)
    if setup is None or "generate" in _used(case, setup):
        return None
    return _measure(case, setup, options=spec["measure"][0]).values
