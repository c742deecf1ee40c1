"""Designs: which variants a study has, given what it varies. Plain values in, plain values out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

Change = tuple[str, Any]  # a dotted key and the value that it is given
BASELINE: Final = "baseline"
NAME: Final = "name"  # what a variant that is written down may be called
SAID: Final = 60  # letters of a value that are shown


@final
@dataclass(frozen=True)
class Variant:
    """The base with some changes; the baseline has none."""

    name: str
    changes: tuple[Change, ...] = ()
    chosen: bool = True  # asked for by name, and not a cell of a product: where it is not valid, that is an error


def one_at_a_time(vary: Mapping[str, Sequence[Any]], variants: Sequence[Mapping[str, Any]]) -> Iterator[Variant]:
    """Each value of each axis by itself, all else as in the base."""
    for key, values in vary.items():
        for value in values:
            yield named((key, value))


def grid(vary: Mapping[str, Sequence[Any]], variants: Sequence[Mapping[str, Any]]) -> Iterator[Variant]:
    """Every combination of one value from each axis."""
    for cell in itertools.product(*([(key, value) for value in values] for key, values in vary.items())):
        yield named(*cell, chosen=False)


def listed(vary: Mapping[str, Sequence[Any]], variants: Sequence[Mapping[str, Any]]) -> Iterator[Variant]:
    """The variants as they are written down, each called by its `name`, or else by what it changes."""
    for changes in variants:
        found = named(*((key, value) for key, value in changes.items() if key != NAME))
        yield replace(found, name=str(changes[NAME])) if NAME in changes else found


Design = Callable[[Mapping[str, Sequence[Any]], Sequence[Mapping[str, Any]]], Iterator[Variant]]
DESIGNS: Final[Mapping[str, Design]] = {"one-at-a-time": one_at_a_time, "grid": grid, "list": listed}


def size(design: str, vary: Mapping[str, Sequence[Any]], variants: Sequence[Mapping[str, Any]]) -> int:
    """How many variants there will be, the baseline not counted, without making one."""
    if design == "list":
        return len(variants)
    counts = [len(values) for values in vary.values()]
    if design == "one-at-a-time":
        return sum(counts)
    product = 1 if counts else 0
    for count in counts:
        product *= count
    return product


def named(*changes: Change, chosen: bool = True) -> Variant:
    """A variant named by its changes: `attention=gqa(kv_heads=2) norm=rmsnorm`."""
    return Variant(" ".join(f"{key}={said(value)}" for key, value in changes), tuple(changes), chosen)


def said(value: Any) -> str:
    """A value in a few letters."""
    if isinstance(value, Mapping):
        options = ",".join(f"{key}={said(option)}" for key, option in value.items() if key != "name")
        name = str(value.get("name", ""))
        text = f"{name}({options})" if options else name
    elif isinstance(value, (list, tuple)):
        text = "[" + ",".join(said(item) for item in value) + "]"
    elif value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = str(value)
    return text if len(text) <= SAID else text[: SAID - 1] + "…"
