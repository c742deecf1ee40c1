"""Checks of the types that methods and hooks of a plugin return, against the annotations of their contract.

Without them, a wrong value fails later, in code that is not the plugin's.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args, get_origin

import pluggy

from paribus import hookspecs
from paribus.errors import PluginError, Problem
from paribus.registry.class_reader import slot_class

Check = Callable[[Any], bool]
CHECKED_HOOKS: Final = ("families", "configure_trainer")  # those of slots are checked when they are loaded
_CONVERTIBLE: Final = {
    int: "__index__",
    float: "__float__",
    bool: "__bool__",
}  # numbers of numpy and torch are accepted
MARK: Final = "checked_return"  # attribute of a function that wraps a method of a component


def check_methods(component: type, slot: str, name: str) -> None:
    """Replace the methods that a class implements for its slot by ones that report a return value of a wrong type."""
    for method, declared in vars(slot_class(slot)).items():
        implemented = inspect.getattr_static(component, method, declared)
        function = _function(implemented)
        if implemented is declared or function is None or _function(declared) is None or hasattr(function, MARK):
            continue
        owner = f"{component.__qualname__}.{method}"
        checked = _checked(function, _function(declared), f"{slot}.{name}", f"`{owner}`")
        if isinstance(implemented, property):
            setattr(component, method, property(checked, implemented.fset, implemented.fdel))
        elif isinstance(implemented, (classmethod, staticmethod)):
            setattr(component, method, type(implemented)(checked))
        else:
            setattr(component, method, checked)


def check_hooks(hook: pluggy.HookRelay) -> None:
    """Replace the hooks that return values by ones that report a value of a wrong type."""
    for name in CHECKED_HOOKS:
        for implementation in getattr(hook, name).get_hookimpls():
            declared = getattr(hookspecs, name)
            path = f"plugin {implementation.plugin_name}"
            implementation.function = _checked(
                implementation.function, declared, path, f"the hook `{name}`", optional=True
            )


def _function(member: object) -> Any:
    """Return the function of a method or property; None for other attributes."""
    if isinstance(member, property):
        return member.fget
    if isinstance(member, (classmethod, staticmethod)):
        return member.__func__
    return member if inspect.isfunction(member) else None


def _checked(function: Any, declared: Any, path: str, label: str, *, optional: bool = False) -> Any:
    annotation = _return_annotation(declared)
    expected = declared.__annotations__.get("return", "")
    is_valid = _check_of(annotation)
    is_item_valid = _check_of(get_args(annotation)[0]) if get_origin(annotation) in (Iterator, Iterable) else None

    def fail(value: object, text: str = "") -> None:
        code = inspect.unwrap(function).__code__
        raise PluginError(
            Problem(
                code="wrong-return-type",
                path=path,
                location=f"{code.co_filename}:{code.co_firstlineno}",
                message=f"{label}: expected the return type {expected}, got {text}{describe_type(value)}",
            )
        )

    def items(values: Iterable[Any], is_item_valid: Check) -> Iterator[Any]:
        for item in values:
            if not is_item_valid(item):
                fail(item, "an item of type ")
            yield item

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        value = function(*args, **options)
        if not is_valid(value) and not (optional and value is None):
            fail(value)
        return value if is_item_valid is None else items(value, is_item_valid)

    setattr(checked, MARK, True)
    return checked


def _return_annotation(function: Any) -> Any:
    """Return the annotated return type; of one that is only imported for type checkers, the part before `[`."""
    text = function.__annotations__.get("return", "Any")
    for candidate in (text, str(text).partition("[")[0]):
        try:
            return eval(candidate, function.__globals__) if isinstance(candidate, str) else candidate  # noqa: S307  # of our own source
        except NameError:
            continue
    return Any


def _check_of(annotation: Any) -> Check:  # noqa: PLR0911  # one return for each kind of type
    """Return a function that checks a value; of mappings all values are checked, of sequences the first item."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        members = [_check_of(member) for member in arguments]
        return lambda value: any(is_member(value) for is_member in members)
    if annotation is type(None):
        return lambda value: value is None
    kind = origin or annotation
    if kind in _CONVERTIBLE:
        return lambda value: isinstance(value, kind) or hasattr(value, _CONVERTIBLE[kind])
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return lambda value: True
    if issubclass(kind, Mapping):
        is_value = _check_of(arguments[1]) if arguments else _check_of(object)
        return lambda value: isinstance(value, Mapping) and all(is_value(item) for item in value.values())
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        checks = [_check_of(argument) for argument in arguments]
        return lambda value: (
            isinstance(value, (tuple, list))
            and len(value) == len(checks)
            and all(is_item(item) for is_item, item in zip(checks, value, strict=True))
        )
    if kind in (list, tuple, Sequence):
        is_first = _check_of(arguments[0]) if arguments else _check_of(object)
        return lambda value: _is_sequence(value) and (len(value) == 0 or is_first(value[0]))
    if kind in (Iterator, Iterable):
        return lambda value: hasattr(value, "__iter__") and not isinstance(value, (str, bytes, Mapping))
    return lambda value: isinstance(value, kind)


def _is_sequence(value: Any) -> bool:
    """Return whether a value has a length and items; arrays and tensors do."""
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, (str, bytes, Mapping))


def describe_type(value: object) -> str:
    """Name the type of a value, with the types of its items: `dict of Tensor`."""
    name = type(value).__name__ if value is not None else "None"
    items = list(value.values()) if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    inside = ", ".join(dict.fromkeys(type(item).__name__ for item in items[:8]))
    return f"{name} of {inside}" if inside else name
