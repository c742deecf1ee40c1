"""Check of the options of a component: their values have effects, in each kind of model and beside other options."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor

from paribus.errors import SpecError, join_names
from paribus.schema import Option
from paribus.slots.component import Component
from paribus.slots.norm import Norm
from paribus.testing import corpus_checks, measure_checks, objective_options, optimizer_checks, tokenizer_checks
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict, causal
from paribus.testing.option_specs import (
    EXTREMES,
    MAX_NUMERIC_VALUES,
    Path,
    Spec,
    Values,
    combined_values,
    flatten_options,
    is_choice,
    is_in_range,
    named,
    noted,
    other_values,
    required_values,
    spec_with_options,
)
from paribus.testing.small_model import SmallModel, max_difference, noise

OPTION_LENGTH: Final = 20  # tokens; larger numbers may have equal effects
SHORT: Final = 1e-6  # length of short vectors: an `eps` may have an effect on these only
MIN_SHARE: Final = 0.05  # of the channels or layers of a small model; smaller numbers are no shares
ROUNDING: Final = 1e-12  # above the difference of two kernels, below the effect of an option
MAX_VALUES_BESIDE: Final = 2  # values of an option, and of others beside it: the nearest to the default
DIRECTIONS: Final = ("bidirectional", "causal", "ahead", "future")  # in descriptions of options of such stacks only
MAX_VALUES: Final = 8  # values of a number that are tried until one has an effect


class Behaviour(NamedTuple):
    """What the options of a slot change: `of` returns it for a spec, and None if the spec is not valid."""

    of: Callable[[Case, HostModel, Spec], Any]
    noun: str  # "weights and output"
    is_same: Callable[[Any, Any], bool] = operator.eq
    is_exempt: Callable[[Case, Option], bool] = lambda case, option: False
    rules: Callable[[Case, HostModel], Verdict] = lambda case, host: HOLDS  # of the slot, for its options
    depends_on_model: bool = False
    in_models: bool = False  # numbers differ from each other, and options have effects beside other choices
    in_stacks: bool = False  # and in bidirectional and causal stacks


def options(case: Case, host: HostModel) -> Verdict:
    """Each value of a choice, and other values of a number, change what the component does, in each kind of model.

    These are weights, outputs and auxiliary losses of a model; examples and losses, documents, ids, steps, factors and
    values of the other slots. An option may have its effect beside a value of another one only, if it has none by
    itself. In models, values of a number differ from each other, bidirectional and causal stacks each show an effect,
    and so does the model in which all choices are changed, unless the description of the option names the stacks or the
    other option.
    """
    behaviour = BEHAVIOURS[case.entry.slot]
    trials = _Trials(case, behaviour)
    if not case.entry.options or trials.behaviour(host, {}) is None:
        return DOES_NOT_APPLY
    return next(trials.faults(), HOLDS) or behaviour.rules(case, host)


@final
@dataclass
class _Trials:
    """Behaviours of a component with values of its options."""

    case: Case
    slot: Behaviour
    effective: dict[Path, list[Any]] = field(default_factory=dict)  # values with an effect by themselves

    def behaviour(self, host: HostModel, values: Values) -> Any:
        """Return the behaviour with other values of some options; None if they are not valid."""
        spec = self.spec(host, values)
        key = ("behaviour", host.label, "" if spec is None else repr(spec[self.case.entry.slot]))
        if spec is not None and key not in self.case.setups:
            try:
                with noted(values):
                    self.case.setups[key] = self.slot.of(self.case, host, spec)
            except SpecError:
                self.case.setups[key] = None
        return self.case.setups.get(key)

    def spec(self, host: HostModel, values: Values) -> Spec | None:
        """Return the spec of a model with other values of some options; None if the rules of specs reject them."""
        key = ("resolved", host.label, repr(sorted(values.items())))
        if key not in self.case.setups:
            self.case.setups[key] = spec_with_options(self.case, host, values) if values else host.spec
        spec: Spec | None = self.case.setups[key]
        return spec

    @property
    def presets(self) -> list[HostModel]:
        presets = [host for host in self.case.host_models if host.is_preset]
        return presets if self.slot.depends_on_model else presets[:1]

    def faults(self) -> Iterator[str]:
        """Yield a message for each option without an effect."""
        options = [pair for pair in self.options() if not self.slot.is_exempt(self.case, pair[1])]
        for path, option in options:
            fault = self._equal_values(path, option)
            if fault:
                yield f"the option `{'.'.join(path)}` has no effect{fault}"
        if self.slot.in_models:
            yield from self._stack_faults() if self.slot.in_stacks else ()
            yield from self._neighbour_faults(options)

    def options(self) -> Iterator[tuple[Path, Option]]:
        """Yield all options; also those of the component in a slot of its own, such as an expert with experts."""
        for path, option in flatten_options(self.case.entry.options):
            yield path, option
            if self.slot.in_models and option.kind.slot == self.case.entry.slot:
                nested = flatten_options(self.case.entry.options, path)
                yield from (pair for pair in nested if pair[1].kind.name != "slot")

    def contexts(self, path: Path) -> Iterator[Values]:
        """Yield values of other options, beside which an option may have its effect."""
        host = self.presets[0]
        if self._is_nested(path):
            yield {path[:1]: {"name": self.case.entry.name}}
        for values in required_values(self.case, host) if self.slot.in_models else ():
            yield {other: value for other, value in values.items() if other != path}
        for other, option in self.options():
            values_beside = other_values(self.case, host, option) if other != path else []
            limit = None if option.kind.name == "slot" else MAX_VALUES_BESIDE
            yield from ({other: value} for value in values_beside[:limit])

    def _equal_values(self, path: Path, option: Option) -> str:
        """Return the text about two values that are the same everywhere, or "".

        Values of a choice differ from each other, and those of a number in models, unless both are large. One other
        number has to have an effect.
        """
        values = other_values(self.case, self.presets[0], option)
        values += [value for value in EXTREMES if option.kind.name == "float" and is_in_range(option, value)]
        tried: list[Any] = []
        effective = self.effective.setdefault(path, [])
        minimum = MAX_NUMERIC_VALUES if self.slot.in_models else 1  # numbers to try
        for value in values:
            result = self._differ(path, option.sample, value, [{}])
            tried += [] if result is None else [value]
            effective += [value] if result else []
            is_number = not is_choice(option) and option.kind.name != "list"
            if is_number and (len(tried) == MAX_VALUES or (effective and len(tried) >= minimum)):
                break
        for value, other in self._pairs(path, option, values, tried):
            if (
                not (_is_large(value) and _is_large(other))
                and not _is_near(value, other)
                and self._differ(path, value, other) is False
            ):
                return f": {other!r} gives the same {self.slot.noun} as {value!r}"
        if not effective and not is_choice(option) and (tried or self._is_nested(path)):
            some = (tried or values)[:MAX_VALUES_BESIDE]
            results = {self._differ(path, option.sample, value) for value in some}
            if False in results and True not in results:
                return f": {some[0]!r} gives the same {self.slot.noun} as {option.sample!r}"
        return ""

    def _pairs(self, path: Path, option: Option, values: list[Any], tried: list[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield the values of an option that must differ from each other; `tried` are those that are valid alone."""
        distinct: list[Any] = []
        if is_choice(option):
            rest = [value for value in values if value not in tried]  # valid beside the same values, if at all
            yield from itertools.combinations([option.sample, *rest] if self._is_nested(path) else rest, 2)
            distinct = [option.sample, *tried]
        elif option.kind.name == "list" and len(option.kind.items) == 1 and option.kind.items[0].choices:
            distinct = tried
        elif option.kind.name in ("int", "float") and self.slot.in_models:
            distinct = [value for value in (option.sample, *tried[:MAX_NUMERIC_VALUES]) if value is not None]
        yield from itertools.combinations(distinct, 2)

    def _is_nested(self, path: Path) -> bool:
        """Return True for an option of the component in a slot of its own."""
        return len(path) > 1 and any(other == path[:1] for other, _ in flatten_options(self.case.entry.options))

    def _differ(self, path: Path, value: Any, other: Any, contexts: Iterable[Values] | None = None) -> bool | None:
        """Return True if two values differ in some model and context; None if no model accepts both."""
        result = None
        for context in itertools.chain([{}], self.contexts(path)) if contexts is None else contexts:
            for host in self.presets[: 1 if context else None]:
                differs = self._changes(host, {**context, path: value}, {**context, path: other})
                if differs:
                    return True
                result = result if differs is None else differs
        return result

    def _changes(self, host: HostModel, values: Values, others: Values) -> bool | None:
        """Return True if a model has two behaviours; None if one is invalid, or both are the same spec."""
        specs = [self.spec(host, each) for each in (values, others)]
        if None in specs or specs[0] == specs[1]:
            return None
        behaviour, other = self.behaviour(host, values), self.behaviour(host, others)
        return None if behaviour is None or other is None else not self.slot.is_same(behaviour, other)

    def _stack_faults(self) -> Iterator[str]:
        """Yield a message if an option has an effect in bidirectional stacks only, or in causal ones only."""
        stacks: dict[bool, list[HostModel]] = {}
        topologies = self.case.registry.index.entries["topology"]
        for host in self.case.host_models:
            if (host.is_preset or host.neighbour) and len(topologies[host.spec["topology"]["name"]].parts) == 1:
                stacks.setdefault(causal(self.case, host.spec), []).append(host)
        docs = {path: option.doc for path, option in self.options()}
        for path, values in self.effective.items() if len(stacks) > 1 else ():
            if any(word in docs[path] for word in DIRECTIONS):
                continue
            for hosts in stacks.values():
                results: set[bool | None] = set()
                for host, value in itertools.product(hosts, values[:MAX_NUMERIC_VALUES]):
                    results.add(self._changes(host, {}, {path: value}))
                    if True in results:
                        break
                if False in results and True not in results:
                    yield (
                        f"the option `{'.'.join(path)}` has no effect in models such as {hosts[0].label}; expected an "
                        f"effect, unless its description says so, with one of {join_names(DIRECTIONS)}"
                    )

    def _neighbour_faults(self, options: Iterable[tuple[Path, Option]]) -> Iterator[str]:
        """Yield a message if an option has no effect in the model in which all choices are changed."""
        host = self.presets[0]
        effective = {
            path: [value for value in values if self._changes(host, {}, {path: value})][:2]
            for path, values in self.effective.items()
        }
        choices = [{path: effective[path][0]} for path, option in options if is_choice(option) and effective.get(path)]
        together = combined_values(self.case, host, choices)
        for path, option in options:
            beside = {other: value for other, value in together.items() if other != path}
            if self._all_same(host, beside, path, effective.get(path, [])):
                for other, value in beside.items():
                    is_named = any(f"`{name}`" in option.doc for name in (".".join(other), other[-1]))
                    if not is_named and self._all_same(host, {other: value}, path, effective[path]):
                        yield (
                            f"the option `{'.'.join(path)}` has no effect with {named({other: value})}; expected an "
                            f"effect, unless its description names `{'.'.join(other)}`"
                        )

    def _all_same(self, host: HostModel, context: Values, path: Path, values: Iterable[Any]) -> bool:
        results = {self._changes(host, context, {**context, path: value}) for value in values}
        return False in results and True not in results


def _is_large(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) >= OPTION_LENGTH


def _is_near(value: Any, other: Any) -> bool:
    """Return whether two shares may be rounded to the same number of channels or layers of a small model."""
    are_shares = all(isinstance(each, float) and MIN_SHARE <= each < 0.5 for each in (value, other))
    return are_shares and 0.5 <= value / other <= 2


class Trace(NamedTuple):
    """Outputs of a model (scores, hidden states in training, auxiliary loss) and its initial parameters."""

    outputs: list[Tensor]
    parameters: dict[str, Tensor]


def _trace(case: Case, host: HostModel, spec: Spec) -> Trace:
    """Trace a model before and after perturbation: a parameter initialized to 0 has an effect only after it."""
    model = SmallModel(spec, case.registry, perturbed=False)
    parameters: dict[str, Tensor] = {
        f"{name}.{path}": parameter.detach().clone()
        for name, child in model.children.items()
        for path, parameter in child.named_parameters()
    }
    initial_outputs = _run_model(model)
    model.perturb()
    short = [
        module(noise("short vectors", 1, 2, model.stack().shape.width) * SHORT)
        for module in itertools.islice((part for part in model.topology.modules() if isinstance(part, Norm)), 1)
        if case.entry.slot == "norm"
    ]
    return Trace([*initial_outputs, *_run_model(model), *short], parameters)


def _run_model(model: SmallModel) -> list[Tensor]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        stream = model.with_segments(model.tokens(2, OPTION_LENGTH))
        torch.manual_seed(0)
        scores = model.scores(model.hidden(stream))
        model.topology.train()
        torch.manual_seed(0)
        updated = [part for part in model.topology.modules() if isinstance(part, Component)]
        for part in updated:
            part.in_step = True
        training = model.output(stream)
        for part in updated:
            part.in_step = False
            part.after_step(lambda share: share)
        model.topology.eval()
        later = model.hidden(stream)
    auxiliary = [] if training.auxiliary is None else [training.auxiliary.reshape(1)]
    return [scores, training.hidden, later, *auxiliary]


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


OF_STACKS: Final = Behaviour(
    _trace, "weights and output", _is_same_trace, depends_on_model=True, in_models=True, in_stacks=True
)
BEHAVIOURS: Final[Mapping[str, Behaviour]] = {
    **dict.fromkeys(("attention", "position", "norm", "placement", "feedforward", "embedding", "topology"), OF_STACKS),
    "initialisation": OF_STACKS._replace(in_stacks=False),
    "objective": Behaviour(objective_options.behaviour, "examples and losses", objective_options.is_same_behaviour),
    "corpus": Behaviour(
        corpus_checks.behaviour,
        "documents",
        corpus_checks.has_same_documents,
        is_exempt=corpus_checks.is_descriptive_option,
        rules=corpus_checks.fingerprints,
    ),
    "tokenizer": Behaviour(tokenizer_checks.behaviour, "ids and vocabulary"),
    "optimizer": Behaviour(optimizer_checks.steps_behaviour, "steps", rules=optimizer_checks.rates_of_tensors),
    "schedule": Behaviour(optimizer_checks.factors_behaviour, "factors"),
    "measure": Behaviour(measure_checks.behaviour, "values", depends_on_model=True),
}
