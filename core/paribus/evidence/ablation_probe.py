"""Probes whether each option that a variant sets has an effect: without it, does the model change or act differently?

A variant that changes nothing at all shows in its outputs and losses. Where a variant changes several things, one of
them may have no effect behind the others, so each is reverted by itself: a component to that of the baseline, an option
to its default or another value. Two specs with equal digests of their behavior on a few examples act alike there.
Parameters are perturbed first, since some components have no effect at their initial values.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from paribus.assembly.build import build
from paribus.assembly.components import make
from paribus.assembly.cost import count_parameters
from paribus.datamodule.data import VALIDATION
from paribus.datamodule.token_store import EncodedCorpus
from paribus.errors import ParibusError, SpecError
from paribus.evidence.digests import tensor_digest
from paribus.hookspecs import SLOTS
from paribus.kernels import KERNELS
from paribus.models.assemble import build_data, build_model
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.parts.random_draws import Draw
from paribus.parts.shape import Role
from paribus.random_keys import key32
from paribus.registry import Index, Registry
from paribus.schema import Option, Range
from paribus.slots.optimizer import Optimizer, TrainedTensor
from paribus.slots.schedule import Schedule
from paribus.specs import resolved
from paribus.specs.tree import get_path

Spec = Mapping[str, Any]

MAX_EXAMPLES: Final = 4
PERTURBATION: Final = 0.1  # scale of the noise that is added to parameters
SMALL_SCALE: Final = 1e-7  # factor for parameters: some options have an effect only on short vectors
SHALLOW_LAYERS: Final = 2
BATCH_WORK: Final = 2**34  # parameters times tokens in one batch, unless one example has more
MAX_WORK: Final = 2**38  # larger models are not run: probing would take longer than many training steps
SCHEDULE_STEPS: Final = 64
GRADIENT_SCALES: Final = (1.0, 1e-4, 1e-8)
UPDATED: Final[Mapping[Role, tuple[int, ...]]] = {"weight": (8, 6), "bias": (6,), "embedding": (5, 6)}
ERRORS: Final = (ParibusError, ValueError, RuntimeError, LookupError, TypeError, AssertionError, ArithmeticError)


class ProbeContext(NamedTuple):
    """Registry and corpus of the probed specs."""

    classes: Registry
    text: EncodedCorpus


def parameter_shapes(spec: Spec, context: ProbeContext) -> str | None:
    """Return the names and shapes of all parameters, without storage; None where the model cannot be built."""
    with suppress(*ERRORS):
        children = build(_without_sources(spec), context.classes, context.text.vocabulary, KERNELS).children()
        named = nn.ModuleDict(children).named_parameters(remove_duplicate=False)
        return repr(sorted((path, tuple(parameter.shape)) for path, parameter in named))
    return None


def shallow_behavior(spec: Spec, context: ProbeContext) -> str | None:
    """Return the behavior of the model with few layers, which nearly always tells two specs apart."""
    dims = spec["dims"]
    if not isinstance(dims["layers"], int) or dims["layers"] <= SHALLOW_LAYERS:
        return None
    return full_behavior({**spec, "dims": {**dims, "layers": SHALLOW_LAYERS}}, context)


def full_behavior(spec: Spec, context: ProbeContext) -> str | None:
    """Return a digest of the outputs in evaluation and in training, and of the gradients."""
    with suppress(*ERRORS):
        return _behavior_digest(*_build(spec, context))
    return None


def inference_behavior(spec: Spec, context: ProbeContext) -> str | None:
    """Return a digest of the behavior outside of training: decoding step by step, and nearly zero parameters."""
    with suppress(*ERRORS):
        model, batch = _build(spec, context)
        hashed = hashlib.sha256()
        _perturb(model)
        with torch.no_grad(), suppress(*ERRORS):  # some models cannot decode step by step
            for hidden in _decode(model.eval(), batch):
                hashed.update(tensor_digest(hidden).encode())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(SMALL_SCALE)
            for output in _outputs(model.eval(), batch):
                hashed.update(tensor_digest(output).encode())
        return hashed.hexdigest()
    return None


def schedule_factors(spec: Spec, context: ProbeContext) -> str | None:
    """Return the factor of the schedule at each step of a run."""
    with suppress(*ERRORS):
        schedule = make(context.classes, "schedule", spec["schedule"], kind=Schedule)
        return repr([schedule.factor(step, SCHEDULE_STEPS) for step in range(SCHEDULE_STEPS)])
    return None


def optimizer_updates(spec: Spec, context: ProbeContext) -> str | None:
    """Return a digest of the updates of a matrix, a vector and a table, with gradients of several scales."""
    with suppress(*ERRORS):
        generator = torch.Generator().manual_seed(0)
        parameters = [nn.Parameter(torch.randn(size, generator=generator)) for size in UPDATED.values()]
        component = make(context.classes, "optimizer", spec["optimizer"], kind=Optimizer)
        optimizer = component.build(list(map(TrainedTensor.of, parameters, UPDATED)))
        hashed = hashlib.sha256()
        for scale in GRADIENT_SCALES * 3:
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape, generator=generator) * scale
            optimizer.step()
            hashed.update("".join(map(tensor_digest, parameters)).encode())
        return hashed.hexdigest()
    return None


def _without_sources(spec: Spec) -> Spec:
    return {**spec, "from": None, "teacher": None}


def _build(spec: Spec, context: ProbeContext) -> tuple[Model, Batch]:
    """Return the model of a spec and a batch of validation examples."""
    plain = _without_sources(spec)
    children = build(plain, context.classes, context.text.vocabulary, KERNELS).children()
    work = count_parameters(children) * int(spec["dims"]["length"])
    if work > MAX_WORK:
        raise ValueError("the model is too large to be probed")
    model = build_model(plain, context.classes, context.text.vocabulary)
    data = build_data(plain, context.classes, context.text)
    count = min(max(1, min(MAX_EXAMPLES, BATCH_WORK // work)), data.val_count)
    model.tokenizer = context.text.tokenizer_fingerprint
    return model, data.val_examples.batch(Draw(0, VALIDATION, torch.arange(count)))


def _perturb(model: Model) -> None:
    for path, parameter in sorted(model.named_parameters()):
        generator = torch.Generator().manual_seed(key32("probe", path))
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=PERTURBATION)


def _behavior_digest(model: Model, batch: Batch) -> str:
    """Return a digest of names and shapes, of the outputs in evaluation and in training, and of the gradients."""
    hashed = hashlib.sha256()
    for path, parameter in sorted(model.named_parameters()):
        hashed.update(f"{path} {tuple(parameter.shape)}".encode())
    _perturb(model)
    with torch.no_grad():
        for output in _outputs(model.eval(), batch):
            hashed.update(tensor_digest(output).encode())
    training_outputs = _outputs(model.train(), batch)
    losses = [output.sum() for output in training_outputs if output.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    gradients = [parameter.grad for _, parameter in sorted(model.named_parameters())]
    for tensor in (*training_outputs, *gradients):
        hashed.update(b"-" if tensor is None else tensor_digest(tensor).encode())
    return hashed.hexdigest()


def _outputs(model: Model, batch: Batch) -> list[Tensor]:
    """Return the output of each part, the auxiliary losses, and the terms of the objectives."""
    torch.manual_seed(0)
    run = model.run(batch)
    outputs = [run.output(part.path) for part in model.topology.parts]
    tensors = [output.hidden for output in outputs]
    tensors += [output.auxiliary for output in outputs if output.auxiliary is not None]
    for name in model.evaluated:
        with suppress(*ERRORS):  # an objective that needs a teacher, which is left out here
            tensors += [term.total for term in model.objective(name)(run.of(name)).values()]
    return tensors


def _decode(model: Model, batch: Batch) -> Iterator[Tensor]:
    """Yield the hidden states of the first half of each example at once, and then of two tokens one by one."""
    tokens = batch.streams["body"].tokens
    cross = next(part.cross for part in model.topology.parts if part.path == "body")
    source = batch.streams[cross].tokens if cross is not None else None
    half, states = tokens.shape[1] // 2, model.start(len(tokens))
    for start, end in ((0, half), (half, half + 1), (half + 1, half + 2)):
        yield model.hidden(tokens[:, start:end], states, source=source)


Probe = Callable[[Spec, ProbeContext], str | None]
OptionEffect = Literal["has", "neutral", "ignored", "unknown"]

SLOT_PROBES: Final[Mapping[str, tuple[Probe, ...]]] = {
    "optimizer": (optimizer_updates,),
    "schedule": (schedule_factors,),
}
MODEL_PROBES: Final[tuple[Probe, ...]] = (parameter_shapes, shallow_behavior, full_behavior)  # the cheapest first
UNPROBED_SLOTS: Final = ("objective", "corpus", "tokenizer", "launcher", "measure")
MAX_ALTERNATIVES: Final = 4  # values that are tried in place of one that was set


@final
class Setting(NamedTuple):
    """A value that a variant sets, and alternatives to it, the default first."""

    path: str
    value: Any
    alternatives: tuple[Any, ...]

    @property
    def slot(self) -> str:
        return next(word for word in reversed(self.path.split(".")) if word in SLOTS)


@final
class ProbeResult(NamedTuple):
    """Dotted paths of what a variant sets, by effect."""

    probed: tuple[str, ...] = ()  # all options that could be probed
    ignored: tuple[str, ...] = ()  # options for which no other value makes a difference
    neutral: tuple[str, ...] = ()  # options with an effect only at another value or in step-by-step decoding
    same_as_baseline: tuple[str, ...] = ()  # components that act as the baseline's component does

    def to_json(self) -> dict[str, list[str]]:
        return {key: list(paths) for key, paths in self._asdict().items() if paths}


def probe_variant(
    spec: Spec,
    varied: Mapping[str, Any],
    classes: Registry,
    text: EncodedCorpus,
    baseline_values: Mapping[str, Any] | None = None,
) -> ProbeResult:
    """Revert each value that a variant sets, one by one. `baseline_values` are the baseline's at the varied keys.

    A variant that changes a single value is not probed: its certificate shows the same.
    """
    options = list(varied_options(spec, varied, classes.index)) if sum(1 for _ in _changes(varied)) > 1 else []
    swaps = list(_swaps(spec, baseline_values or {})) if len(varied) > 1 else []
    if not options and not swaps:
        return ProbeResult()
    with torch.random.fork_rng(devices=[]):  # models are probed on the CPU
        prober = _Prober(spec, ProbeContext(classes, text))
        effects = {setting.path: prober.effect(setting) for setting in options}
        unchanged = tuple(setting.path for setting in swaps if prober.acts_as_baseline(setting))
    return ProbeResult(
        probed=tuple(path for path, effect in effects.items() if effect != "unknown"),
        ignored=tuple(path for path, effect in effects.items() if effect == "ignored"),
        neutral=tuple(path for path, effect in effects.items() if effect == "neutral"),
        same_as_baseline=unchanged,
    )


@final
class _Prober:
    """Compares one spec with others that differ from it in one value; its own digests are computed once."""

    def __init__(self, spec: Spec, context: ProbeContext) -> None:
        self.spec = spec
        self.context = context
        self._digests: dict[Probe, str | None] = {}

    def effect(self, setting: Setting) -> OptionEffect:
        """Return the effect of an option in training; where its default acts the same, other values are tried."""
        probes = SLOT_PROBES.get(setting.slot, MODEL_PROBES)
        default, *alternatives = setting.alternatives
        differs = self._differs(probes, setting.path, (default,))
        if differs:
            return "has"
        others_differ = self._differs(probes, setting.path, alternatives)
        no_default = differs is None or default is None  # null may stand for the value that was set
        if others_differ:
            return "has" if no_default else "neutral"
        if others_differ is None and no_default:
            return "unknown"
        if setting.slot in SLOT_PROBES:
            return "ignored"
        return "neutral" if self._differs((inference_behavior,), setting.path, setting.alternatives) else "ignored"

    def acts_as_baseline(self, setting: Setting) -> bool:
        """Return True if a component acts as the baseline's does in training, where it fits the other components."""
        probes = SLOT_PROBES.get(setting.slot, MODEL_PROBES)
        fitting = [value for value in setting.alternatives if self._is_valid(setting.path, value)]
        return self._differs(probes, setting.path, fitting) is False

    def _is_valid(self, path: str, value: Any) -> bool:
        with suppress(SpecError):
            return bool(resolved(_without_sources(_with_value(self.spec, path, value)), registry=self.context.classes))
        return False

    def _differs(self, probes: Sequence[Probe], path: str, values: Sequence[Any]) -> bool | None:
        """Return True if any of these values acts differently from the current one; None if none could be tried."""
        tried = False
        for probe in probes:
            if probe not in self._digests:
                self._digests[probe] = probe(self.spec, self.context)
            expected = self._digests[probe]
            for value in values if expected is not None else ():
                digest = probe(_with_value(self.spec, path, value), self.context)
                if digest is not None and digest != expected:
                    return True
                tried |= digest is not None and probe is probes[-1]  # the earlier probes do not cover everything
        return False if tried else None


def _changes(varied: Mapping[str, Any]) -> Iterator[str]:
    for key, value in varied.items():
        yield key
        if isinstance(value, Mapping) and "name" in value:
            yield from (f"{key}.{option}" for option in value if option != "name")


def _swaps(spec: Spec, baseline_values: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield whole components that were varied, with the baseline's as the alternative."""
    for key, baseline_value in baseline_values.items():
        value, name = get_path(spec, key), key.rpartition(".")[2]
        is_component = name in SLOTS and name not in UNPROBED_SLOTS and isinstance(value, Mapping)
        if is_component and value != baseline_value:
            yield Setting(key, value, (baseline_value,))


def varied_options(spec: Spec, varied: Mapping[str, Any], index: Index) -> Iterator[Setting]:
    """Yield the options of components that a variant sets to other values than their defaults."""
    for key, value in varied.items():
        words = key.split(".")
        slots = [position for position, word in enumerate(words) if word in SLOTS]
        if not slots or words[0] in UNPROBED_SLOTS or words[slots[-1]] in UNPROBED_SLOTS:
            continue
        end = slots[-1] + 1
        node = get_path(spec, ".".join(words[:end]))
        if not isinstance(node, Mapping) or "name" not in node:
            continue
        inside = words[end:]
        option_paths = [inside] if inside else [path for path in _leaves(value) if path != ["name"]]
        options = index.find(words[end - 1], str(node["name"])).options
        for option_path in option_paths:
            option = _option(options, option_path)
            if option is None or option.kind.name in ("slot", "group"):
                continue
            path = ".".join([*words[:end], *option_path])
            current = get_path(spec, path)
            alternatives = tuple(islice(_alternatives(option, current), MAX_ALTERNATIVES))
            if current != option.sample and any(alternative is not None for alternative in alternatives):
                yield Setting(path, current, alternatives)


def _alternatives(option: Option, value: Any) -> Iterator[Any]:
    """Yield the default, or the example of an option without one, and then other valid values."""
    kind, tried = option.kind, [value]
    near: tuple[Any, ...] = ()
    if kind.name == "bool":
        near = (not value,)
    elif kind.name == "choice":
        near = kind.choices
    elif kind.name in ("int", "float") and isinstance(value, int | float):
        near = (value // 2, value + 1, value * 2) if kind.name == "int" else (value / 2, value * 2)
    limits = [limit for limit in option.limits if isinstance(limit, Range)]
    for candidate in (option.sample, *near):
        is_valid = candidate is None or candidate is option.sample or all(limit.contains(candidate) for limit in limits)
        if candidate not in tried and is_valid:
            tried.append(candidate)
            yield candidate


def _leaves(value: Any) -> Iterator[list[str]]:
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        if isinstance(inner, Mapping) and "name" not in inner:
            yield from ([key, *path] for path in _leaves(inner))
        else:
            yield [key]


def _option(options: tuple[Option, ...], path: list[str]) -> Option | None:
    option = next((option for option in options if option.name == path[0]), None)
    if option is None or len(path) == 1:
        return option
    return _option(option.kind.options, path[1:]) if option.kind.name == "group" else None


def _with_value(spec: Spec, path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(dict(spec))
    parent, _, key = path.rpartition(".")
    (get_path(changed, parent) if parent else changed)[key] = copy.deepcopy(value)
    return changed
