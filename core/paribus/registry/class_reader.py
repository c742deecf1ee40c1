"""Reading of a component's class at registration. Mistakes in a class are reported to its author, not to its user."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from paribus.errors import closest_match
from paribus.hookspecs import SLOTS
from paribus.registry.component_index import NAME, Entry, Part
from paribus.registry.plugin_sources import PluginSource
from paribus.schema import Option
from paribus.signatures import SchemaError, schema_of


def slot_class(slot: str) -> type[Any]:
    """Return the abstract class of a slot."""
    module = importlib.import_module(f"paribus.slots.{slot}")
    classes = (value for value in vars(module).values() if isinstance(value, type))
    result: type[Any] = next(cls for cls in classes if cls.__name__.lower() == slot)
    return result


def read_component(slot: str, name: str, component: object, source: PluginSource) -> Entry:
    """Return the metadata of a component, or raise a SchemaError for its author."""
    base = slot_class(slot)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise SchemaError(
            f"invalid name {name!r}; expected at most 64 lower-case letters, digits, dots, hyphens and underscores"
        )
    if not isinstance(component, type):
        raise SchemaError(f"`{name}`: expected a class, got {component!r}")
    class_name = f"{component.__module__}.{component.__qualname__}"
    cls: Any = component
    if not issubclass(component, base):
        bases = ", ".join(parent.__name__ for parent in component.__bases__)
        raise SchemaError(f"{class_name}: expected a subclass of {base.__name__} for the slot {slot}, got a {bases}")
    if inspect.isabstract(component):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise SchemaError(f"{class_name} is abstract: it does not implement {missing}")
    if cls.injects != base.injects:
        actual, expected = (f"({', '.join(owner.injects)})" for owner in (cls, base))
        raise SchemaError(f"{class_name}.injects: expected {expected}, as the slot {slot} injects, got {actual}")
    doc = inspect.cleandoc(component.__dict__.get("__doc__") or "")
    if not doc:
        raise SchemaError(f"{class_name} has no docstring; `paribus list` shows its first line")
    options = schema_of(component, base.injects)
    _check_options(options, class_name)
    is_topology = slot == "topology"
    return Entry(
        slot=slot,
        name=name,
        source=source,
        doc=doc,
        file=_file(component),
        options=options,
        traits=_traits(cls, base, class_name),
        parts=_parts(cls, class_name) if is_topology else (),
        reads=_reads(cls, class_name) if is_topology else (),
        terms=tuple(cls.terms) if slot == "objective" else (),
    )


def _file(component: type) -> str:
    """Return the source file of a class, or "" for a class from a prompt, a notebook or standard input."""
    try:
        file = inspect.getsourcefile(component) or ""
    except (OSError, TypeError):
        return ""
    return file if Path(file).is_file() else ""


def _traits(component: Any, base: type, class_name: str) -> Mapping[str, Any]:
    """Return the traits of a component as JSON, checked against the typed dictionary of its slot."""
    kinds = get_type_hints(get_args(get_type_hints(base)["traits"])[0])
    for trait in component.traits:
        if trait not in kinds:
            near = closest_match(trait, kinds)
            hint = f'did you mean "{near}"?' if near else f"valid: {', '.join(kinds)}"
            raise SchemaError(f'{class_name}: unknown trait "{trait}" for the slot {base.__name__.lower()}; {hint}')
    try:
        traits: Mapping[str, Any] = json.loads(json.dumps(dict(component.traits), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"{class_name}: traits must be literals, since the index stores them as JSON ({error})"
        ) from None
    for trait, value in traits.items():
        if not _has_type(kinds[trait], value):
            raise SchemaError(f"{class_name}: trait `{trait}`: expected {_type_name(kinds[trait])}, got {value!r}")
    return traits


def _has_type(annotation: Any, value: Any) -> bool:
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    if get_origin(annotation) is list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if get_origin(annotation) is dict:
        return isinstance(value, dict) and all(isinstance(item, get_args(annotation)[1]) for item in value.values())
    return type(value) is annotation


def _type_name(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(get_args(annotation))
    return str(annotation) if get_origin(annotation) in (list, dict) else str(annotation.__name__)


def _parts(component: Any, class_name: str) -> tuple[Part, ...]:
    parts = tuple(Part(*part) for part in component.parts)
    paths = [part.path for part in parts]
    if paths.count("body") != 1 or len(set(paths)) < len(paths) or len({part.name for part in parts}) < len(parts):
        raise SchemaError(
            f"{class_name}.parts: expected one part at `body`, and different names and paths, got paths {paths}"
        )
    for part in parts:
        if part.cross is not None and part.cross not in paths:
            raise SchemaError(f'{class_name}: the part `{part.name}` attends to the unknown path "{part.cross}"')
    return parts


def _reads(component: Any, class_name: str) -> tuple[str, ...]:
    for slot in component.reads:
        if slot not in SLOTS:
            raise SchemaError(f'{class_name}.reads: unknown slot "{slot}"; valid: {", ".join(SLOTS)}')
    return tuple(component.reads)


def _check_options(options: tuple[Option, ...], class_name: str) -> None:
    """Reject an option called `name`, and a nested component of an unknown slot."""
    if any(option.name == "name" for option in options):
        raise SchemaError(f"{class_name} has an option `name`, which a spec uses for the name of the component")
    pending = [(option.name, option.kind) for option in options]
    while pending:
        name, kind = pending.pop()
        if kind.name == "slot" and kind.slot not in SLOTS:
            raise SchemaError(f'{class_name}: option `{name}` is a component of the unknown slot "{kind.slot}"')
        pending += [(option.name, option.kind) for option in kind.options] + [(name, item) for item in kind.items]
