"""Whether each thing that a variant sets does anything: without it, the model is another one, or acts otherwise.

That a whole variant did nothing shows in its outputs and losses. Where it changes several things at once one of them
may hide behind the others, so each is put back by itself: a component to what the baseline has in its place, an option
to its default, or to another value.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, final

import torch

from paribus.hookspecs import SLOTS
from paribus.registry import Index, Registry
from paribus.schema import Option, Range
from paribus.train.acting import Subject, briefly, elsewhere, outline, rates, updates, wholly
from paribus.train.tokens import Encoded

Spec = Mapping[str, Any]
Way = Callable[[Spec, Subject], str | None]
Say = Literal["has", "idle", "ignored", "unknown"]

WAYS: Final[Mapping[str, tuple[Way, ...]]] = {"optimizer": (updates,), "schedule": (rates,)}
MODEL: Final[tuple[Way, ...]] = (outline, briefly, wholly)  # the cheapest first: most are told apart without a step
UNASKED: Final = ("objective", "corpus", "tokenizer", "launcher", "measure")
OTHERS: Final = 4  # values in place of one that was set


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
class Probed(NamedTuple):
    """Dotted paths of what a variant sets, by what it does."""

    asked: tuple[str, ...] = ()  # all that could be asked
    ignored: tuple[str, ...] = ()  # options: no other value makes any difference
    idle: tuple[str, ...] = ()  # options: they would have a say elsewhere, at another value or token by token
    dead: tuple[str, ...] = ()  # what does as the baseline's does, in the same place

    def to_json(self) -> dict[str, list[str]]:
        return {key: list(paths) for key, paths in self._asdict().items() if paths}


def probed(
    spec: Spec, varied: Mapping[str, Any], classes: Registry, text: Encoded, instead: Mapping[str, Any] | None = None
) -> Probed:
    """What a variant sets, put back one by one. `instead`: what the baseline has in place of what was varied.

    Of a variant that changes one thing alone nothing is asked: its certificate tells.
    """
    options = list(settings(spec, varied, classes.index)) if sum(1 for _ in _changes(varied)) > 1 else []
    swaps = list(_swaps(spec, instead or {})) if len(varied) > 1 else []
    if not options and not swaps:
        return Probed()
    with torch.random.fork_rng():
        probe = _Probe(spec, Subject(classes, text))
        said = {each.path: probe.say(each) for each in options}
        same = {each.path: probe.same(each) for each in swaps}
    return Probed(
        asked=tuple(path for path, say in said.items() if say != "unknown"),
        ignored=tuple(path for path, say in said.items() if say == "ignored"),
        idle=tuple(path for path, say in said.items() if say == "idle"),
        dead=tuple(path for path, found in same.items() if found),
    )


@final
class _Probe:
    """One spec, held against others that differ from it in one value; what it does itself is found out once."""

    def __init__(self, spec: Spec, of: Subject) -> None:
        self.spec = spec
        self.of = of
        self._own: dict[Way, str | None] = {}

    def say(self, setting: Setting) -> Say:
        """Whether an option has a say in training; if its default does the same, whether anything else would not."""
        ways = WAYS.get(setting.slot, MODEL)
        default, *rest = setting.others
        first = self._told(ways, setting.path, (default,))
        if first:
            return "has"
        more = self._told(ways, setting.path, rest)
        bare = first is None or default is None  # null may choose what was set
        if more or (more is None and bare):
            return "unknown" if not more else "has" if bare else "idle"
        return (
            "idle" if setting.slot not in WAYS and self._told((elsewhere,), setting.path, setting.others) else "ignored"
        )

    def same(self, setting: Setting) -> bool:
        """Whether it does what the baseline's does, as far as training goes."""
        return self._told(WAYS.get(setting.slot, MODEL), setting.path, setting.others) is False

    def _told(self, ways: Sequence[Way], path: str, others: Sequence[Any]) -> bool | None:
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
        if words[-1] in SLOTS and words[-1] not in UNASKED and isinstance(value, Mapping) and value != other:
            yield Setting(key, value, (other,))


def settings(spec: Spec, varied: Mapping[str, Any], index: Index) -> Iterator[Setting]:
    """The options of components that are among what was varied, and are not what they would be by themselves."""
    for key, value in varied.items():
        words = key.split(".")
        places = [at for at, word in enumerate(words) if word in SLOTS]
        if not places or words[0] in UNASKED or words[places[-1]] in UNASKED:
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
            others = tuple(islice(_others(option, found), OTHERS))
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
        if other not in seen and (other is None or other is option.sample or all(each.holds(other) for each in limits)):
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
