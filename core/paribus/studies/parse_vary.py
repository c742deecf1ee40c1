"""What a study file says that it varies, read: `vary`, `variants` or `changes`, as its design takes them.

`exclude`: the cells of a product that a study leaves out, by what their specs say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, final

from paribus.errors import Problem, closest_match, join_names
from paribus.specs.diff import MISSING, at, holds
from paribus.specs.tree import Keys, shown
from paribus.specs.values import Validator
from paribus.studies.conditions import Conditions, check_conditions, parse_axis
from paribus.studies.designs import (
    BASELINE,
    DESIGNS,
    MAX_NAME,
    NAME,
    PRODUCTS,
    READS,
    Variant,
    Variation,
    named_variant,
)
from paribus.studies.fractional_factorial import is_possible

if TYPE_CHECKING:
    from paribus.studies.study import Study


KEYS: Final = ("vary", "variants", "changes")
CONDITIONED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("one-at-a-time", "ladder", "leave-one-out"), "tries no combinations, so `when` would be ignored"),
    "factorial": "needs factors that are free of each other: make one change of two that only go together",
}
EXAMPLES: Final[Mapping[str, str]] = {
    "vary": "vary: {attention: [mqa, gqa]}",
    "variants": "variants: [{attention: mqa, norm: rmsnorm}]",
    "changes": "changes: [{norm: rmsnorm}, {name: gated, feedforward: glu}]",
}


def parse_design(validator: Validator, given: Any) -> str:
    """The name of the design."""
    if isinstance(given, str) and given in DESIGNS:
        return str(given)
    near = closest_match(str(given), DESIGNS)
    validator.add_error("unknown-design", ("design",), f"there is no design {shown(given)}", join_names(DESIGNS), near)
    return ""


def parse_variation(validator: Validator, given: Mapping[str, Any], design: str) -> Variation:
    """What varies, and every problem of it; nothing that the design would not read."""
    vary, when = _vary(validator, given)
    variants, changes = (_mappings(validator, given, key) for key in ("variants", "changes"))
    varied = Variation(vary=vary, when=when, variants=variants, changes=changes)
    if design:
        _read(validator, design, varied)
    if design == "factorial":
        _free(validator, varied)
    if design and "fraction" in given:
        varied = replace(varied, fraction=_fraction(validator, given["fraction"], design, varied))
    return varied


def varied_keys(varied: Variation) -> list[tuple[Keys, str]]:
    """Every key that is varied, and where that was written."""
    found: list[tuple[Keys, str]] = [(("vary", key), key) for key in varied.vary]
    for way, written in (("variants", varied.variants), ("changes", varied.changes)):
        found += [((way, place, key), key) for place, each in enumerate(written) for key in each if key != NAME]
    return found


def _vary(validator: Validator, given: Mapping[str, Any]) -> tuple[dict[str, list[Any]], Conditions]:
    found = validator.mapping(given.get("vary") or {}, ("vary",), "slot: [values]") or {}
    axes = {key: parse_axis(validator, values, ("vary", key)) for key, values in found.items()}
    vary = {key: values for key, (values, _) in axes.items() if values}
    when = {key: whens for key, (_, whens) in axes.items() if any(whens)}
    check_conditions(validator, vary, {key: axes[key][1] for key in vary})
    return vary, when


def _mappings(validator: Validator, given: Mapping[str, Any], way: str) -> list[Mapping[str, Any]]:
    found = given.get(way) or []
    if not isinstance(found, list) or not all(isinstance(each, Mapping) and each for each in found):
        validator.add_error("wrong-type", (way,), f"`{way}` is a list of mappings", EXAMPLES[way])
        return []
    one = "a variant" if way == "variants" else "a change"
    for place, each in enumerate(found):
        name = each.get(NAME, "a name")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or name == BASELINE:
            what = f"{one} cannot be called {shown(name)}"
            validator.add_error("bad-name", (way, place, NAME), what, f"at most {MAX_NAME} letters, not {BASELINE}")
        if way == "changes" and set(each) == {NAME}:
            validator.add_error("empty", (way, place), f"`{name}` changes nothing", EXAMPLES[way])
    return found


def _read(validator: Validator, design: str, varied: Variation) -> None:
    said = [key for key in KEYS if getattr(varied, key)]
    reads = READS[design]
    for key in said:
        if key not in reads:
            what = f"the design `{design}` reads {_either(reads)}, so `{key}` would be ignored"
            others = [name for name, read in READS.items() if key in read]
            validator.add_error("not-read", (key,), what, f"design: {join_names(others)}")
    if len(reads) > 1 and set(reads) <= set(said):
        what = f"the design `{design}` reads {_either(reads)}, and this study has both"
        validator.add_error("too-many", (reads[0],), what, "one of them")
    if not said and not any(_explains(problem) for problem in validator.problems):
        validator.add_error("empty", (reads[0],), "this study varies nothing: 0 variants", EXAMPLES[reads[0]])
    if varied.when and design in CONDITIONED:
        key = next(iter(varied.when))
        validator.add_error("not-read", ("vary", key), f"the design `{design}` {CONDITIONED[design]}", "design: grid")
    if design == "leave-one-out":
        for key, values in varied.vary.items():
            if len(values) > 1:
                what = f"this axis has {len(values)} values, and of a full model it has one, which is taken back"
                validator.add_error("too-many", ("vary", key), what, "one value")


def _explains(problem: Problem) -> bool:
    """Whether it says why a study seems to vary nothing."""
    return problem.path.partition(".")[0] in KEYS or problem.suggestion in KEYS


def _fraction(validator: Validator, given: Any, design: str, varied: Variation) -> int:
    """How many combinations there are to each that is run."""
    at = ("fraction",)
    if design != "factorial":
        validator.add_error(
            "not-read", at, f"the design `{design}` has no factors to run a fraction of", "design: factorial"
        )
        return 1
    several = next((levels for levels in varied.factors if len(levels) > 1), None)
    if several is not None:
        what = f"a fraction is of factors with two levels, and `{several[0].changes[0][0]}` has {len(several) + 1}"
        validator.add_error("no-fraction", at, what, "one value for each axis, besides the base's")
        return 1
    factors = len(varied.factors)
    valid = [1 << halvings for halvings in range(1, factors) if is_possible(factors, halvings)]
    try:
        part = Fraction(str(given))
    except (ValueError, ZeroDivisionError):
        part = Fraction(0)
    if part.numerator != 1 or part.denominator not in valid:
        what = f"this is {shown(given)}, and {factors} factors have no such fraction here that tells main effects apart"
        validator.add_error("no-fraction", at, what, join_names(f"1/{each}" for each in valid) or "all of them")
        return 1
    return part.denominator


def _free(validator: Validator, varied: Variation) -> None:
    """Each factor can be on or off whatever the others are."""
    known: dict[str, str] = {}
    for place, part in enumerate(varied.parts if varied.changes else ()):
        for key, _ in part.changes:
            other = next((each for each in known if each == key or each.startswith(f"{key}.")), None)
            if other is not None:
                what = f"`{known[other]}` changes `{other}`, which this would undo where both are on"
                valid = "factors that leave each other be; or two values of one axis, under `vary`"
                validator.add_error("not-free", ("changes", place, key), what, valid)
        known |= dict.fromkeys((key for key, _ in part.changes), part.name)


def _either(keys: Sequence[str]) -> str:
    return " or ".join(f"`{key}`" for key in keys)


REASON: Final = "reason"
EXAMPLE: Final = "exclude: [{attention: mqa, norm: rmsnorm, reason: …}]"


@final
@dataclass(frozen=True)
class Exclusion:
    """Cells of whose spec all of this holds: a component by its name or by some of its options, any other value."""

    holds: Mapping[str, Any]  # by dotted key
    reason: str
    keys: Keys

    @property
    def message(self) -> str:
        """What a reader of the plan is told."""
        return self.reason or f"left out by `exclude`: {named_variant(*self.holds.items()).name}"

    def matches(self, value: Callable[[str], Any]) -> bool:
        """Whether it is about a cell, of which `value` tells what stands at a dotted key."""
        return all(holds(value(key), wanted) for key, wanted in self.holds.items())


def parse_exclusions(validator: Validator, given: Any, design: str) -> tuple[Exclusion, ...]:
    """The exclusions that a study writes down."""
    if not given:
        return ()
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        what = f"`exclude` is a list of mappings, but this is {shown(given)}"
        validator.add_error("wrong-type", ("exclude",), what, EXAMPLE)
        return ()
    if design and design not in PRODUCTS:
        what = f"the design `{design}` has only what is written down, so there is no cell to leave out"
        validator.add_error("not-read", ("exclude",), what, f"design: {join_names(PRODUCTS)}")
    return tuple(_read_exclusion(validator, each, ("exclude", place)) for place, each in enumerate(given))


def _read_exclusion(validator: Validator, each: Mapping[str, Any], keys: Keys) -> Exclusion:
    reason = each.get(REASON, "")
    if not isinstance(reason, str):
        validator.add_error("wrong-type", (*keys, REASON), f"this is {shown(reason)}", "a sentence")
    cell = {key: value for key, value in each.items() if key != REASON}
    if not cell:
        validator.add_error("empty", keys, "this would leave out every cell", EXAMPLE)
    return Exclusion(cell, str(reason), keys)


def idle_levels(study: Study, excluded: Iterable[tuple[str, str, str]]) -> Iterator[Problem]:
    """Levels of factors that are what the base has: their effects would be 0, and in part those of the others."""
    levels = {level.name: level for levels in study.varied.factors for level in levels}
    for name, _, same in excluded if study.design == "factorial" else ():
        if name in levels and same == BASELINE:
            key = levels[name].changes[0][0]
            what = f"`{name}` is what the base has, which every factor has as a level without being told"
            valid = "values that the base does not have"
            yield Problem(code="idle-level", path=key, location=study.location_of(key), message=what, valid=valid)


@final
class ExclusionFilter:
    """Which cells are left out; and at the end, which exclusions were about none."""

    def __init__(self, exclusions: Sequence[Exclusion]) -> None:
        self.exclusions = exclusions
        self.used: set[Keys] = set()

    def reason(self, variant: Variant, spec: Mapping[str, Any] | None) -> str:
        """Why a cell is left out; empty where it is not. What cannot be has no spec, and is known by its changes."""
        changes = dict(variant.changes)
        found = ""
        for each in self.exclusions if not variant.is_explicit else ():
            if each.matches(lambda key: changes.get(key, MISSING) if spec is None else at(spec, key)):
                self.used.add(each.keys)
                found = found or each.reason
        return found

    def unused(self, where: Callable[[Keys], str]) -> Iterator[Problem]:
        """An exclusion about no cell was mistyped, or is no longer needed: nobody is to believe that it is in force."""
        for each in self.exclusions:
            if each.keys not in self.used:
                what = f"there is no cell with {named_variant(*each.holds.items()).name}, so this leaves nothing out"
                path = ".".join(map(str, each.keys))
                yield Problem(
                    code="no-cell", path=path, location=where(each.keys), message=what, valid="what some cell has"
                )
