"""Check of the options of a component: each has an effect; and specs with other values of the options."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from paribus.assembly.build import build
from paribus.assembly.components import make
from paribus.errors import ParibusError, SpecError
from paribus.kernels import KERNELS
from paribus.schema import Option, Range
from paribus.slots.component import Component
from paribus.testing.host_models import (
    DOES_NOT_APPLY,
    HOLDS,
    Case,
    HostModel,
    Verdict,
    alternative_values,
    component_node,
)
from paribus.testing.small_model import VOCABULARY, SmallModel, max_difference

OPTION_LENGTH = 20
ROUNDING = 1e-12  # above the difference of two kernels, below the effect of an option
MAX_NUMERIC_VALUES = 3  # alternative values of a numeric option
OUTSIDE_MODELS: Final = ("initialisation", "optimizer", "schedule", "tokenizer")  # built without a model
Path = tuple[str, ...]  # names of an option in its groups
Values = Mapping[Path, Any]  # values of some options


def options(case: Case, host: HostModel) -> Verdict:
    """Each value of a choice, and some other value of each number, changes the weights or the output of a model."""
    if not case.entry.options:
        return DOES_NOT_APPLY
    preset_traces = [(host, _trace(host.spec, case)) for host in case.host_models if host.is_preset]
    for path, option in flatten_options(case.entry.options):
        fault = _option_fault(case, preset_traces, path, option)
        if fault:
            return fault
    return HOLDS


def flatten_options(options: Sequence[Option], path: Path = ()) -> Iterator[tuple[Path, Option]]:
    """Yield all options with their paths; groups are flattened."""
    for option in options:
        if option.kind.name == "group":
            yield from flatten_options(option.kind.options, (*path, option.name))
        else:
            yield (*path, option.name), option


def _option_fault(case: Case, preset_traces: Sequence[tuple[HostModel, Trace]], path: Path, option: Option) -> str:
    is_choice = option.kind.name in ("choice", "bool")
    ignored: list[Any] = []
    count = 0
    for value in alternative_values(option, preset_traces[0][0].spec):
        if count == MAX_NUMERIC_VALUES and not is_choice:
            break
        changes = [_changes_model(case, host, trace, path, value) for host, trace in preset_traces]
        if all(change is None for change in changes):
            continue  # no valid value here
        count += 1
        if not any(changes):
            ignored.append(value)
        elif not is_choice:
            return HOLDS
    if ignored:
        return (
            f"the option `{'.'.join(path)}` has no effect: {ignored[0]!r} gives the same weights and output as "
            f"{option.sample!r}"
        )
    return HOLDS


def _changes_model(case: Case, host: HostModel, preset_trace: Trace, path: Path, value: Any) -> bool | None:
    """Return True if the value changes this model; None if it is invalid or equal to the current value."""
    try:
        spec = spec_with_option(case, host, path, value)
        return None if spec in (None, host.spec) else not _is_same_trace(_trace(spec or {}, case), preset_trace)
    except SpecError:
        return None


def spec_with_option(case: Case, host: HostModel, path: Path, value: Any) -> Mapping[str, Any] | None:
    """Return the spec of a host model with another value of an option; None if it is invalid."""
    return _spec_with_options(case, host, {path: value})


def _spec_with_options(case: Case, host: HostModel, values: Values) -> Mapping[str, Any] | None:
    node = component_node(case)
    for path, value in values.items():
        inner: dict[str, Any] = node
        for key in path[:-1]:
            inner[key] = inner = dict(inner.get(key, {}))
        inner[path[-1]] = value
    try:
        return case.resolved(host.label, case.component_overrides(host.label, node))
    except SpecError:
        return None


def option_specs(
    case: Case, host: HostModel, count: int = MAX_NUMERIC_VALUES, draws: int = 0
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the spec of a host model, then with other valid values of the options, each with a text of the change.

    These are all values of a choice, and up to `count` of a number: one option at a time, or beside up to two others
    where they are valid only so. Then follow draws of values of all options.
    """
    yield "", host.spec
    values = _other_values(case, host, count)
    for changes in (*values, *_drawn_values(case, host, values, draws)):
        spec = _valid_spec(case, host, changes)
        assert spec is not None
        names = ", ".join(f"{'.'.join(path)}={value}" for path, value in changes.items())
        yield f" with `{names}`", spec


def _other_values(case: Case, host: HostModel, count: int) -> list[Values]:
    """Return valid values of single options, and for values that are valid only beside others, the fewest of these."""
    options = list(flatten_options(case.entry.options))
    valid: list[Values] = []
    required: list[Values] = []
    rejected: list[tuple[Path, Values]] = []
    for path, option in options:
        is_choice = option.kind.name in ("choice", "bool")
        changes = [{path: value} for value in _values_in_range(option, host)]
        accepted = (change for change in changes if _valid_spec(case, host, change) is not None)
        single = list(accepted if is_choice else itertools.islice(accepted, count))
        valid += single
        if is_choice or not single:
            rejected += [(path, change) for change in changes[: None if is_choice else count] if change not in single]
    for path, change in rejected:
        group = [
            {other: values[-1]}
            for other, option in options
            if other != path and other[:-1] == path[:-1] and (values := _values_in_range(option, host))
        ]
        wider = itertools.chain(required, group, ({**a, **b} for a, b in itertools.combinations(group, 2)))
        candidates = ({**values, **change} for values in wider)
        required += itertools.islice((item for item in candidates if _valid_spec(case, host, item) is not None), 1)
    return valid + [values for index, values in enumerate(required) if values not in required[:index]]


def _drawn_values(case: Case, host: HostModel, values: Sequence[Values], draws: int) -> Iterator[Values]:
    """Yield valid combinations of some of the values, drawn at random."""
    rng = random.Random(f"options of {case.topic}")
    for _ in range(draws if len(values) > 1 else 0):
        drawn: Values = {}
        for changes in rng.sample(values, len(values)):
            if rng.random() < 0.5 and _valid_spec(case, host, {**drawn, **changes}) is not None:
                drawn = {**drawn, **changes}
        if len(drawn) > 1:
            yield drawn


def _values_in_range(option: Option, host: HostModel) -> list[Any]:
    """Return other values of an option that its limits allow."""
    limits = [limit for limit in option.limits if isinstance(limit, Range)]
    values = alternative_values(option, host.spec)
    return [value for value in values if value is None or all(limit.contains(value) for limit in limits)]


def _valid_spec(case: Case, host: HostModel, values: Values) -> Mapping[str, Any] | None:
    """Return the spec with other values of some options; None if it is invalid or the spec of the host itself."""
    key = ("spec", host.label, repr(sorted(values.items())))
    if key not in case.setups:
        spec = _spec_with_options(case, host, values)
        case.setups[key] = None if spec is None or spec == host.spec or not _is_accepted(case, spec) else spec
    valid: Mapping[str, Any] | None = case.setups[key]
    return valid


def _is_accepted(case: Case, spec: Mapping[str, Any]) -> bool:
    """Return True if the constructor accepts the options of the component in a spec."""
    try:
        if case.entry.slot in OUTSIDE_MODELS:
            make(case.registry, case.entry.slot, spec[case.entry.slot], kind=Component)
        else:
            build(spec, case.registry, VOCABULARY, KERNELS)
    except (ParibusError, ValueError):
        return False
    return True


def ineffective_option(case: Case, host: HostModel, behaviour: Callable[[Mapping[str, Any]], Any]) -> str:
    """Return the first option of a component outside models that changes no behaviour, or "".

    `behaviour` returns what a spec gives, and None if the spec is not valid. Each value of a choice must change it; of
    a number, one value is enough. An option may have its effect beside a value of another option.
    """
    options = list(flatten_options(case.entry.options))
    for path, option in options:
        if _ignored_values(case, host, {}, path, option, behaviour) and all(
            _ignored_values(case, host, {other_path: value}, path, option, behaviour)
            for other_path, other in options
            if other_path != path
            for value, _ in _valid_values(case, host, {}, other_path, other)[:MAX_NUMERIC_VALUES]
        ):
            return ".".join(path)
    return HOLDS


def _ignored_values(
    case: Case,
    host: HostModel,
    fixed: Values,
    path: Path,
    option: Option,
    behaviour: Callable[[Mapping[str, Any]], Any],
) -> list[Any]:
    """Return the values that change nothing beside the fixed values; none if one of a number has an effect."""
    base = behaviour(_valid_spec(case, host, fixed) or host.spec)
    ignored: list[Any] = []
    for value, spec in _valid_values(case, host, fixed, path, option):
        changed = behaviour(spec)
        if changed is not None and changed == base:
            ignored.append(value)
        elif changed is not None and option.kind.name not in ("choice", "bool"):
            return []
    return ignored


def _valid_values(
    case: Case, host: HostModel, fixed: Values, path: Path, option: Option
) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return the other values of an option that are valid beside the fixed values, with their specs."""
    values = alternative_values(option, host.spec)
    specs = [(value, _valid_spec(case, host, {**fixed, path: value})) for value in values]
    return [(value, spec) for value, spec in specs if spec is not None]


class Trace(NamedTuple):
    """Outputs of a model (scores, hidden states in training, auxiliary loss) and its initial parameters."""

    outputs: list[Tensor]
    parameters: dict[str, Tensor]


def _trace(spec: Mapping[str, Any], case: Case) -> Trace:
    """Trace a model before and after perturbation: a parameter initialized to 0 has an effect only after it."""
    model = SmallModel(spec, case.registry, perturbed=False)
    parameters: dict[str, Tensor] = {
        f"{name}.{path}": parameter.detach().clone()
        for name, child in model.children.items()
        for path, parameter in child.named_parameters()
    }
    initial_outputs = _run_model(model)
    model.perturb()
    return Trace([*initial_outputs, *_run_model(model)], parameters)


def _run_model(model: SmallModel) -> list[Tensor]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        stream = model.with_segments(model.tokens(2, OPTION_LENGTH))
        torch.manual_seed(0)
        scores = model.scores(model.hidden(stream))
        model.topology.train()
        torch.manual_seed(0)
        training = model.output(stream)
        model.topology.eval()
    return [scores, training.hidden, *([] if training.auxiliary is None else [training.auxiliary.reshape(1)])]


def _is_same_trace(trace: Trace, other_trace: Trace) -> bool:
    """Compare two traces; parameters that only one of them has are ignored, as they are unused if outputs agree."""
    shared_paths = trace.parameters.keys() & other_trace.parameters.keys()
    return (
        len(trace.outputs) == len(other_trace.outputs)
        and all(
            tensor.shape == other_tensor.shape and max_difference(tensor, other_tensor) <= ROUNDING
            for tensor, other_tensor in zip(trace.outputs, other_trace.outputs, strict=True)
        )
        and all(torch.equal(trace.parameters[path], other_trace.parameters[path]) for path in shared_paths)
    )
