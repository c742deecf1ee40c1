"""What a model does with a few examples, as a digest: two specs whose digests are one differ in nothing there.

Models are moved off where they start, as what starts at 0 has its say only there, and are run as in training, too.

Whether each thing that a variant sets does anything: without it, the model is another one, or acts otherwise.

That a whole variant did nothing shows in its outputs and losses. Where it changes several things at once one of them
may hide behind the others, so each is put back by itself: a component to what the baseline has in its place, an option
to its default, or to another value.
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
from paribus.errors import ParibusError
from paribus.hookspecs import SLOTS
from paribus.kernels import KERNELS
from paribus.keyed import key32
from paribus.parts.batch import Batch
from paribus.parts.draw import Draw
from paribus.registry import Index, Registry
from paribus.schema import Option, Range
from paribus.slots.optimizer import Optimizer
from paribus.slots.schedule import Schedule
from paribus.train.assemble import build_data, build_model
from paribus.train.data import VALIDATION
from paribus.train.digests import tensor_digest
from paribus.train.model import Model
from paribus.train.token_store import EncodedCorpus

Spec = Mapping[str, Any]

MAX_EXAMPLES: Final = 4
PERTURBATION: Final = 0.1  # how far parameters are moved
SMALL_SCALE: Final = 1e-7  # what they are multiplied by, for what has its say only where rows are short
SHALLOW_LAYERS: Final = 2  # layers of a model that is looked at first
BATCH_WORK: Final = 2**34  # parameters times rows that are run through at a time, or one example
MAX_WORK: Final = 2**38  # of which more is not run at all: a start would take longer than many a step
SCHEDULE_STEPS: Final = 64  # of a schedule
GRADIENT_SCALES: Final = (1.0, 1e-4, 1e-8)  # of the gradients that an optimizer is given in turn
ERRORS: Final = (ParibusError, ValueError, RuntimeError, LookupError, TypeError, AssertionError, ArithmeticError)


class ProbeContext(NamedTuple):
    """Of what specs are looked at."""

    classes: Registry
    text: EncodedCorpus


def parameter_shapes(spec: Spec, of: ProbeContext) -> str | None:
    """The names and shapes of its parameters, without storage; None where it cannot be built."""
    with suppress(*ERRORS):
        children = build(_plain(spec), of.classes, of.text.vocabulary, KERNELS).children()
        named = nn.ModuleDict(children).named_parameters(remove_duplicate=False)
        return repr(sorted((path, tuple(parameter.shape)) for path, parameter in named))
    return None


def shallow_behavior(spec: Spec, of: ProbeContext) -> str | None:
    """What it does with few of its layers, which is nearly always enough to tell two apart."""
    dims = spec["dims"]
    if not isinstance(dims["layers"], int) or dims["layers"] <= SHALLOW_LAYERS:
        return None
    return _acts({**spec, "dims": {**dims, "layers": SHALLOW_LAYERS}}, of)


def full_behavior(spec: Spec, of: ProbeContext) -> str | None:
    """What it does in evaluation and in training, and the gradients that follow."""
    return _acts(spec, of)


def inference_behavior(spec: Spec, of: ProbeContext) -> str | None:
    """What it does where training does not come: token by token, and with rows that are next to nothing."""
    with suppress(*ERRORS):
        model, batch = _made(spec, of)
        hashed = hashlib.sha256()
        _moved(model)
        with torch.no_grad(), suppress(*ERRORS):  # what has no step by step has no say in one
            for hidden in _stepped(model.eval(), batch):
                hashed.update(tensor_digest(hidden).encode())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(SMALL_SCALE)
            for found in _found(model.eval(), batch):
                hashed.update(tensor_digest(found).encode())
        return hashed.hexdigest()
    return None


def schedule_factors(spec: Spec, of: ProbeContext) -> str | None:
    """What a schedule makes of each step of a run."""
    with suppress(*ERRORS):
        schedule = make(of.classes, "schedule", spec["schedule"], kind=Schedule)
        return repr([schedule.factor(step, SCHEDULE_STEPS) for step in range(SCHEDULE_STEPS)])
    return None


def optimizer_updates(spec: Spec, of: ProbeContext) -> str | None:
    """What an optimizer makes of a matrix and a vector, with gradients of several sizes."""
    with suppress(*ERRORS):
        generator = torch.Generator().manual_seed(0)
        given = [nn.Parameter(torch.randn(size, generator=generator)) for size in ((8, 6), (6,))]
        optimizer = make(of.classes, "optimizer", spec["optimizer"], kind=Optimizer).build(given[:1], given[1:])
        hashed = hashlib.sha256()
        for size in GRADIENT_SCALES * 3:
            for each in given:
                each.grad = torch.randn(each.shape, generator=generator) * size
            optimizer.step()
            hashed.update("".join(map(tensor_digest, given)).encode())
        return hashed.hexdigest()
    return None


def _plain(spec: Spec) -> Spec:
    return {**spec, "from": None, "teacher": None}


def _acts(spec: Spec, of: ProbeContext) -> str | None:
    with suppress(*ERRORS):
        return _digest(*_made(spec, of))
    return None


def _made(spec: Spec, of: ProbeContext) -> tuple[Model, Batch]:
    plain = _plain(spec)
    rows = count_parameters(build(plain, of.classes, of.text.vocabulary, KERNELS).children()) * int(
        spec["dims"]["length"]
    )
    if rows > MAX_WORK:
        raise ValueError("too large to be asked")
    model = build_model(plain, of.classes, of.text.vocabulary)
    data = build_data(plain, of.classes, of.text)
    count = min(max(1, min(MAX_EXAMPLES, BATCH_WORK // rows)), data.val_count)
    model.tokenizer = of.text.tokenizer_fingerprint
    return model, data.val_examples.batch(Draw(0, VALIDATION, torch.arange(count)))


def _moved(model: Model) -> None:
    for path, parameter in sorted(model.named_parameters()):
        generator = torch.Generator().manual_seed(key32("probe", path))
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=PERTURBATION)


def _digest(model: Model, batch: Batch) -> str:
    """Of names and shapes, of what comes out in evaluation and in training, and of the gradients that follow."""
    hashed = hashlib.sha256()
    for path, parameter in sorted(model.named_parameters()):
        hashed.update(f"{path} {tuple(parameter.shape)}".encode())
    _moved(model)
    with torch.no_grad():
        for found in _found(model.eval(), batch):
            hashed.update(tensor_digest(found).encode())
    trained = _found(model.train(), batch)
    losses = [each.sum() for each in trained if each.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    gradients = [parameter.grad for _, parameter in sorted(model.named_parameters())]
    for each in (*trained, *gradients):
        hashed.update(b"-" if each is None else tensor_digest(each).encode())
    return hashed.hexdigest()


def _found(model: Model, batch: Batch) -> list[Tensor]:
    """What each part makes of the examples, and what it costs."""
    torch.manual_seed(0)
    run = model.run(batch)
    outputs = [run.output(part.path) for part in model.topology.parts]
    found = [output.hidden for output in outputs]
    found += [output.auxiliary for output in outputs if output.auxiliary is not None]
    for name in model.evaluated:
        with suppress(*ERRORS):  # of one that asks a teacher, who is not here
            found += [term.total for term in model.objective(name)(run.of(name)).values()]
    return found


def _stepped(model: Model, batch: Batch) -> Iterator[Tensor]:
    """The first half of each example at once, and then two tokens one by one."""
    tokens = batch.streams["body"].tokens
    cross = next(part.cross for part in model.topology.parts if part.path == "body")
    source = batch.streams[cross].tokens if cross is not None else None
    half, states = tokens.shape[1] // 2, model.start(len(tokens))
    for start, end in ((0, half), (half, half + 1), (half + 1, half + 2)):
        yield model.hidden(tokens[:, start:end], states, source=source)


Probe = Callable[[Spec, ProbeContext], str | None]
OptionEffect = Literal["has", "idle", "ignored", "unknown"]

SLOT_PROBES: Final[Mapping[str, tuple[Probe, ...]]] = {
    "optimizer": (optimizer_updates,),
    "schedule": (schedule_factors,),
}
MODEL_PROBES: Final[tuple[Probe, ...]] = (
    parameter_shapes,
    shallow_behavior,
    full_behavior,
)  # the cheapest first: most are told apart without a step
UNPROBED_SLOTS: Final = ("objective", "corpus", "tokenizer", "launcher", "measure")
MAX_ALTERNATIVES: Final = 4  # values in place of one that was set


@final
class Setting(NamedTuple):
    """Something that was set: where, to what, and what it might be else, what it would be by itself first."""

    path: str
    value: Any
    others: tuple[Any, ...]

    @property
    def slot(self) -> str:
        return next(word for word in reversed(self.path.split(".")) if word in SLOTS)


@final
class ProbeResult(NamedTuple):
    """Dotted paths of what a variant sets, by what it does."""

    asked: tuple[str, ...] = ()  # all that could be asked
    ignored: tuple[str, ...] = ()  # options: no other value makes any difference
    idle: tuple[str, ...] = ()  # options: they would have a say elsewhere, at another value or token by token
    dead: tuple[str, ...] = ()  # what does as the baseline's does, in the same place

    def to_json(self) -> dict[str, list[str]]:
        return {key: list(paths) for key, paths in self._asdict().items() if paths}


def probe_variant(
    spec: Spec,
    varied: Mapping[str, Any],
    classes: Registry,
    text: EncodedCorpus,
    instead: Mapping[str, Any] | None = None,
) -> ProbeResult:
    """What a variant sets, put back one by one. `instead`: what the baseline has in place of what was varied.

    Of a variant that changes one thing alone nothing is asked: its certificate tells.
    """
    options = list(varied_options(spec, varied, classes.index)) if sum(1 for _ in _changes(varied)) > 1 else []
    swaps = list(_swaps(spec, instead or {})) if len(varied) > 1 else []
    if not options and not swaps:
        return ProbeResult()
    with torch.random.fork_rng():
        probe = _Probe(spec, ProbeContext(classes, text))
        said = {each.path: probe.say(each) for each in options}
        same = {each.path: probe.same(each) for each in swaps}
    return ProbeResult(
        asked=tuple(path for path, say in said.items() if say != "unknown"),
        ignored=tuple(path for path, say in said.items() if say == "ignored"),
        idle=tuple(path for path, say in said.items() if say == "idle"),
        dead=tuple(path for path, found in same.items() if found),
    )


@final
class _Probe:
    """One spec, held against others that differ from it in one value; what it does itself is found out once."""

    def __init__(self, spec: Spec, of: ProbeContext) -> None:
        self.spec = spec
        self.of = of
        self._own: dict[Probe, str | None] = {}

    def say(self, setting: Setting) -> OptionEffect:
        """Whether an option has a say in training; if its default does the same, whether anything else would not."""
        ways = SLOT_PROBES.get(setting.slot, MODEL_PROBES)
        default, *rest = setting.others
        first = self._told(ways, setting.path, (default,))
        if first:
            return "has"
        more = self._told(ways, setting.path, rest)
        bare = first is None or default is None  # null may choose what was set
        if more or (more is None and bare):
            return "unknown" if not more else "has" if bare else "idle"
        return (
            "idle"
            if setting.slot not in SLOT_PROBES and self._told((inference_behavior,), setting.path, setting.others)
            else "ignored"
        )

    def same(self, setting: Setting) -> bool:
        """Whether it does what the baseline's does, as far as training goes."""
        return self._told(SLOT_PROBES.get(setting.slot, MODEL_PROBES), setting.path, setting.others) is False

    def _told(self, ways: Sequence[Probe], path: str, others: Sequence[Any]) -> bool | None:
        """Whether any of these is told from what was set; None where that could not be tried."""
        tried = False
        for way in ways:
            if way not in self._own:
                self._own[way] = way(self.spec, self.of)
            own = self._own[way]
            for other in others if own is not None else ():
                found = way(_put(self.spec, path, other), self.of)
                if found is not None and found != own:
                    return True
                tried |= found is not None and way is ways[-1]  # the others leave something out
        return False if tried else None


def _changes(varied: Mapping[str, Any]) -> Iterator[str]:
    for key, value in varied.items():
        yield key
        if isinstance(value, Mapping) and "name" in value:
            yield from (f"{key}.{option}" for option in value if option != "name")


def _swaps(spec: Spec, instead: Mapping[str, Any]) -> Iterator[Setting]:
    """Whole components that were varied, with the baseline's in their place."""
    for key, other in instead.items():
        words = key.split(".")
        value = _at(spec, words)
        if words[-1] in SLOTS and words[-1] not in UNPROBED_SLOTS and isinstance(value, Mapping) and value != other:
            yield Setting(key, value, (other,))


def varied_options(spec: Spec, varied: Mapping[str, Any], index: Index) -> Iterator[Setting]:
    """The options of components that are among what was varied, and are not what they would be by themselves."""
    for key, value in varied.items():
        words = key.split(".")
        places = [at for at, word in enumerate(words) if word in SLOTS]
        if not places or words[0] in UNPROBED_SLOTS or words[places[-1]] in UNPROBED_SLOTS:
            continue
        slot = places[-1]
        node = _at(spec, words[: slot + 1])
        if not isinstance(node, Mapping) or "name" not in node:
            continue
        inside = words[slot + 1 :]
        given = [inside] if inside else [way for way in _leaves(value) if way != ["name"]]
        options = index.find(words[slot], str(node["name"])).options
        for way in given:
            option = _option(options, way)
            if option is None or option.kind.name in ("slot", "group"):
                continue
            path = [*words[: slot + 1], *way]
            found = _at(spec, path)
            others = tuple(islice(_others(option, found), MAX_ALTERNATIVES))
            if found != option.sample and any(other is not None for other in others):
                yield Setting(".".join(path), found, others)


def _others(option: Option, value: Any) -> Iterator[Any]:
    """The default, or the example of what has none, and then values that may do as well."""
    kind, seen = option.kind, [value]
    near: tuple[Any, ...] = ()
    if kind.name == "bool":
        near = (not value,)
    elif kind.name == "choice":
        near = kind.choices
    elif kind.name in ("int", "float") and isinstance(value, int | float):
        near = (value // 2, value + 1, value * 2) if kind.name == "int" else (value / 2, value * 2)
    for other in (option.sample, *near):
        limits = [limit for limit in option.limits if isinstance(limit, Range)]
        if other not in seen and (
            other is None or other is option.sample or all(each.contains(other) for each in limits)
        ):
            seen.append(other)
            yield other


def _leaves(value: Any) -> Iterator[list[str]]:
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        if isinstance(inner, Mapping) and "name" not in inner:
            yield from ([key, *way] for way in _leaves(inner))
        else:
            yield [key]


def _option(options: tuple[Option, ...], way: list[str]) -> Option | None:
    found = next((option for option in options if option.name == way[0]), None)
    if found is None or len(way) == 1:
        return found
    return _option(found.kind.options, way[1:]) if found.kind.name == "group" else None


def _at(spec: Any, path: Sequence[str]) -> Any:
    for key in path:
        spec = spec.get(key) if isinstance(spec, Mapping) else None
    return spec


def _put(spec: Spec, path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(dict(spec))
    *way, last = path.split(".")
    _at(changed, way)[last] = copy.deepcopy(value)
    return changed
