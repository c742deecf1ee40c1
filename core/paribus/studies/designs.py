"""Designs: the variants of a study, from what it varies: one at a time, grid, list, ladder, factorial.

A value may have a condition: it applies only where an earlier axis has a certain value.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

from paribus.specs.diff import holds
from paribus.specs.load import set_path
from paribus.specs.tree import Tree, merge_values
from paribus.studies.fractional_factorial import RegularFraction, best_fraction, describe_aliases, members, roman

When = Mapping[str, Any]  # by axis: the value that it must have, or a list of allowed values
Conditions = Mapping[str, Sequence[When]]  # by axis: one for each value, empty where the value always applies
MAX_COUNTED: Final = 1_000_000  # combinations of dependent axes that are counted one by one
Change = tuple[str, Any]  # a dotted key and the value that it is given
BASELINE: Final = "baseline"
NAME: Final = "name"  # key of a listed variant or change
MAX_NAME: Final = 60  # characters of a name or a value


@final
@dataclass(frozen=True)
class Variant:
    """The base with some changes; the baseline has none, except in a leave-one-out design."""

    name: str
    changes: tuple[Change, ...] = ()
    is_explicit: bool = True  # listed in the file, not a cell of a product; an invalid one is an error
    previous: str = ""  # in a ladder: the rung below


@final
@dataclass(frozen=True, kw_only=True)
class Variation:
    """What a study varies: the sections that designs read."""

    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # values by axis
    when: Conditions = field(default_factory=dict)  # where the values of an axis apply
    variants: Sequence[Mapping[str, Any]] = ()  # complete variants
    changes: Sequence[Mapping[str, Any]] = ()  # combined, or removed one by one
    fraction: int = 1  # 1: all combinations of factors, 2: half of them, 4: a quarter …

    @property
    def factors(self) -> list[list[Variant]]:
        """The factors of a factorial, each with its levels besides the base's."""
        if self.changes:
            return [[part] for part in self.parts]
        return [[named_variant((key, value)) for value in values] for key, values in self.vary.items()]

    @property
    def regular(self) -> RegularFraction | None:
        """The generators of a fraction; None for a full factorial, or where no such fraction exists."""
        return best_fraction(len(self.factors), self.fraction.bit_length() - 1) if self.fraction > 1 else None

    @property
    def parts(self) -> list[Variant]:
        """The single changes in order: one for each listed change, or for each value of each axis."""
        return [*map(variant_from, self.changes)] if self.changes else [*one_at_a_time(self)]


def one_at_a_time(varied: Variation) -> Iterator[Variant]:
    """Yield each value of each axis by itself."""
    for key, values in varied.vary.items():
        for value in values:
            yield named_variant((key, value))


def grid(varied: Variation) -> Iterator[Variant]:
    """Yield every combination of values that applies."""
    return (named_variant(*cell.items(), chosen=False) for cell in applicable_cells(varied.vary, varied.when))


def listed_variants(varied: Variation) -> Iterator[Variant]:
    """Yield the listed variants, named by their `name` or by their changes."""
    return map(variant_from, varied.variants)


def ladder(varied: Variation) -> Iterator[Variant]:
    """Yield the base with the first change, with the first two, and so on."""
    changes: tuple[Change, ...] = ()
    previous = BASELINE
    for index, part in enumerate(varied.parts):
        name = part.name if varied.changes and NAME in varied.changes[index] else f"+ {part.name}"
        changes = (*changes, *part.changes)
        yield Variant(name, changes, previous=previous)
        previous = name


def leave_one_out(varied: Variation) -> Iterator[Variant]:
    """Yield all changes but one, for each change; the baseline has all."""
    parts = varied.parts
    for index, part in enumerate(parts):
        others = [*parts[:index], *parts[index + 1 :]]
        yield Variant(f"without {part.name}", tuple(change for other in others for change in other.changes))


def factorial(varied: Variation) -> Iterator[Variant]:
    """Yield every combination of levels, or a fraction of them, without the baseline."""
    return (variant for cell, variant in cells_with_variants(varied) if any(cell))


def cells_with_variants(varied: Variation) -> Iterator[tuple[tuple[int, ...], Variant]]:
    """Yield each cell of a factorial with its variant."""
    factors = varied.factors
    for cell in cells(varied):
        levels = [factors[factor][level - 1] for factor, level in enumerate(cell) if level]
        changes = tuple(change for level in levels for change in level.changes)
        yield cell, Variant(" + ".join(level.name for level in levels) or BASELINE, changes, is_explicit=False)


def cells(varied: Variation) -> Iterator[tuple[int, ...]]:
    """Yield the level of each factor in each cell; 0 is the base's level, and the first cell is the base."""
    if varied.fraction > 1:
        regular = varied.regular
        assert regular is not None, "reading a study checks its fraction"
        return regular.cells()
    return itertools.product(*(range(len(levels) + 1) for levels in varied.factors))


Design = Callable[[Variation], Iterator[Variant]]
DESIGNS: Final[Mapping[str, Design]] = {
    "one-at-a-time": one_at_a_time,
    "grid": grid,
    "list": listed_variants,
    "ladder": ladder,
    "leave-one-out": leave_one_out,
    "factorial": factorial,
}
PRODUCTS: Final = ("grid", "factorial")  # designs whose cells are not listed in the file
READS: Final[Mapping[str, tuple[str, ...]]] = {
    "one-at-a-time": ("vary",),
    "grid": ("vary",),
    "list": ("variants",),
    "ladder": ("changes", "vary"),
    "leave-one-out": ("changes", "vary"),
    "factorial": ("changes", "vary"),
}
"""Sections that a design reads; a study has one of them."""


def baseline(design: str, varied: Variation) -> Variant:
    """Return the baseline: the base, or the full model of a leave-one-out design."""
    if design != "leave-one-out":
        return Variant(BASELINE)
    return Variant(BASELINE, tuple(change for part in varied.parts for change in part.changes))


def describe_design(design: str, varied: Variation) -> str:
    """Return a sentence that explains the variants of a design, where their names alone would mislead."""
    if design == "ladder":
        return f"Each rung adds one change to the rung below it; the lowest is {BASELINE}."
    if design == "leave-one-out":
        names = ", ".join(part.name for part in varied.parts)
        return (
            f"The {BASELINE} is the full model, with every change ({names}); each variant removes one of them, "
            "so `worse` means that the change helped."
        )
    return _describe_factors(varied) if design == "factorial" else ""


def _describe_factors(varied: Variation) -> str:
    names = [levels[0].name if len(levels) == 1 else levels[0].changes[0][0] for levels in varied.factors]
    count = math.prod(len(levels) + 1 for levels in varied.factors)
    regular = varied.regular
    if regular is None:
        return f"The cells are all {count} combinations of {len(names)} factors; in {BASELINE} all are off."
    generated = "; ".join(
        f"{name} is on where an odd number of {', '.join(names[factor] for factor in members(generator))} are"
        for name, generator in zip(names[regular.basic :], regular.generators, strict=True)
    )
    return (
        f"The cells are {count // varied.fraction} of {count} combinations of {len(names)} factors, a fraction of "
        f"resolution {roman(regular.resolution)}: {generated}. {describe_aliases(regular, names)}"
    )


def describe_axes(varied: Variation) -> str:
    """Return the sizes of what varies: `attention: 3 x norm: 2`."""
    counts = [(key, len(values)) for key, values in varied.vary.items()]
    counts += [
        (key, len(mappings))
        for key, mappings in (("variants", varied.variants), ("changes", varied.changes))
        if mappings
    ]
    return " x ".join(f"{key}: {count}" for key, count in counts)


def variant_count(design: str, varied: Variation) -> int:
    """Return the number of variants besides the baseline, without making them."""
    if design == "list":
        return len(varied.variants)
    counts = [len(values) for values in varied.vary.values()]
    if design == "factorial":
        levels = [2] * len(varied.changes) or [count + 1 for count in counts]
        return math.prod(levels) // varied.fraction - 1
    if design == "grid":
        return count_combinations(varied.vary, varied.when) if counts else 0
    return len(varied.changes) or sum(counts)


def variant_from(changes: Mapping[str, Any]) -> Variant:
    """Return the variant of a listed mapping of changes, with or without a name."""
    variant = named_variant(*((key, value) for key, value in changes.items() if key != NAME))
    return replace(variant, name=str(changes[NAME])) if NAME in changes else variant


def effective_changes(changes: Iterable[Change]) -> dict[str, Any]:
    """Return the net result of changes by dotted key; a later change overrides or merges with an earlier one."""
    effective: dict[str, Any] = {}
    for key, value in changes:
        for inner in [other for other in effective if other.startswith(f"{key}.")]:
            del effective[inner]  # the new value contains it
        for outer in [other for other in effective if key.startswith(f"{other}.")]:
            tree = Tree({"": effective[outer]})
            set_path(tree, f".{key.removeprefix(f'{outer}.')}", Tree(value), "")
            effective[outer] = tree.data[""]
        effective[key] = merge_values(effective[key], value) if key in effective else value
    return effective


def named_variant(*changes: Change, chosen: bool = True) -> Variant:
    """Return a variant that is named by its changes: `attention=gqa(kv_heads=2) norm=rmsnorm`."""
    return Variant(" ".join(f"{key}={format_value(value)}" for key, value in changes), tuple(changes), chosen)


def format_value(value: Any) -> str:
    """Return a value as short text."""
    if isinstance(value, Mapping):
        options = ",".join(f"{key}={format_value(option)}" for key, option in value.items() if key != "name")
        name = str(value.get("name", ""))
        text = f"{name}({options})" if options else name
    elif isinstance(value, (list, tuple)):
        text = "[" + ",".join(format_value(item) for item in value) + "]"
    elif value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = str(value)
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 1] + "…"


def matches_condition(value: Any, allowed: Any) -> bool:
    if isinstance(allowed, list) and any(matches_condition(value, item) for item in allowed):
        return True
    if isinstance(value, str) and isinstance(allowed, Mapping):
        value = {"name": value}
    return holds(value, allowed)


def applicable_cells(vary: Mapping[str, Sequence[Any]], conditions: Conditions) -> Iterator[dict[str, Any]]:
    """Yield every combination of values that apply; an axis without such a value stays as in the base."""
    axes = list(vary)

    def extend(index: int, cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if index == len(axes):
            yield cell
            return
        key = axes[index]
        whens = conditions.get(key) or [{}] * len(vary[key])
        applicable = [value for value, when in zip(vary[key], whens, strict=True) if _is_met(when, cell)]
        for value in applicable:
            yield from extend(index + 1, {**cell, key: value})
        if not applicable:
            yield from extend(index + 1, cell)

    return extend(0, {})


def _is_met(when: When, cell: Mapping[str, Any]) -> bool:
    return all(axis in cell and matches_condition(cell[axis], allowed) for axis, allowed in when.items())


def count_combinations(vary: Mapping[str, Sequence[Any]], conditions: Conditions) -> int:
    """Return the number of applicable cells; above `MAX_COUNTED`, that of all cells."""
    dependent = {key for key, whens in conditions.items() for when in whens if when}
    dependent |= {axis for whens in conditions.values() for when in whens for axis in when}
    count = math.prod(len(vary[key]) for key in dependent)
    if count <= MAX_COUNTED:
        axes = {key: values for key, values in vary.items() if key in dependent}
        count = sum(1 for _ in applicable_cells(axes, conditions))
    return count * math.prod(len(values) for key, values in vary.items() if key not in dependent)
