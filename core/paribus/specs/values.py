"""One value against one option: its type, its limits, and the sizes around it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

from paribus.errors import Problem, closest_match, join_names
from paribus.registry import Index
from paribus.schema import AtLeast, AtMost, Divides, Kind, Limit, Option, Range
from paribus.specs import input_limits
from paribus.specs.synonyms import suggest_key
from paribus.specs.tree import UNREAD, Keys, Tree, join_keys, merge_values, value_text

MISSING: Final = "???"
MAX_PROBLEMS: Final = 100  # problems that anybody reads at once
_NOT_FINITE: Final = frozenset({"nan", "inf", "+inf", "-inf", "infinity", "-infinity", ".nan", ".inf", "-.inf"})
Dims = Mapping[str, Any]


@final
class Validator:
    """Collects what is wrong with a tree while values are read from it; what comes back has every default filled in."""

    def __init__(self, tree: Tree, index: Index) -> None:
        self.tree = tree
        self.index = index
        self.problems: list[Problem] = list(tree.problems)
        self._told = set(self.problems)

    def add_error(self, code: str, keys: Keys, what: str, valid: str = "", near: str = "") -> Any:
        """Notes a problem, and answers what stands for a value that is no longer looked at."""
        if len(self.problems) >= MAX_PROBLEMS:
            return UNREAD
        where = self.tree.location(keys)
        problem = Problem(code=code, path=join_keys(keys), location=where, message=what, valid=valid, suggestion=near)
        if problem not in self._told:
            self._told.add(problem)
            self.problems.append(problem)
        return UNREAD

    def as_mapping(self, given: Any, keys: Keys, valid: str) -> Mapping[str, Any] | None:
        """`given`, if it is a mapping."""
        if given is UNREAD or isinstance(given, Mapping):
            return given if isinstance(given, Mapping) else None
        self.add_error("wrong-type", keys, f"expected a mapping, but this is {value_text(given)}", valid)
        return None

    def read_options(
        self, options: Sequence[Option], given: Mapping[str, Any], keys: Keys, dims: Dims
    ) -> dict[str, Any]:
        """A value for each option: the given one, or its default; keys that are no option are told of."""
        known = [option.name for option in options]
        for key in given:
            if key not in known:
                self.add_unknown_key(key, (*keys, key), known)
        return {
            option.name: self.read_option(option, given[option.name], (*keys, option.name), dims)
            if option.name in given
            else self.read_default(option, (*keys, option.name), dims)
            for option in options
        }

    def add_unknown_key(self, key: str, keys: Keys, known: Sequence[str]) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            valid = join_names(known) if known else "nothing: it has no options"
            self.add_error("unknown-key", keys, f'unknown key "{key}"', valid, suggest_key(key, known))

    def read_default(self, option: Option, keys: Keys, dims: Dims) -> Any:
        if option.required:
            what = f"`{option.name}` is missing: {option.doc}"
            return self.add_error("missing", keys, what, valid_values(option, dims))
        if option.kind.name == "slot":
            return self.read_option(option, option.default, keys, dims)
        if option.kind.name == "group":
            return self.read_options(option.kind.options, option.default or {}, keys, dims)
        value = [*option.default] if isinstance(option.default, (list, tuple)) else option.default
        self.check_limits(option, value, keys, dims)  # one that depends on the dims may be broken by its own default
        return value

    def read_option(self, option: Option, given: Any, keys: Keys, dims: Dims) -> Any:
        """The value of one option, with its limits."""
        if given is UNREAD:
            return UNREAD
        if given == MISSING:
            what = f"`{option.name}` is still to be filled in: {option.doc}"
            return self.add_error("missing", keys, what, valid_values(option, dims))
        value = self.read_kind(option, option.kind, given, keys, dims)
        if value is not UNREAD and value is not None and not self.check_limits(option, value, keys, dims):
            return UNREAD
        return value

    def read_kind(  # noqa: PLR0911  # one answer for each of the kinds that there are
        self, option: Option, kind: Kind, given: Any, keys: Keys, dims: Dims
    ) -> Any:
        if given is None and kind.optional:
            return None
        if kind.name == "slot":
            whole = merge_values(option.default, given) if isinstance(given, Mapping) and "name" not in given else given
            return self.read_component(kind.slot, whole, keys, dims)
        if kind.name == "group":
            found = self.as_mapping(given, keys, join_names(field.name for field in kind.options))
            usual = option.default if isinstance(option.default, Mapping) else {}  # may be another than its fields'
            return UNREAD if found is None else self.read_options(kind.options, {**usual, **found}, keys, dims)
        if kind.name == "list":
            return self.read_list(option, kind, given, keys, dims)
        value = plain_value(kind, given)
        if value is not None:
            return value
        if kind.name in ("int", "float") and _not_finite(given):
            return self.add_error(
                "not-finite", keys, f"this must be finite, but is {value_text(given)}", valid_values(option, dims)
            )
        near = closest_match(given, kind.choices) if isinstance(given, str) else ""
        what = f"expected {kind}, but this is {value_text(given)}"
        return self.add_error("wrong-type", keys, what, valid_values(option, dims), near)

    def read_list(self, option: Option, kind: Kind, given: Any, keys: Keys, dims: Dims) -> Any:
        several = len(kind.items) > 1
        items = given if isinstance(given, (list, tuple)) else [given]  # one item stands for a list of one
        if (several and len(items) != len(kind.items)) or isinstance(given, Mapping) or given is None:
            return self.add_error("wrong-type", keys, f"expected {kind}, but this is {value_text(given)}", str(kind))
        kinds = kind.items if several else [kind.items[0] for _ in items]
        found = [
            self.read_kind(option, item, value, (*keys, place), dims)
            for place, (item, value) in enumerate(zip(kinds, items, strict=True))
        ]
        return UNREAD if any(value is UNREAD for value in found) else found

    def check_limits(self, option: Option, value: Any, keys: Keys, dims: Dims) -> bool:
        """Whether the value is within all limits; each that it is not is told of."""
        numbers = value if isinstance(value, list) else [value]
        held = True
        for number in numbers:
            for limit in option.limits:
                what = limit_message(option.name, limit, number, dims)
                if what:
                    held = False
                    self.add_error("out-of-range", keys, what, valid_values(option, dims))
        return held

    def read_component(self, slot: str, given: Any, keys: Keys, dims: Dims) -> Any:
        """`name`, or a mapping with a name and options, as a mapping with every option."""
        found = self._named(slot, given, keys)
        if found is None:
            return UNREAD
        name = found["name"]
        problem = self.index.problem(slot, name, path=join_keys(keys), location=self.tree.location(keys))
        if problem is not None:
            self.problems.append(problem)
            return UNREAD
        options = {key: value for key, value in found.items() if key != "name"}
        entry = self.index.entries[slot][name]
        return {"name": name, **self.read_options(entry.options, options, keys, dims)}

    def _named(self, slot: str, given: Any, keys: Keys) -> Mapping[str, Any] | None:
        """A mapping whose name is text, or nothing, and then it is told why."""
        named = {"name": given} if isinstance(given, str) else given
        if isinstance(named, Mapping) and isinstance(named.get("name"), str) and named["name"] != MISSING:
            if len(keys) <= input_limits.DEPTH:
                return named
            # a component whose default is, in the end, itself
            self.add_error("too-deep", keys, "this is nested too deep", f"at most {input_limits.DEPTH} levels")
            return None
        valid = f"a name, or {{name: …, option: …}}; names: {join_names(self.index.names(slot))}"
        if isinstance(named, Mapping) and named.get("name", MISSING) == MISSING:
            self.add_error("missing", keys, f"the {slot} is still to be named", valid)
        elif (found := self.as_mapping(named, keys, valid)) is not None and found["name"] is not UNREAD:
            self.add_error(
                "wrong-type", (*keys, "name"), f"expected a name, but this is {value_text(found['name'])}", valid
            )
        return None


def plain_value(kind: Kind, given: Any) -> Any:
    """`given` as a value of this kind, or None if it is none."""
    if kind.name == "bool":
        return given if isinstance(given, bool) else None
    if kind.name == "str":
        return given if isinstance(given, str) else None
    if kind.name == "choice":
        return given if not isinstance(given, bool) and str(given) in kind.choices else None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not _finite(given):
        return None
    if kind.name == "int":
        return given if isinstance(given, int) else None
    return float(given)


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that no float can hold
        return False


def _not_finite(given: Any) -> bool:
    if isinstance(given, str):
        return given.lower() in _NOT_FINITE
    return isinstance(given, (int, float)) and not isinstance(given, bool) and not _finite(given)


def valid_values(option: Option, dims: Dims) -> str:
    """The values that would do, as far as they can be named."""
    null = ", or null" if option.kind.optional else ""
    for limit in option.limits:
        if isinstance(limit, Divides) and isinstance(whole := dims.get(limit.dim), int):
            return join_names(divisors(whole)) + null
    bounds = [str(limit) for limit in option.limits if isinstance(limit, Range)]
    bounds += [
        f"{'≥' if isinstance(limit, AtLeast) else '≤'} {dims[limit.dim]} (dims.{limit.dim})"
        for limit in option.limits
        if isinstance(limit, (AtLeast, AtMost)) and isinstance(dims.get(limit.dim), int)
    ]
    plain = str(replace(option.kind, optional=False))
    return " ".join(filter(None, [plain, " and ".join(filter(None, bounds))])) + null


def limit_message(name: str, limit: Limit, value: Any, dims: Dims) -> str:  # noqa: PLR0911  # one for each limit
    """What is wrong with a number, or nothing."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return ""
    if isinstance(limit, Range):
        return "" if limit.contains(value) else f"`{name}` must be {limit}, but is {value}"
    size = dims.get(limit.dim)
    if not isinstance(size, (int, float)) or isinstance(size, bool):
        return ""  # not known, or wrong itself
    if isinstance(limit, Divides):
        held = value > 0 and size % value == 0
        return "" if held else f"`{name}` must divide `dims.{limit.dim}` ({size}), but is {value}"
    if isinstance(limit, AtLeast):
        return "" if value >= size else f"`{name}` must be at least `dims.{limit.dim}` ({size}), but is {value}"
    if value <= size:
        return ""
    why = f": {limit.reason}" if limit.reason else ""
    return f"`{name}` must be at most `dims.{limit.dim}` ({size}), but is {value}{why}"


def divisors(whole: int) -> list[int]:
    small = [number for number in range(1, math.isqrt(whole) + 1) if whole % number == 0]
    return sorted({*small, *(whole // number for number in small)})
