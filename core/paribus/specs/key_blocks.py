"""Blocks of keys of a file, each declared as a dataclass: `seeds: Annotated[int, "description", Range(1)] = 5`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from paribus.registry.class_reader import group_classes, group_options
from paribus.schema import Option
from paribus.specs.tree import UNREAD, Keys
from paribus.specs.values import Validator

Block = TypeVar("Block")


def read_block(validator: Validator, block: type[Block], values: Mapping[str, Any], keys: Keys = ()) -> Block:
    """Return a block of keys, and report its problems.

    A key with null counts as missing, unless its default is a value.
    """
    options = group_options(block)  # type: ignore[arg-type]  # any class is hashable
    result: Block = _build(block, validator.read_options(options, _without_null(options, values), keys, {}))
    return result


def _without_null(options: tuple[Option, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    given, known = dict(values), {option.name: option for option in options}
    for key in known.keys() & given.keys():
        if given[key] is None and known[key].default in (None, [], {}, ""):
            del given[key]
        elif known[key].kind.name == "group" and isinstance(given[key], Mapping):
            given[key] = _without_null(known[key].kind.options, given[key])
    return given


def _build(block: Any, values: Mapping[str, Any]) -> Any:
    """Build the dataclass. A value with a problem becomes an empty text, or else its default."""
    classes = group_classes(block)
    arguments: dict[str, Any] = {}
    for field, option in zip(fields(block), group_options(block), strict=True):
        value, kind = values.get(option.name, UNREAD), option.kind.name
        if value is UNREAD:
            value = "" if kind in ("str", "choice") else {} if kind == "group" and option.required else option.default
        if field.name in classes and isinstance(value, Mapping):
            value = _build(classes[field.name], value)
        elif kind == "list" and value is not None:
            value = tuple(_build(classes[field.name], it) if field.name in classes and it else it for it in value)
        arguments[field.name] = value
    return block(**arguments)
