"""Designs: which variants a study has, given what it varies. Plain values in, plain values out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

from paribus.specs.override import put
from paribus.specs.tree import Tree, joined
from paribus.studies.conditions import Conditions, applicable_cells, count_combinations
from paribus.studies.fractional_factorial import RegularFraction, best_fraction, describe_aliases, members, roman

Change = tuple[str, Any]  # a dotted key and the value that it is given
BASELINE: Final = "baseline"
NAME: Final = "name"  # what a variant that is written down may be called
MAX_NAME: Final = 60  # letters of a value that are shown


@final
@dataclass(frozen=True)
class Variant:
    """The base with some changes; the baseline has none, unless changes are taken back from it."""

    name: str
    changes: tuple[Change, ...] = ()
    is_explicit: bool = True  # asked for by name, and not a cell of a product: where it is not valid, that is an error
    previous: str = ""  # the rung below it, of a ladder


@final
@dataclass(frozen=True, kw_only=True)
class Variation:
    """What a study says that it varies; each design reads a part of it."""

    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # axes
    when: Conditions = field(default_factory=dict)  # where the values of an axis apply
    variants: Sequence[Mapping[str, Any]] = ()  # whole ones
    changes: Sequence[Mapping[str, Any]] = ()  # what is put together, or taken back
    fraction: int = 1  # of the combinations of factors: every one, every second, every fourth …

    @property
    def factors(self) -> list[list[Variant]]:
        """What is free of each other in a factorial: the levels of each factor but the base's."""
        if self.changes:
            return [[part] for part in self.parts]
        return [[named_variant((key, value)) for value in values] for key, values in self.vary.items()]

    @property
    def regular(self) -> RegularFraction | None:
        """The generators of a fraction; none of a whole factorial, nor where there can be no such fraction."""
        return best_fraction(len(self.factors), self.fraction.bit_length() - 1) if self.fraction > 1 else None

    @property
    def parts(self) -> list[Variant]:
        """The changes one by one, in order; an axis has as many as it has values."""
        return [*map(variant_from, self.changes)] if self.changes else [*one_at_a_time(self)]


def one_at_a_time(varied: Variation) -> Iterator[Variant]:
    """Each value of each axis by itself, all else as in the base."""
    for key, values in varied.vary.items():
        for value in values:
            yield named_variant((key, value))


def grid(varied: Variation) -> Iterator[Variant]:
    """Every combination of one value from each axis, of those that apply."""
    return (named_variant(*cell.items(), chosen=False) for cell in applicable_cells(varied.vary, varied.when))


def listed_variants(varied: Variation) -> Iterator[Variant]:
    """The variants as they are written down, each called by its `name`, or else by what it changes."""
    return map(variant_from, varied.variants)


def ladder(varied: Variation) -> Iterator[Variant]:
    """Rung by rung: the base with the first change, with the first two, and so on."""
    climbed: tuple[Change, ...] = ()
    below = BASELINE
    for place, part in enumerate(varied.parts):
        name = part.name if varied.changes and NAME in varied.changes[place] else f"+ {part.name}"
        climbed = (*climbed, *part.changes)
        yield Variant(name, climbed, previous=below)
        below = name


def leave_one_out(varied: Variation) -> Iterator[Variant]:
    """All changes but one, for each of them; the baseline has all."""
    parts = varied.parts
    for place, part in enumerate(parts):
        kept = (other for at, other in enumerate(parts) if at != place)
        yield Variant(f"without {part.name}", tuple(change for other in kept for change in other.changes))


def factorial(varied: Variation) -> Iterator[Variant]:
    """Every combination of levels of the factors, or a fraction of them; that of the base's own is the baseline."""
    return (variant for cell, variant in cells_with_variants(varied) if any(cell))


def cells_with_variants(varied: Variation) -> Iterator[tuple[tuple[int, ...], Variant]]:
    """Each cell with the variant that it is."""
    factors = varied.factors
    for cell in cells(varied):
        levels = [factors[place][level - 1] for place, level in enumerate(cell) if level]
        changes = tuple(change for level in levels for change in level.changes)
        yield cell, Variant(" + ".join(level.name for level in levels) or BASELINE, changes, is_explicit=False)


def cells(varied: Variation) -> Iterator[tuple[int, ...]]:
    """The level of each factor in each cell of a factorial; 0 is the base's, which the first cell has of all."""
    if varied.fraction > 1:
        found = varied.regular
        assert found is not None, "a study is read only where its fraction can be"
        return found.cells()
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
PRODUCTS: Final = ("grid", "factorial")  # whose cells nobody wrote down one by one
READS: Final[Mapping[str, tuple[str, ...]]] = {
    "one-at-a-time": ("vary",),
    "grid": ("vary",),
    "list": ("variants",),
    "ladder": ("changes", "vary"),
    "leave-one-out": ("changes", "vary"),
    "factorial": ("changes", "vary"),
}
"""The keys of a study that a design reads, of which a study has one."""


def baseline(design: str, varied: Variation) -> Variant:
    """What all variants are held against: the base, or all that a design takes back one by one."""
    if design != "leave-one-out":
        return Variant(BASELINE)
    return Variant(BASELINE, tuple(change for part in varied.parts for change in part.changes))


def describe_design(design: str, varied: Variation) -> str:
    """How the variants of a design are to be read, where their names alone would mislead."""
    if design == "ladder":
        return f"Each rung has its own change and those of all rungs below it; the lowest is {BASELINE}."
    if design == "leave-one-out":
        names = ", ".join(part.name for part in varied.parts)
        return (
            f"The {BASELINE} is the full model, with every change ({names}); each variant has one of them taken back, "
            "so that `worse` says that the change helped."
        )
    return _of_factors(varied) if design == "factorial" else ""


def _of_factors(varied: Variation) -> str:
    names = [levels[0].name if len(levels) == 1 else levels[0].changes[0][0] for levels in varied.factors]
    count = math.prod(len(levels) + 1 for levels in varied.factors)
    found = varied.regular
    if found is None:
        return f"The cells are all {count} combinations of {len(names)} factors; {BASELINE} has none of them on."
    generated = "; ".join(
        f"{name} is on where an odd number of {', '.join(names[each] for each in members(those))} are"
        for name, those in zip(names[found.basic :], found.generators, strict=True)
    )
    return (
        f"The cells are {count // varied.fraction} of {count} combinations of {len(names)} factors, a fraction of "
        f"resolution {roman(found.resolution)}: {generated}. {describe_aliases(found, names)}"
    )


def describe_axes(varied: Variation) -> str:
    """Of what a study with too many trials has how many: `attention: 3 x norm: 2`."""
    counts = [(key, len(values)) for key, values in varied.vary.items()]
    counts += [
        (key, len(those)) for key, those in (("variants", varied.variants), ("changes", varied.changes)) if those
    ]
    return " x ".join(f"{key}: {count}" for key, count in counts)


def variant_count(design: str, varied: Variation) -> int:
    """How many variants there will be, the baseline not counted, without making one."""
    if design == "list":
        return len(varied.variants)
    counts = [len(values) for values in varied.vary.values()]
    if design == "factorial":
        levels = [2] * len(varied.changes) or [each + 1 for each in counts]
        return math.prod(levels) // varied.fraction - 1
    if design == "grid":
        return count_combinations(varied.vary, varied.when) if counts else 0
    return len(varied.changes) or sum(counts)


def variant_from(changes: Mapping[str, Any]) -> Variant:
    """A variant that is written down as a mapping of changes, with or without a name."""
    found = named_variant(*((key, value) for key, value in changes.items() if key != NAME))
    return replace(found, name=str(changes[NAME])) if NAME in changes else found


def effective_changes(changes: Iterable[Change]) -> dict[str, Any]:
    """What changes come to, one after another, by dotted key: a later one overrides what an earlier one said."""
    found: dict[str, Any] = {}
    for key, value in changes:
        for other in [other for other in found if other.startswith(f"{key}.")]:
            del found[other]  # it is within what is now said, by which it was replaced or merged with it
        for other in [other for other in found if key.startswith(f"{other}.")]:
            tree = Tree({"": found[other]})
            put(tree, f".{key.removeprefix(f'{other}.')}", Tree(value), "")
            found[other] = tree.data[""]
        found[key] = joined(found[key], value) if key in found else value
    return found


def named_variant(*changes: Change, chosen: bool = True) -> Variant:
    """A variant named by its changes: `attention=gqa(kv_heads=2) norm=rmsnorm`."""
    return Variant(" ".join(f"{key}={format_value(value)}" for key, value in changes), tuple(changes), chosen)


def format_value(value: Any) -> str:
    """A value in a few letters."""
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
