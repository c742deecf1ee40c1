"""Validation of single values and components: types, limits, sizes and unknown keys."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, final

from paribus.errors import Problem, closest_match, join_names
from paribus.registry import Index
from paribus.schema import AtLeast, AtMost, Divides, Kind, Limit, Names, Option, Pattern, Range
from paribus.specs.fields import CYCLED, MEASURED, SUMMED, suggest_key
from paribus.specs.tree import DEPTH, UNREAD, Keys, Tree, join_keys, merge_values, value_text

MISSING: Final = "???"
MAX_PROBLEMS: Final = 100  # maximum number of reported problems
_NOT_FINITE: Final = frozenset({"nan", "inf", "+inf", "-inf", "infinity", "-infinity", ".nan", ".inf", "-.inf"})
_OPEN: Final = ("any", "mapping", "str")  # kinds that do not describe their values
Dims = Mapping[str, Any]
Options = Sequence[Option]


@final
class Validator:
    """Collects the problems of a tree while reading its values, with every default filled in."""

    def __init__(self, tree: Tree, index: Index) -> None:
        self.tree = tree
        self.index = index
        self.problems: list[Problem] = list(tree.problems)
        self._reported = set(self.problems)

    def add_error(self, code: str, keys: Keys, message: str, valid: str = "", suggestion: str = "") -> Any:
        """Add a problem, and return the placeholder for the invalid value."""
        if len(self.problems) >= MAX_PROBLEMS:
            return UNREAD
        location = self.tree.location(keys)
        problem = Problem(
            code=code, path=join_keys(keys), location=location, message=message, valid=valid, suggestion=suggestion
        )
        if problem not in self._reported:
            self._reported.add(problem)
            self.problems.append(problem)
        return UNREAD

    def as_mapping(self, value: Any, keys: Keys, valid: str) -> Mapping[str, Any] | None:
        """Return the value if it is a mapping, else report a problem."""
        if value is UNREAD or isinstance(value, Mapping):
            return value if isinstance(value, Mapping) else None
        self.add_error("wrong-type", keys, f"expected a mapping, got {value_text(value)}", valid)
        return None

    def read_options(self, options: Options, values: Mapping[str, Any], keys: Keys, dims: Dims) -> dict[str, Any]:
        """Return a value for each option, the given one or the default; report unknown keys."""
        given = self.read_given(options, values, keys, dims)
        return {
            option.name: given[option.name]
            if option.name in given
            else self.read_default(option, (*keys, option.name), dims)
            for option in options
        }

    def read_given(
        self, options: Sequence[Option], values: Mapping[str, Any], keys: Keys, dims: Dims
    ) -> dict[str, Any]:
        """Return the given value of each option that has one; report unknown keys."""
        self.check_keys(values, keys, [option.name for option in options])
        return {
            option.name: self.read_option(option, values[option.name], (*keys, option.name), dims)
            for option in options
            if option.name in values
        }

    def check_keys(self, values: Iterable[str], keys: Keys, known_keys: Sequence[str]) -> None:
        """Report unknown keys of the mapping at `keys`."""
        for key in values:
            if key not in known_keys and len(self.problems) < MAX_PROBLEMS:
                valid = join_names(known_keys) if known_keys else "nothing: it has no options"
                suggestion = suggest_key(key, known_keys)
                self.add_error("unknown-key", (*keys, key), f'unknown key "{key}"', valid, suggestion)

    def read_default(self, option: Option, keys: Keys, dims: Dims) -> Any:
        if option.required:
            message = f"`{option.name}` is missing: {option.doc}"
            return self.add_error("missing", keys, message, valid_values(option, dims))
        if option.kind.name == "slot":
            return self.read_option(option, option.default, keys, dims)
        if option.kind.name == "group" and option.default is not None:
            return self.read_options(option.kind.options, option.default, keys, dims)
        value = [*option.default] if isinstance(option.default, (list, tuple)) else option.default
        self.check_limits(option, value, keys, dims)  # a default may break a limit that depends on the dims
        return value

    def read_option(self, option: Option, raw: Any, keys: Keys, dims: Dims) -> Any:
        """Return the value of one option, after checking its limits."""
        if raw is UNREAD:
            return UNREAD
        if raw == MISSING:
            message = f"`{option.name}` has no value yet (???): {option.doc}"
            return self.add_error("missing", keys, message, valid_values(option, dims))
        value = self.read_kind(option, option.kind, raw, keys, dims)
        if value is not UNREAD and value is not None and not self.check_limits(option, value, keys, dims):
            return UNREAD
        return value

    def read_kind(  # noqa: PLR0911  # one return for each kind
        self, option: Option, kind: Kind, raw: Any, keys: Keys, dims: Dims
    ) -> Any:
        if kind.name == "any" or (raw is None and kind.optional):
            return raw
        if kind.name == "slot":
            merged = merge_values(option.default, raw) if isinstance(raw, Mapping) and "name" not in raw else raw
            return self.read_component(kind.slot, merged, keys, dims)
        if kind.name == "mapping":
            mapping = self.as_mapping(raw, keys, valid_values(option, dims))
            return UNREAD if mapping is None else mapping
        if kind.name == "group":
            if isinstance(raw, str) and any(field.name == "name" for field in kind.options):
                raw = {"name": raw}  # as of a component
            mapping = self.as_mapping(raw, keys, _group_text(option, kind))
            defaults = (
                option.default if isinstance(option.default, Mapping) else {}
            )  # may differ from the fields' defaults
            return UNREAD if mapping is None else self.read_options(kind.options, {**defaults, **mapping}, keys, dims)
        if kind.name == "list":
            return self.read_list(option, kind, raw, keys, dims)
        value = plain_value(kind, raw)
        if value is not None:
            return value
        if kind.name in ("int", "float") and _not_finite(raw):
            return self.add_error(
                "not-finite", keys, f"expected a finite number, got {value_text(raw)}", valid_values(option, dims)
            )
        suggestion = closest_match(raw, kind.choices) if isinstance(raw, str) else ""
        message = f"expected {kind}, got {value_text(raw)}"
        return self.add_error("wrong-type", keys, message, valid_values(option, dims), suggestion)

    def read_list(self, option: Option, kind: Kind, raw: Any, keys: Keys, dims: Dims) -> Any:
        is_list, has_kinds, item_kind = isinstance(raw, (list, tuple)), len(kind.items) > 1, kind.items[0].name
        if not is_list and item_kind == "group":  # one item stands for a list of one
            value = self.read_kind(option, kind.items[0], raw, keys, dims)
            return UNREAD if value is UNREAD else [value]
        items = raw if is_list else [raw]
        is_refused = raw is None or isinstance(raw, Mapping) or (item_kind == "mapping" and not is_list)
        if (has_kinds and len(items) != len(kind.items)) or is_refused:
            valid = valid_values(option, dims)
            return self.add_error("wrong-type", keys, f"expected {kind}, got {value_text(raw)}", valid)
        kinds = kind.items if has_kinds else [kind.items[0] for _ in items]
        values = [
            self.read_kind(option, item, value, (*keys, index), dims)
            for index, (item, value) in enumerate(zip(kinds, items, strict=True))
        ]
        return UNREAD if any(value is UNREAD for value in values) else values

    def check_limits(self, option: Option, value: Any, keys: Keys, dims: Dims) -> bool:
        """Return whether the value is within all limits; report each violation."""
        numbers = value if isinstance(value, list) else [value]
        is_valid = True
        for number in numbers:
            for limit in option.limits:
                message = limit_message(option.name, limit, number, dims)
                if message:
                    is_valid, code, suggestion = False, "out-of-range", ""
                    if isinstance(limit, Names):
                        code, suggestion = f"unknown-{limit.noun}", closest_match(number, limit.names)
                    elif isinstance(limit, Pattern):
                        code = "bad-name"
                    self.add_error(code, keys, message, valid_values(option, dims), suggestion)
        return is_valid

    def read_component(self, slot: str, raw: Any, keys: Keys, dims: Dims) -> Any:
        """Read a component, a name or a mapping with a name and options, as a mapping with every option."""
        node = self._named(slot, raw, keys)
        if node is None:
            return UNREAD
        name = node["name"]
        problem = self.index.problem(slot, name, path=join_keys(keys), location=self.tree.location(keys))
        if problem is not None:
            self.problems.append(problem)
            return UNREAD
        options = {key: value for key, value in node.items() if key != "name"}
        entry = self.index.entries[slot][name]
        return {"name": name, **self.read_options(entry.options, options, keys, dims)}

    def _named(self, slot: str, raw: Any, keys: Keys) -> Mapping[str, Any] | None:
        """Return a mapping with a name, or report a problem and return None."""
        node = {"name": raw} if isinstance(raw, str) else raw
        if isinstance(node, Mapping) and isinstance(node.get("name"), str) and node["name"] != MISSING:
            if len(keys) <= DEPTH:
                return node
            # a component whose default contains itself
            self.add_error("too-deep", keys, "this is nested too deep", f"at most {DEPTH} levels")
            return None
        valid = f"a name, or {{name: …, option: …}}; names: {join_names(self.index.names(slot))}"
        if isinstance(node, Mapping) and node.get("name", MISSING) == MISSING:
            self.add_error("missing", keys, f"the {slot} has no name yet (???)", valid)
        elif (mapping := self.as_mapping(node, keys, valid)) is not None and mapping["name"] is not UNREAD:
            self.add_error("wrong-type", (*keys, "name"), f"expected a name, got {value_text(mapping['name'])}", valid)
        return None


def _group_text(option: Option, kind: Kind) -> str:
    """Return the options of a group, with an example if some are required."""
    required = {field.name: field.example for field in kind.options if field.required}
    example = f", such as {replace(option, example=required).example_text}" if required else ""
    return join_names(field.name for field in kind.options) + example


def plain_value(kind: Kind, raw: Any) -> Any:
    """Return a raw value converted to a kind, or None if it has another type."""
    if kind.name == "bool":
        return raw if isinstance(raw, bool) else None
    if kind.name == "str":
        return raw if isinstance(raw, str) else None
    if kind.name == "choice":
        return raw if not isinstance(raw, bool) and str(raw) in kind.choices else None
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not _finite(raw):
        return None
    if kind.name == "int":
        return raw if isinstance(raw, int) else None
    return float(raw)


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer too large for a float
        return False


def _not_finite(raw: Any) -> bool:
    if isinstance(raw, str):
        return raw.lower() in _NOT_FINITE
    return isinstance(raw, (int, float)) and not isinstance(raw, bool) and not _finite(raw)


def valid_values(option: Option, dims: Dims) -> str:
    """Describe the valid values of an option."""
    null = ", or null" if option.kind.optional else ""
    for limit in option.limits:
        if isinstance(limit, Divides) and isinstance(size := dims.get(limit.dim), int):
            return join_names(divisors(size)) + null
        if isinstance(limit, (Pattern, Names)):
            return str(limit)
    bounds = [str(limit) for limit in option.limits if isinstance(limit, Range)]
    bounds += [
        f"{'≥' if isinstance(limit, AtLeast) else '≤'} {dims[limit.dim]} (dims.{limit.dim})"
        for limit in option.limits
        if isinstance(limit, (AtLeast, AtMost)) and isinstance(dims.get(limit.dim), int)
    ]
    plain = str(replace(option.kind, optional=False))
    if option.example is not None and any(kind.name in _OPEN for kind in (option.kind, *option.kind.items)):
        return f"{plain}, such as {option.example_text}"
    return " ".join(filter(None, [plain, " and ".join(filter(None, bounds))])) + null


def limit_message(name: str, limit: Limit, value: Any, dims: Dims) -> str:  # noqa: PLR0911  # one return for each limit
    """Return a message if a number or a text violates a limit, or an empty string."""
    if isinstance(value, str) and isinstance(limit, Pattern):
        return "" if re.fullmatch(limit.regex, value) else f"`{name}` must be {limit}, got {value_text(value)}"
    if isinstance(value, str) and isinstance(limit, Names):
        return "" if value in limit.names else f'unknown {limit.noun} "{value}"'
    if isinstance(value, bool) or not isinstance(value, (int, float)) or isinstance(limit, (Pattern, Names)):
        return ""
    if isinstance(limit, Range):
        return "" if limit.contains(value) else f"`{name}` must be {limit}, got {value}"
    size = dims.get(limit.dim)
    if not isinstance(size, (int, float)) or isinstance(size, bool):
        return ""  # unknown or invalid
    if isinstance(limit, Divides):
        divides = value > 0 and size % value == 0
        return "" if divides else f"`{name}` must divide `dims.{limit.dim}` ({size}), got {value}"
    if isinstance(limit, AtLeast):
        return "" if value >= size else f"`{name}` must be at least `dims.{limit.dim}` ({size}), got {value}"
    if value <= size:
        return ""
    reason = f": {limit.reason}" if limit.reason else ""
    return f"`{name}` must be at most `dims.{limit.dim}` ({size}), got {value}{reason}"


def divisors(whole: int) -> list[int]:
    small_divisors = [divisor for divisor in range(1, math.isqrt(whole) + 1) if whole % divisor == 0]
    return sorted({*small_divisors, *(whole // divisor for divisor in small_divisors)})


def resolve_components(validator: Validator, slot: str, value: Any, keys: Keys, dims: Mapping[str, Any]) -> Any:
    """Read one component, or a list of them if the slot takes a list."""
    if not isinstance(value, list) or slot not in (*CYCLED, *SUMMED, *MEASURED):
        return validator.read_component(slot, value, keys, dims)
    if not value:
        return validator.add_error("empty", keys, f"this list is empty; expected a name of {slot}", "at least one")
    components = [validator.read_component(slot, item, (*keys, index), dims) for index, item in enumerate(value)]
    layers = dims["layers"]
    if slot in CYCLED and isinstance(layers, int) and len(components) > layers:
        message = f"a list of {len(components)} is cycled over {layers} layers, so its last items would be ignored"
        validator.add_error("unused-option", keys, message, f"a list of at most {layers}")
    if slot in (*SUMMED, *MEASURED):
        _once(validator, slot, components, keys)
    return components


def _once(validator: Validator, slot: str, components: list[Any], keys: Keys) -> None:
    names = [node["name"] for node in components if node is not UNREAD]
    for name in sorted({name for name in names if names.count(name) > 1}):
        validator.add_error("duplicate-item", keys, f"`{name}` is in this list twice", f"each {slot} once")


def check_sizes(validator: Validator, dims: Mapping[str, Any], keys: Keys) -> None:
    """Require that heads divide the width, and groups or loops the layers."""
    check_width(validator, dims, keys)
    layers, groups = dims["layers"], dims["groups"]
    if isinstance(groups, int) and isinstance(layers, int) and layers % groups:
        message = f"`dims.groups` ({groups}) does not divide `dims.layers` ({layers}), so that runs would not be equal"
        validator.add_error("not-divisible", (*keys, "groups"), message, join_names(divisors(layers)))
    _check_loop(validator, dims, keys)


def _check_loop(validator: Validator, dims: Mapping[str, Any], keys: Keys) -> None:
    """Require a whole number of layers in each pass of a loop."""
    layers, loops, before, after = (dims[name] for name in ("layers", "loops", "before_loop", "after_loop"))
    if loops is None:
        set_ = [name for name in ("before_loop", "after_loop", "loop_embedding") if dims[name]]
        if set_:
            message = f"`dims.{set_[0]}` is set, but there is no loop"
            validator.add_error("does-not-fit", (*keys, set_[0]), message, "dims.loops: a number of passes")
        return
    if dims["groups"] is not None:
        message = "`dims.loops` and `dims.groups` both say which layers share parameters"
        validator.add_error("does-not-fit", (*keys, "loops"), message, "one of them")
    elif all(isinstance(value, int) for value in (layers, loops, before, after)):
        looped = layers - before - after
        if looped < loops or looped % loops:
            rest = f" - {before} before - {after} after the loop" if before or after else ""
            message = f"{loops} passes do not divide the {looped} layers of the loop (`dims.layers` {layers}{rest})"
            valid = join_names(divisors(looped)) if looped > 0 else f"dims.layers > {before + after}"
            validator.add_error("not-divisible", (*keys, "loops"), message, valid)


def check_width(validator: Validator, dims: Mapping[str, Any], keys: Keys) -> None:
    """Require that heads divide the width, unless a head width is set."""
    width, heads = dims["width"], dims["heads"]
    if dims["head_width"] is not None or not isinstance(width, int) or not isinstance(heads, int) or width % heads == 0:
        return
    widths = " or ".join(str(size) for size in (width // heads * heads, (width // heads + 1) * heads) if size)
    divisors_ = [number for number in divisors(width) if number <= 2 * heads]
    message = f"`dims.width` ({width}) is not a multiple of `{join_keys(keys)}.heads` ({heads})"
    valid = f"dims.width {widths}, heads {join_names(divisors_[-6:])}, or a head_width of its own"
    validator.add_error("not-divisible", (*keys, "heads"), message, valid)
