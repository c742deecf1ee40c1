"""Specs with other values of a component's options: of one, of those that are valid only together, and draws of all."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from paribus.assembly.build import build
from paribus.assembly.components import make
from paribus.errors import ParibusError, SpecError
from paribus.kernels import KERNELS
from paribus.schema import Option, Range
from paribus.slots.component import Component
from paribus.specs import resolved
from paribus.testing.host_models import Case, HostModel, alternative_values, component_node
from paribus.testing.small_model import VOCABULARY

MAX_NUMERIC_VALUES: Final = 3  # other values of a number
OUTSIDE_MODELS: Final = ("corpus", "initialisation", "optimizer", "schedule", "tokenizer")  # built without a model
EXTREMES: Final = (1e3, -1e3)  # of a number without limits
Spec = Mapping[str, Any]
Path = tuple[str, ...]  # names of an option in its groups
Values = Mapping[Path, Any]  # values of some options


def flatten_options(options: Sequence[Option], path: Path = ()) -> Iterator[tuple[Path, Option]]:
    """Yield all options with their paths; groups are flattened."""
    for option in options:
        if option.kind.name == "group":
            yield from flatten_options(option.kind.options, (*path, option.name))
        else:
            yield (*path, option.name), option


def is_choice(option: Option) -> bool:
    """Return True if each value of the option must be different: a choice, or a switch."""
    return option.kind.name in ("choice", "bool")


def named(values: Values) -> str:
    """Return values of options as text."""
    return ", ".join(f"{'.'.join(path)}={value}" for path, value in values.items())


@contextmanager
def noted(values: Values) -> Iterator[None]:
    """Add the values of options to an error that they cause."""
    try:
        yield
    except Exception as error:
        if values and not getattr(error, "__notes__", None):
            error.add_note(f"with `{named(values)}`; expected a SpecError for values that are not valid")
        raise


def option_specs(
    case: Case, host: HostModel, count: int = MAX_NUMERIC_VALUES, draws: int = 0
) -> Iterator[tuple[str, Spec]]:
    """Yield the spec of a model, then with other valid values of the options, each with a text of the change.

    These are all values of a choice, and up to `count` of a number: one option at a time, or beside up to two others
    where they are valid only so. Then follow draws of values of all options.
    """
    yield "", host.spec
    singles, required = single_values(case, host, count), required_values(case, host, count)
    for values in (*singles, *required, *_drawn_values(case, host, [*singles, *required], draws)):
        spec = valid_spec(case, host, values)
        assert spec is not None
        yield f" with `{named(values)}`", spec


def option_models(
    case: Case, host: HostModel, count: int = MAX_NUMERIC_VALUES, draws: int = 0
) -> Iterator[tuple[str, HostModel]]:
    """Yield a model, then with other valid values of the options, as `option_specs` does."""
    for description, spec in option_specs(case, host, count, draws):
        label, is_preset = host.label + description, not description
        yield description, host._replace(label=label, spec=spec, is_preset=is_preset)


def changed_choices(case: Case, host: HostModel) -> HostModel | None:
    """Return the model with another value of every choice, as far as they are valid together; None if there is none."""
    choices = {path for path, option in flatten_options(case.entry.options) if is_choice(option)}
    values = combined_values(case, host, [item for item in single_values(case, host, 1) if choices >= item.keys()])
    spec = valid_spec(case, host, values)
    return None if spec is None else host._replace(label=f"{host.label} with `{named(values)}`", spec=spec)


def single_values(case: Case, host: HostModel, count: int) -> list[Values]:
    """Return valid values of single options: all of a choice, and up to `count` of a number."""
    values: list[Values] = []
    for path, option in flatten_options(case.entry.options):
        values_of_one = other_values(case, host, option) if option.kind.name not in ("list", "slot") else []
        changes = ({path: value} for value in values_of_one)
        valid = (change for change in changes if valid_spec(case, host, change) is not None)
        values += itertools.islice(valid, None if is_choice(option) else count)
    return values


def required_values(case: Case, host: HostModel, count: int = MAX_NUMERIC_VALUES) -> list[Values]:
    """Return values of up to three options of one group, for values that are not valid alone."""
    options = list(flatten_options(case.entry.options))
    required: list[Values] = []
    for path, option in options:
        changes = [{path: value} for value in other_values(case, host, option)]
        rejected = [change for change in changes if valid_spec(case, host, change) is None]
        if not is_choice(option):
            rejected = changes[:count] if len(rejected) == len(changes) else []
        group = [
            {other: values[0 if option_beside.sample is None else -1]}
            for other, option_beside in options
            if other != path and other[:-1] == path[:-1] and (values := other_values(case, host, option_beside))
        ]
        for change in rejected:
            wider = (*required, *group, *({**a, **b} for a, b in itertools.combinations(group, 2)))
            candidates = ({**values, **change} for values in wider)
            valid = (values for values in candidates if valid_spec(case, host, values) is not None)
            required += [values for values in itertools.islice(valid, 1) if values not in required]
    return required


def _drawn_values(case: Case, host: HostModel, values: Sequence[Values], draws: int) -> Iterator[Values]:
    """Yield valid combinations of some of the values, drawn at random."""
    rng = random.Random(f"options of {case.topic}")
    for _ in range(draws if len(values) > 1 else 0):
        drawn = combined_values(case, host, [item for item in rng.sample(values, len(values)) if rng.random() < 0.5])
        if len(drawn) > 1:
            yield drawn


def combined_values(case: Case, host: HostModel, values: Sequence[Values]) -> Values:
    """Return as many of the values together as are valid, from the first on."""
    combined: Values = {}
    for changes in values:
        if valid_spec(case, host, {**combined, **changes}) is not None:
            combined = {**combined, **changes}
    return combined


def other_values(case: Case, host: HostModel, option: Option) -> list[Any]:
    """Return other values of an option that its limits allow: also parts of a list, and components of a slot."""
    kind, sample = option.kind, option.sample
    if kind.name == "slot":
        entries = case.registry.index.entries[kind.slot].values()
        return [{"name": entry.name, **{each.name: each.sample for each in entry.options}} for entry in entries]
    if kind.name == "list":
        parts = [list(sample[:1]), list(sample[1:])] if isinstance(sample, list | tuple) and len(sample) > 1 else []
        parts += [[choice] for choice in kind.items[0].choices] if len(kind.items) == 1 else []
        return [part for index, part in enumerate(parts) if part not in (*parts[:index], sample)]
    values = alternative_values(option, host.spec)
    if sample is None:  # the first ones may all be smaller than what the default stands for
        values.reverse()
    return [value for value in values if value is None or is_in_range(option, value)]


def is_in_range(option: Option, value: float) -> bool:
    return all(limit.contains(value) for limit in option.limits if isinstance(limit, Range))


def valid_spec(case: Case, host: HostModel, values: Values) -> Spec | None:
    """Return the spec with other values of some options; None if it is invalid or the spec of the host itself."""
    key = ("spec", host.label, repr(sorted(values.items())))
    if key not in case.setups:
        spec = spec_with_options(case, host, values)
        with noted(values):
            case.setups[key] = None if spec is None or spec == host.spec or not _is_accepted(case, spec) else spec
    valid: Spec | None = case.setups[key]
    return valid


def spec_with_options(case: Case, host: HostModel, values: Values) -> Spec | None:
    """Return the spec with other values of some options; None if the rules of specs reject them."""
    slot, node = case.entry.slot, component_node(case)
    for path in sorted(values, key=len):  # a component of a slot, then its options
        inner: dict[str, Any] = node
        for key in path[:-1]:
            inner[key] = inner = dict(inner.get(key, {}))
        inner[path[-1]] = values[path]
    try:
        if slot == "objective":  # its corpus and topology are those of the host
            return resolved({**host.spec, slot: node}, registry=case.registry)
        return case.resolved(host.base, {**case.component_overrides(host.base, node), **host.neighbour})
    except SpecError:
        return None


def _is_accepted(case: Case, spec: Spec) -> bool:
    """Return True if the constructor accepts the options of the component in a spec."""
    slot = case.entry.slot
    try:
        if slot in OUTSIDE_MODELS:
            make(case.registry, slot, spec[slot], kind=Component)
        else:
            build(spec, case.registry, VOCABULARY, KERNELS)
    except (ParibusError, ValueError):
        return False
    return True
