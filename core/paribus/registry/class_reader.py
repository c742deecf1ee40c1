"""Reading of a component's class: its options, from the keyword-only parameters of `__init__`, and its metadata.

Mistakes in a class are reported to its author, not to its user.
"""

from __future__ import annotations

import dataclasses
import dis
import importlib
import inspect
import json
import secrets
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Required, get_args, get_origin, get_type_hints

from paribus.errors import closest_match
from paribus.hookspecs import SLOTS
from paribus.registry.component_index import NAME, Entry, Part, PluginSource
from paribus.schema import JSON, Example, Kind, Limit, Option, Range, Slot

NOT_TEXT: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})  # in YAML


class SchemaError(TypeError):
    """Invalid `__init__` of a component; the message is for the author of the plugin."""


@lru_cache(maxsize=1024)  # called for each component of each layer
def schema_of(component: type, injects: tuple[str, ...]) -> tuple[Option, ...]:
    """Return the options of a class. Its positional parameters must be `injects`."""
    init = component.__init__  # type: ignore[misc]  # of the class: it is inspected, not called
    class_name = component.__qualname__
    if init is object.__init__ or not inspect.isfunction(init):
        if injects:
            raise SchemaError(f"{class_name} has no __init__; expected one that takes ({', '.join(injects)})")
        return ()
    parameters = list(inspect.signature(init).parameters.values())[1:]
    positional = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    if positional != injects:
        raise SchemaError(
            f"{class_name}.__init__: expected the positional parameters ({', '.join(injects)}), got "
            f"({', '.join(positional)}); options follow a `*`"
        )
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            raise SchemaError(
                f"{class_name}.__init__ takes `{parameter}`; expected one named parameter for each option"
            )
    options = tuple(_option(p, class_name, _names(init)) for p in parameters if p.kind is p.KEYWORD_ONLY)
    unused = [option.name for option in options if option.name not in _loaded_names(init)]
    if unused:
        raise SchemaError(f"{class_name}.__init__ never reads its option `{unused[0]}`")
    return options


def group_class(component: type, option: str) -> type | None:
    """Return the frozen dataclass of a group option, or None."""
    init = component.__init__  # type: ignore[misc]  # of the class
    parameter = inspect.signature(init).parameters[option]
    annotation = _evaluate(parameter.annotation, _names(init))
    group = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return group if isinstance(group, type) and dataclasses.is_dataclass(group) else None


def _names(init: Callable[..., Any]) -> dict[str, Any]:
    """Return the names of the module that defines an `__init__`, which may be that of a base class."""
    names: dict[str, Any] = inspect.unwrap(init).__globals__
    return names


def _loaded_names(init: Callable[..., Any]) -> set[str]:
    """Return the variables that a function and its closures load; attributes of the same name are none."""
    names: set[str] = set()
    codes = [init.__code__]
    while codes:
        code = codes.pop()
        for instruction in dis.get_instructions(code):
            if instruction.opname.startswith("LOAD_") and instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                value = instruction.argval
                names.update(value if isinstance(value, tuple) else (str(value),))
        codes.extend(const for const in code.co_consts if isinstance(const, types.CodeType))
    return names


def _evaluate(annotation: Any, names: dict[str, Any]) -> Any:
    # Not by get_type_hints, which fails if another parameter needs an import under TYPE_CHECKING.
    return eval(annotation, names) if isinstance(annotation, str) else annotation  # noqa: S307  # the plugin's own source


def _option(parameter: inspect.Parameter, owner: str, names: dict[str, Any]) -> Option:
    if parameter.annotation is parameter.empty:
        raise SchemaError(f"{owner}.__init__: option `{parameter.name}` has no annotation")
    try:
        annotation = _evaluate(parameter.annotation, names)
    except NameError as error:
        raise SchemaError(
            f"{owner}.__init__: the annotation of option `{parameter.name}` cannot be evaluated ({error}); "
            "import its names outside of TYPE_CHECKING"
        ) from None
    required = parameter.default is parameter.empty
    default = None if required else parameter.default
    option = _annotated_option(parameter.name, annotation, default, required, owner, names)
    if option.kind.name in ("any", "mapping"):  # for blocks of keys: the values of a component have a schema
        raise SchemaError(f"{owner}: option `{option.name}`: expected {_TYPES}, got {annotation}")
    return option


def _annotated_option(
    name: str, annotation: Any, default: Any, required: bool, owner: str, names: dict[str, Any]
) -> Option:
    plain_type = annotation
    extras: tuple[Any, ...] = ()
    if get_origin(annotation) is Annotated:
        plain_type, *metadata = get_args(annotation)
        extras = tuple(metadata)
    slot = next((extra for extra in extras if isinstance(extra, Slot)), None)
    if slot:
        kind = Kind("slot", optional=type(None) in get_args(plain_type), slot=slot.name)
    else:
        kind = _kind(plain_type, f"{owner}: option `{name}`", names)
    doc = next((extra for extra in extras if isinstance(extra, str)), "")
    if not doc and kind.name != "group":
        raise SchemaError(f'{owner}: option `{name}` has no description: Annotated[{kind.name}, "description"]')
    if kind.name == "group" and not doc:
        doc = (inspect.getdoc(plain_type) or name).splitlines()[0]
    example = next((extra for extra in extras if isinstance(extra, Example)), None)
    if required and example is None:
        raise SchemaError(f"{owner}: option `{name}` has no default; expected an Example(…) in its annotation")
    option = Option(
        name,
        kind,
        doc,
        tuple(extra for extra in extras if isinstance(extra, Limit)),
        None if required else _plain(default),
        required,
        _plain(example.value) if example else None,
    )
    _check_default(option, owner)
    return option


def _check_default(option: Option, owner: str) -> None:
    """Reject a default outside of the option's own limits."""
    value = option.sample
    for limit in option.limits:
        if isinstance(limit, Range) and isinstance(value, (int, float)) and not limit.contains(value):
            raise SchemaError(f"{owner}: option `{option.name}`: expected {limit}, got the default {value!r}")
    if value is None and not option.kind.optional:
        raise SchemaError(f"{owner}: option `{option.name}`: the default is None, which its type does not allow")


_TYPES: Final = "the type int, float, bool, str, Literal, tuple or a dataclass"
_PLAIN: Final[Mapping[Any, Kind]] = {
    int: Kind("int"),
    float: Kind("float"),
    bool: Kind("bool"),
    str: Kind("str"),
    Mapping: Kind("mapping"),
    Any: Kind("any", optional=True),
}


def _kind(annotation: Any, owner: str, names: dict[str, Any]) -> Kind:
    origin = get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) != 1 or len(members) == len(get_args(annotation)):
            raise SchemaError(f"{owner}: expected a type or `X | None`, got the union {annotation}")
        return dataclasses.replace(_kind(members[0], owner, names), optional=True)
    if (plain := _PLAIN.get(origin or annotation)) is not None:
        return plain
    if origin is Literal:
        return Kind("choice", choices=tuple(str(choice) for choice in get_args(annotation)))
    if origin in (tuple, list):
        items = tuple(_kind(item, owner, names) for item in get_args(annotation) if item is not Ellipsis)
        return Kind("list", items=items)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return Kind("group", options=group_options(annotation, owner))
    raise SchemaError(f"{owner}: expected {_TYPES}, got {annotation}")


@cache
def group_options(group: type[Any], owner: str = "") -> tuple[Option, ...]:
    """Return the options that the fields of a dataclass declare; `from_` declares the option `from`."""
    names = vars(sys.modules[group.__module__])
    options: list[Option] = []
    for field in dataclasses.fields(group):
        required = field.default is dataclasses.MISSING
        default = None if required else field.default
        annotation, name = _evaluate(field.type, names), field.name.rstrip("_")
        options.append(_annotated_option(name, annotation, default, required, f"{owner}, {group.__name__}", names))
    return tuple(options)


@cache
def group_classes(group: type[Any]) -> Mapping[str, type]:
    """Return the dataclasses of the fields that are groups, or lists of groups, by field."""

    def find(annotation: Any) -> type | None:
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            return annotation
        return next((found for part in get_args(annotation) if (found := find(part)) is not None), None)

    found = {name: find(annotation) for name, annotation in get_type_hints(group).items()}
    return {name: cls for name, cls in found.items() if cls is not None}


def _plain(value: Any) -> JSON:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


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
    if name[0].isdigit() or name in NOT_TEXT:
        raise SchemaError(f"invalid name {name!r}; a spec may read it as another value than text")
    if not isinstance(component, type):
        raise SchemaError(f"`{name}`: expected a class, got {component!r}")
    class_name = component.__qualname__
    cls: Any = component
    if not issubclass(component, base):
        bases = ", ".join(parent.__name__ for parent in component.__bases__)
        raise SchemaError(f"{class_name}: expected a subclass of {base.__name__} for the slot {slot}, got a {bases}")
    if inspect.isabstract(component):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise SchemaError(f"{class_name} is abstract: it does not implement {missing}")
    _check_arguments(cls, base)
    if cls.injects != base.injects:
        actual, expected = (f"({', '.join(owner.injects)})" for owner in (cls, base))
        raise SchemaError(f"{class_name}.injects: expected {expected}, as the slot {slot} injects, got {actual}")
    doc = inspect.cleandoc(component.__dict__.get("__doc__") or "")
    if not doc:
        raise SchemaError(f"{class_name} has no docstring; `paribus list` shows its first line")
    options = schema_of(component, base.injects)
    _check_options(options, class_name)
    is_topology = slot == "topology"
    file = _file(component)
    return Entry(
        slot=slot,
        name=name,
        source=source,
        doc=doc,
        file=file,
        options=options,
        traits=_traits(cls, base, class_name),
        parts=_parts(cls, class_name) if is_topology else (),
        reads=_reads(cls, class_name) if is_topology else (),
        terms=tuple(cls.terms) if slot == "objective" else (),
        class_id="" if file else _class_id(component),
    )


def _check_arguments(component: Any, base: type[Any]) -> None:
    """Reject a method that cannot be called with the arguments of its slot, such as one of an older contract."""
    for method in base.__abstractmethods__:
        declared, implemented = getattr(base, method), getattr(component, method)
        if not inspect.isfunction(declared) or not inspect.isfunction(implemented):
            continue
        signature, expected = inspect.signature(implemented), inspect.signature(declared)
        positional = [each.name for each in expected.parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
        try:
            signature.bind(*positional)
        except TypeError:
            texts = [f"def {method}{each}".replace("'", "") for each in (expected, signature)]
            name = f"{component.__qualname__}.{method}"
            topic = f"paribus explain {base.__name__.lower()}"
            raise SchemaError(f"{name}: expected `{texts[0]}`, got `{texts[1]}`; `{topic}` describes it") from None


def _file(component: type) -> str:
    """Return the source file of a class, or "" for a class from a prompt, a notebook or standard input."""
    try:
        file = inspect.getsourcefile(component) or ""
    except (OSError, TypeError):
        return ""
    return file if Path(file).is_file() else ""


@cache  # keeps the class alive
def _class_id(component: type) -> str:
    """Return a random identity of a class without a file. Its source would not do: helpers may be in other cells."""
    return secrets.token_hex(16)


def _traits(component: Any, base: type, class_name: str) -> Mapping[str, Any]:
    """Return the traits of a component as JSON, checked against the typed dictionary of its slot."""
    kinds, required = _declared_traits(base)
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
    for name in required:
        if name not in component.traits:
            raise SchemaError(f"{class_name}: missing trait `{name}`: expected {_type_name(kinds[name])}")
    return traits


@cache
def _declared_traits(base: type) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the types of the traits of a slot's class, and the names of those that are required."""
    declared = get_args(get_type_hints(base)["traits"])[0]
    hints = get_type_hints(declared, include_extras=True)
    return get_type_hints(declared), tuple(name for name, kind in hints.items() if get_origin(kind) is Required)


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
