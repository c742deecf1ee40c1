"""Checks of the options of an objective: each has an effect, and the rules of the slot hold for its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from paribus.assembly.build import build
from paribus.datamodule.data import VALIDATION
from paribus.errors import ParibusError, SpecError
from paribus.kernels import KERNELS
from paribus.parts.shape import Load
from paribus.schema import Option, Range
from paribus.testing.example_checks import EPOCHS, content_fault, fit_fault, forms_alike, longer_setup, origin_fault
from paribus.testing.head_checks import cost_fault
from paribus.testing.host_models import (
    DOES_NOT_APPLY,
    HOLDS,
    Case,
    HostModel,
    Verdict,
    alternative_values,
)
from paribus.testing.loss_checks import is_likelihood, sums_fault
from paribus.testing.loss_input_checks import gradient_fault
from paribus.testing.metric_checks import compute_metrics
from paribus.testing.objective_checks import padding_fault, single_examples_fault, traits_fault
from paribus.testing.objective_setup import ObjectiveSetup, build_setup, difference, objective_setup, tensors
from paribus.testing.option_specs import Spec, Values, flatten_options, is_choice, spec_with_options
from paribus.testing.small_model import max_difference

SHORT_LENGTHS: Final = (12, 16)  # some texts of the synthetic corpus are longer
MAX_VARIANTS: Final = 2  # values of a number for which the rules are checked
MAX_LIMIT: Final = 1024  # a larger limit is too expensive
LAYERS: Final = [0, -1]
# (epoch, seed, progress) of the batches that are compared
TRACED: Final = ((VALIDATION, 0, 1.0), (0, 7, 0.5), (1, 7, 0.5), (5, 8, 0.25))


def option_values(case: Case, host: HostModel) -> Verdict:
    """The rules of examples and losses hold for each value of a choice, and two values of each number."""
    if not case.entry.options:
        return DOES_NOT_APPLY
    base = objective_setup(case, host)
    assert base is not None
    for values in _variants(case, host):
        setup = _changed_setup(case, host, values)
        if setup is None:
            continue
        try:
            fault = _rules_fault(case, setup, base)
        except SpecError:  # found in the forward pass: the value does not fit this model
            continue
        if fault:
            changes = ", ".join(f"{'.'.join(path)}={value}" for path, value in values.items())
            return f"with {changes}: {fault}"
    return HOLDS


def _rules_fault(case: Case, setup: ObjectiveSetup, base: ObjectiveSetup) -> str:
    """Return a message if examples or losses of a variant break a rule; only the cheap rules."""
    changes_loss = not difference(setup.batch(), base.batch(), setup.name)  # not the examples
    is_former = setup.examples.former is not None
    forms_others = is_former and not forms_alike(case, setup, base)
    longer = longer_setup(case, setup) if is_former else None
    return (
        traits_fault(setup)
        or content_fault(setup, EPOCHS[:2])
        or single_examples_fault(setup)
        or (origin_fault(case, setup) if forms_others else fit_fault(case, setup) if is_former else HOLDS)
        or sums_fault(setup, rows=3, scaled_labels=0)
        or (_likelihood_fault(setup, base) if changes_loss else HOLDS)
        or gradient_fault(setup)
        or cost_fault(setup)
        or padding_fault(setup if longer is None else longer)
        or HOLDS
    )


def _likelihood_fault(setup: ObjectiveSetup, base: ObjectiveSetup) -> str:
    """Return a message if the loss in evaluation is a negative log-likelihood without the option only."""
    for term in setup.label_keys:
        if term in base.label_keys and is_likelihood(base, term) and not is_likelihood(setup, term):
            return f"the loss `{term}` in evaluation is no negative log-likelihood, as it is with the default"
    return HOLDS


def _variants(case: Case, host: HostModel) -> Iterator[Values]:
    """Yield changes of options: each choice, each item of a list of choices, two values of each number."""
    options = list(flatten_options(case.entry.options))
    for path, option in options:
        values = [*_limits(option), *alternative_values(option, host.spec)]
        if option.kind.name == "list" and len(option.kind.items) == 1:
            values += [[choice] for choice in option.kind.items[0].choices]
        count = 0
        for index, value in enumerate(values):
            if value == option.sample or value in values[:index] or (count == MAX_VARIANTS and not is_choice(option)):
                continue
            if _changed_setup(case, host, {path: value}) is not None:
                count += 1
                yield {path: value}
    layers = {path: LAYERS for path, option in options if _is_list_of_numbers(option)}
    dims = host.spec["dims"]
    sizes = {path: dims[path[-1]] for path, option in options if option.kind.name == "int" and path[-1] in dims}
    if layers:
        yield {**layers, **sizes}


def _limits(option: Option) -> list[float]:
    """Return the largest and the smallest valid value of a number, if they are small."""
    limits = [limit for limit in option.limits if isinstance(limit, Range)]
    if option.kind.name not in ("int", "float"):
        return []
    return [value for limit in limits for value in (limit.high, limit.low) if value is not None and value <= MAX_LIMIT]


def _is_list_of_numbers(option: Option) -> bool:
    return option.kind.name == "list" and len(option.kind.items) == 1 and option.kind.items[0].name == "int"


def behaviour(case: Case, host: HostModel, spec: Spec) -> Mapping[str, Tensor] | None:
    """Return all that options may change: examples, losses, gradients, metrics, parameters and costs."""
    setup = _setup_of(case, spec)
    try:
        return None if setup is None else _trace(case, setup)
    except (ParibusError, ValueError):
        return None


def _changed_setup(case: Case, host: HostModel, values: Values) -> ObjectiveSetup | None:
    """Return the setup with other values of some options; None if they are not valid."""
    spec = spec_with_options(case, host, values)
    return None if spec is None or spec == host.spec else _setup_of(case, spec)


def _setup_of(case: Case, spec: Spec) -> ObjectiveSetup | None:
    """Return the setup of a spec, made once; None if it is not valid."""
    key = ("option", repr(spec["objective"]))
    if key not in case.setups:
        try:
            case.setups[key] = build_setup(case, spec)
        except (ParibusError, ValueError):
            case.setups[key] = None
    setup: ObjectiveSetup | None = case.setups[key]
    return setup


def _trace(case: Case, setup: ObjectiveSetup) -> Mapping[str, Tensor]:
    objective = setup.model.objective(setup.name)
    trace: dict[str, Tensor] = {name: value.detach() for name, value in objective.named_parameters()}
    for epoch, seed, progress in TRACED:
        batch = setup.batch(epoch=epoch, seed=seed, progress=progress)
        trace |= {f"{epoch} {key}": value for key, value in tensors(batch, setup.name).items()}
    load = Load(setup.length, setup.length, head_positions=objective.head_positions(setup.length))
    sizes = (objective.cost(load).flops, load.head_positions, setup.examples.count, objective.last_layer_reruns)
    trace["sizes"] = torch.tensor([*sizes, *_short_counts(case, setup)])
    trace["metrics"] = torch.tensor([*compute_metrics(setup, [batch]).values(), 0.0]).nan_to_num(-1.0)
    terms = setup.terms(batch)
    trace |= {f"{name} in evaluation": torch.stack([term.total.detach()]) for name, term in terms.items()}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        setup.model.train()
        terms = setup.terms(batch)
        weights = torch.tensor([term.weight for term in terms.values()], dtype=torch.float64)
        loss = (torch.stack([term.total for term in terms.values()]) * weights).sum()
        loss.backward()
        setup.model.eval()
    gradients = [parameter.grad.norm() for parameter in setup.model.parameters() if parameter.grad is not None]
    return trace | {"training": torch.stack([loss.detach(), *gradients])}


def _short_counts(case: Case, setup: ObjectiveSetup) -> list[int]:
    """Return the number of examples of shorter lengths, for which some texts of the corpus are too long."""
    if setup.examples.former is None or setup.model.topology.embedding.values_per_example is not None:
        return []
    counts = []
    for length in SHORT_LENGTHS:
        short = {**setup.spec, "dims": {**setup.spec["dims"], "length": length}}
        try:
            objective: Any = build(short, case.registry, setup.text.vocabulary, KERNELS).objectives[setup.name]
            counts.append(objective.example_count(setup.examples.tokens, length))
        except ParibusError:
            counts.append(-1)
    return counts


def is_same_behaviour(trace: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return trace.keys() == other.keys() and all(
        value.shape == other[key].shape
        and (
            max_difference(value.unsqueeze(-1), other[key].unsqueeze(-1)) <= 1e-12
            if value.is_floating_point()
            else torch.equal(value, other[key])
        )
        for key, value in trace.items()
    )
