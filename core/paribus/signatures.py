"""A component's options, read from its `__init__` and from nowhere else: the keyword-only parameters are options."""

from __future__ import annotations

import dataclasses
import dis
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args, get_origin

from paribus.schema import JSON, AtLeast, AtMost, Divides, Example, Kind, KindName, Option, Range, Slot


class SchemaError(TypeError):
    """A component's `__init__` does not say what its options are; the text is for the author of the plugin."""


@lru_cache(maxsize=1024)  # a model asks for that of each of its components, layer after layer
def schema_of(component: type, injects: tuple[str, ...]) -> tuple[Option, ...]:
    """The options of a class, whose first parameters must be those that are injected."""
    init = component.__init__  # type: ignore[misc]  # of the class, and meant: it is read, not called
    where = f"{component.__module__}.{component.__qualname__}"
    if init is object.__init__ or not inspect.isfunction(init):
        if injects:
            raise SchemaError(f"{where} has no __init__; it is to take ({', '.join(injects)})")
        return ()
    parameters = list(inspect.signature(init).parameters.values())[1:]
    positional = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    if positional != injects:
        raise SchemaError(
            f"{where}.__init__ takes ({', '.join(positional)}) by position, but this slot injects "
            f"({', '.join(injects)}); options go behind a `*`"
        )
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            raise SchemaError(f"{where}.__init__ takes `{parameter}`: options must be named one by one")
    options = tuple(_option(p, where, _names_of(component)) for p in parameters if p.kind is p.KEYWORD_ONLY)
    unread = [option.name for option in options if option.name not in _read(init)]
    if unread:
        raise SchemaError(
            f"{where}.__init__ never reads its option `{unread[0]}`: a spec that sets it would be ignored"
        )
    return options


def group_class(component: type, option: str) -> type | None:
    """The frozen dataclass behind a group option."""
    parameter = inspect.signature(component.__init__).parameters[option]  # type: ignore[misc]  # of the class, and meant
    annotation = _evaluated(parameter.annotation, _names_of(component))
    plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return plain if isinstance(plain, type) and dataclasses.is_dataclass(plain) else None


def _names_of(component: type) -> dict[str, Any]:
    return vars(sys.modules[component.__module__])


def _read(init: Callable[..., Any]) -> set[str]:
    """The names that a function's code loads, its closures included."""
    read: set[str] = set()
    codes = [init.__code__]
    while codes:
        code = codes.pop()
        for instruction in dis.get_instructions(code):
            if instruction.opname.startswith("LOAD_"):
                value = instruction.argval
                read.update(value if isinstance(value, tuple) else (str(value),))
        codes.extend(const for const in code.co_consts if isinstance(const, types.CodeType))
    return read


def _evaluated(annotation: Any, names: dict[str, Any]) -> Any:
    # One by one and not by get_type_hints: an import under TYPE_CHECKING for another parameter must not matter.
    return eval(annotation, names) if isinstance(annotation, str) else annotation  # noqa: S307  # the plugin's own source


def _option(parameter: inspect.Parameter, where: str, names: dict[str, Any]) -> Option:
    if parameter.annotation is parameter.empty:
        raise SchemaError(f"{where}.__init__: option `{parameter.name}` has no annotation")
    try:
        annotation = _evaluated(parameter.annotation, names)
    except NameError as error:
        raise SchemaError(
            f"{where}.__init__: the annotation of option `{parameter.name}` cannot be read ({error}); "
            "import what it names outside of TYPE_CHECKING"
        ) from None
    required = parameter.default is parameter.empty
    return _described(parameter.name, annotation, None if required else parameter.default, required, where, names)


def _described(name: str, annotation: Any, default: Any, required: bool, where: str, names: dict[str, Any]) -> Option:
    plain = annotation
    extras: tuple[Any, ...] = ()
    if get_origin(annotation) is Annotated:
        plain, *rest = get_args(annotation)
        extras = tuple(rest)
    slot = next((extra for extra in extras if isinstance(extra, Slot)), None)
    kind = Kind("slot", slot=slot.name) if slot else _kind(plain, f"{where}: option `{name}`", names)
    doc = next((extra for extra in extras if isinstance(extra, str)), "")
    if not doc and kind.name != "group":
        raise SchemaError(f'{where}: option `{name}` has no description: Annotated[{kind.name}, "what it is"]')
    if kind.name == "group" and not doc:
        doc = (inspect.getdoc(plain) or name).splitlines()[0]
    example = next((extra for extra in extras if isinstance(extra, Example)), None)
    if required and example is None:
        raise SchemaError(f"{where}: option `{name}` has no default, so it must carry Example(…) for lists and tests")
    option = Option(
        name,
        kind,
        doc,
        tuple(extra for extra in extras if isinstance(extra, (Range, Divides, AtLeast, AtMost))),
        None if required else _plain(default),
        required,
        _plain(example.value) if example else None,
    )
    _held(option, where)
    return option


def _held(option: Option, where: str) -> None:
    """A default outside of its own limits would be found by a user; it is found here."""
    value = option.sample
    for limit in option.limits:
        if isinstance(limit, Range) and isinstance(value, (int, float)) and not limit.holds(value):
            raise SchemaError(f"{where}: option `{option.name}` has {value!r} where its own limit is {limit}")
    if value is None and not option.kind.optional:
        raise SchemaError(f"{where}: option `{option.name}` defaults to None, but its type does not allow it")


_SCALARS: Mapping[type, KindName] = {int: "int", float: "float", bool: "bool", str: "str"}


def _kind(annotation: Any, where: str, names: dict[str, Any]) -> Kind:
    origin = get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) != 1 or len(members) == len(get_args(annotation)):
            raise SchemaError(f"{where} is a union; only `X | None` can be an option")
        return dataclasses.replace(_kind(members[0], where, names), optional=True)
    if annotation in _SCALARS:
        return Kind(_SCALARS[annotation])
    if origin is Literal:
        return Kind("choice", choices=tuple(str(choice) for choice in get_args(annotation)))
    if origin in (tuple, list):
        items = tuple(_kind(item, where, names) for item in get_args(annotation) if item is not Ellipsis)
        return Kind("list", items=items)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return Kind("group", options=_fields(annotation, where))
    raise SchemaError(
        f"{where} has the type {annotation}; an option is an int, float, bool, str, Literal, tuple or group"
    )


def _fields(group: type, where: str) -> tuple[Option, ...]:
    names = vars(sys.modules[group.__module__])
    found: list[Option] = []
    for field in dataclasses.fields(group):
        required = field.default is dataclasses.MISSING
        annotation = _evaluated(field.type, names)
        default = None if required else field.default
        found.append(_described(field.name, annotation, default, required, f"{where}, {group.__name__}", names))
    return tuple(found)


def _plain(value: Any) -> JSON:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value
