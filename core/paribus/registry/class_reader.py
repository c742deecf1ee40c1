"""Reads a component's class once, at registration: what is wrong with it is told to its author, not to its user."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from paribus.errors import closest_match
from paribus.hookspecs import SLOTS
from paribus.registry.component_index import NAME, Entry, Part
from paribus.registry.plugin_sources import Door
from paribus.schema import Option
from paribus.signatures import SchemaError, schema_of


def contract(slot: str) -> type[Any]:
    """The abstract class of a slot."""
    module = importlib.import_module(f"paribus.slots.{slot}")
    found: type[Any] = next(
        value for value in vars(module).values() if isinstance(value, type) and value.__name__.lower() == slot
    )
    return found


def entry_of(slot: str, name: str, component: object, door: Door) -> Entry:
    """What the index keeps of a component, or a SchemaError for its author."""
    base = contract(slot)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise SchemaError(f"{name!r} is no name: lower-case letters, digits, dots, hyphens and underscores, at most 64")
    if not isinstance(component, type):
        raise SchemaError(f"`{name}` is {component!r}; a hook maps names to classes")
    where = f"{component.__module__}.{component.__qualname__}"
    made: Any = component
    if not issubclass(component, base):
        bases = ", ".join(kind.__name__ for kind in component.__bases__)
        raise SchemaError(f"{where} is a {bases}; the slot {slot} is filled by a subclass of {base.__name__}")
    if inspect.isabstract(component):
        missing = ", ".join(sorted(made.__abstractmethods__))
        raise SchemaError(f"{where} is abstract: it does not implement {missing}")
    if made.injects != base.injects:
        theirs, ours = (f"({', '.join(kind.injects)})" for kind in (made, base))
        raise SchemaError(
            f"{where}.injects is {theirs}, but the slot {slot} injects {ours}, and a variant cannot ask for more"
        )
    doc = inspect.cleandoc(component.__dict__.get("__doc__") or "")
    if not doc:
        raise SchemaError(f"{where} has no docstring; its first line is what `paribus list` shows")
    options = schema_of(component, base.injects)
    _told_apart(options, where)
    topology = slot == "topology"
    return Entry(
        slot=slot,
        name=name,
        door=door,
        doc=doc,
        file=_file(component),
        options=options,
        traits=_traits(made, where),
        parts=_parts(made, where) if topology else (),
        reads=_reads(made, where) if topology else (),
        terms=tuple(made.terms) if slot == "objective" else (),
    )


def _file(component: type) -> str:
    try:
        return inspect.getsourcefile(component) or ""
    except (OSError, TypeError):  # from a notebook or a prompt
        return ""


def _traits(component: Any, where: str) -> Mapping[str, Any]:
    from paribus.slots.component import Traits

    known = Traits.__annotations__
    for trait in component.traits:
        if trait not in known:
            near = closest_match(trait, known)
            meant = f'; did you mean "{near}"?' if near else ""
            raise SchemaError(f"{where} has the trait `{trait}`, which nothing reads{meant}")
    try:
        read: Mapping[str, Any] = json.loads(json.dumps(dict(component.traits), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{where}: traits are literals, since the index holds them as JSON ({error})") from None
    for trait, kind in get_type_hints(Traits).items():
        if trait in read and not _of(kind, read[trait]):
            raise SchemaError(f"{where}: the trait `{trait}` is {read[trait]!r}; expected: {_words(kind)}")
    return read


def _of(kind: Any, value: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(isinstance(item, get_args(kind)[1]) for item in value.values())
    return type(value) is kind


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(get_args(kind))
    return str(kind) if get_origin(kind) in (list, dict) else str(kind.__name__)


def _parts(component: Any, where: str) -> tuple[Part, ...]:
    parts = tuple(Part(*part) for part in component.parts)
    paths = [part.path for part in parts]
    if paths.count("body") != 1 or len(set(paths)) < len(paths) or len({part.name for part in parts}) < len(parts):
        raise SchemaError(f"{where}.parts is at {paths}; one part is at `body`, and no two share a name or a path")
    for part in parts:
        if part.cross is not None and part.cross not in paths:
            raise SchemaError(f"{where}: the part `{part.name}` attends to `{part.cross}`, which is no part's path")
    return parts


def _reads(component: Any, where: str) -> tuple[str, ...]:
    for slot in component.reads:
        if slot not in SLOTS:
            raise SchemaError(f"{where} reads `{slot}`, which is no slot; valid: {', '.join(SLOTS)}")
    return tuple(component.reads)


def _told_apart(options: tuple[Option, ...], where: str) -> None:
    """An option is not called as the component itself is, and a nested component is one of a slot that there is."""
    if any(option.name == "name" for option in options):
        raise SchemaError(f"{where} has an option `name`, but a spec's `name` is the name of the component")
    kinds = [(option.name, option.kind) for option in options]
    while kinds:
        name, kind = kinds.pop()
        if kind.name == "slot" and kind.slot not in SLOTS:
            raise SchemaError(f"{where}: option `{name}` is a component of `{kind.slot}`, which is no slot")
        kinds += [(option.name, option.kind) for option in kind.options] + [(name, item) for item in kind.items]
