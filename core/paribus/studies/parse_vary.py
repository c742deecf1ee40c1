"""Parser of `vary` with its conditions `when`, of `variants`, `changes`, `fraction` and `exclude` in a study file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, final

from paribus.errors import Problem, join_names
from paribus.specs.diff import MISSING, holds
from paribus.specs.program_spec import PROGRAM
from paribus.specs.tree import UNREAD, Keys, get_path, join_keys, value_text
from paribus.specs.values import Validator
from paribus.studies.designs import (
    BASELINE,
    MAX_NAME,
    NAME,
    PRODUCTS,
    READS,
    Conditions,
    Variant,
    Variation,
    When,
    matches_condition,
    named_variant,
)
from paribus.studies.fractional_factorial import is_possible
from paribus.studies.study_keys import STUDY_OPTIONS, CommonKeys

REASON: Final = "reason"
AXIS_KEYS: Final = {"values", "when"}
VALUE_KEYS: Final = {"value", "when"}
WHEN_EXAMPLE: Final = "attention.window: {values: [8, 16], when: {attention: restricted}}"
KEYS: Final = ("vary", "variants", "changes")
MAX_AXES: Final = 6  # of an example
REFUSES_CONDITIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("one-at-a-time", "ladder", "leave-one-out"), "has no combinations, so `when` would be ignored"),
    "factorial": "needs independent factors: put two changes that only go together into one",
}


def parse_variation(validator: Validator, keys: CommonKeys) -> Variation:
    """Return what a study varies, and report its problems and what the design would ignore."""
    vary, when = _parse_axes(validator, keys.vary or {})
    varied = Variation(vary=vary, when=when, variants=keys.variants, changes=keys.changes)
    _check_names(validator, "variants", varied.variants)
    _check_names(validator, "changes", varied.changes)
    if keys.design:
        _check_design_keys(validator, keys.design, varied)
    if keys.design == "factorial":
        _check_independent(validator, varied)
    if keys.design and keys.fraction is not None:
        varied = replace(varied, fraction=_parse_fraction(validator, keys.fraction, keys.design, varied))
    return varied


def check_sections(validator: Validator, data: Mapping[str, Any]) -> dict[str, Any]:
    """Report a `vary` or `tune` that is no mapping, with the mapping that was meant; return both without it."""
    readable = {key: data[key] for key in ("vary", "tune") if key in data}
    for key, value in readable.items():
        if value is not None and value is not UNREAD and not isinstance(value, Mapping):
            message = f"expected a mapping of keys to the values to try, got {value_text(value)}"
            meant = _meant_axes(validator, data, value) or STUDY_OPTIONS[key].example
            example = replace(STUDY_OPTIONS[key], example=meant).example_text
            validator.add_error("wrong-type", (key,), message, f"a mapping, such as {example}")
            readable[key] = UNREAD
    return readable


def _meant_axes(validator: Validator, data: Mapping[str, Any], value: Any) -> dict[str, list[Any]]:
    """Return the axes that a list or a text names: `[attention, norm=rmsnorm, {dims.heads: 8}]`."""
    entries, is_program = validator.index.entries, PROGRAM in data
    axes: dict[str, list[Any]] = {}
    for item in value[:MAX_AXES] if isinstance(value, list) else [value]:
        pairs = item if isinstance(item, Mapping) else {item: None} if isinstance(item, str) else {}
        for key, values in pairs.items():
            name, equals, choice = str(key).partition("=")
            slot, dot, component = name.partition(".")
            if values is not None:
                axes.setdefault(name, []).extend(values if isinstance(values, list) else [values])
            elif equals:
                axes.setdefault(name, []).append(choice)
            elif not is_program and component in entries.get(slot, ()):
                axes.setdefault(slot, []).append(component)
            elif not is_program and name in entries:
                axes[name] = (STUDY_OPTIONS["vary"].example.get(name) or [*entries[name]])[:2]
            elif is_program or dot:
                axes[name] = ["…", "…"]
    return axes


def varied_keys(varied: Variation) -> list[tuple[Keys, str]]:
    """Return every varied key with its place in the file."""
    keys: list[tuple[Keys, str]] = [(("vary", key), key) for key in varied.vary]
    for section, mappings in (("variants", varied.variants), ("changes", varied.changes)):
        keys += [
            ((section, index, key), key) for index, mapping in enumerate(mappings) for key in mapping if key != NAME
        ]
    return keys


def null_keys(varied: Variation) -> set[str]:
    """Return the varied keys that have no other value than null."""
    values: dict[str, list[Any]] = {key: [*column] for key, column in varied.vary.items()}
    for mapping in (*varied.variants, *varied.changes):
        for key, value in mapping.items():
            values.setdefault(key, []).append(value)
    return {key for key, column in values.items() if all(value is None for value in column)}


def _parse_axes(validator: Validator, section: Mapping[str, Any]) -> tuple[dict[str, list[Any]], Conditions]:
    axes = {key: parse_axis(validator, axis, ("vary", key)) for key, axis in section.items()}
    vary = {key: values for key, (values, _) in axes.items() if values}
    when = {key: whens for key, (_, whens) in axes.items() if any(whens)}
    check_conditions(validator, vary, {key: axes[key][1] for key in vary})
    return vary, when


def _check_names(validator: Validator, section: str, mappings: Sequence[Mapping[str, Any]]) -> None:
    """Report invalid names of variants or changes, and those without a change."""
    kind = section.removesuffix("s")
    for index, mapping in enumerate(mappings):
        name = mapping.get(NAME, "a name")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or name == BASELINE:
            message = f"a {kind} cannot be called {value_text(name)}"
            valid = f"at most {MAX_NAME} letters, not {BASELINE}"
            validator.add_error("bad-name", (section, index, NAME), message, valid)
        if not mapping or (section == "changes" and set(mapping) == {NAME}):
            message = f"`{name}` changes nothing" if mapping else f"this {kind} changes nothing"
            validator.add_error("empty", (section, index), message, STUDY_OPTIONS[section].example_text)


def _check_design_keys(validator: Validator, design: str, varied: Variation) -> None:
    sections = [key for key in KEYS if getattr(varied, key)]
    reads = READS[design]
    either = " or ".join(f"`{key}`" for key in reads)
    for key in sections:
        if key not in reads:
            message = f"the design `{design}` reads {either}, so `{key}` would be ignored"
            designs = [name for name, keys in READS.items() if key in keys]
            validator.add_error("unused-option", (key,), message, f"design: {join_names(designs)}")
    if len(reads) > 1 and set(reads) <= set(sections):
        message = f"the design `{design}` reads {either}, and this study has both"
        validator.add_error("too-many", (reads[0],), message, "one of them")
    if not sections and not any(_is_about_variation(problem) for problem in validator.problems):
        validator.add_error(
            "empty", (reads[0],), "this study varies nothing: 0 variants", STUDY_OPTIONS[reads[0]].example_text
        )
    if varied.when and design in REFUSES_CONDITIONS:
        key = next(iter(varied.when))
        message = f"the design `{design}` {REFUSES_CONDITIONS[design]}"
        validator.add_error("unused-option", ("vary", key), message, "design: grid")
    if design == "leave-one-out":
        for key, values in varied.vary.items():
            if len(values) > 1:
                message = f"expected one value, which the full model has, got {len(values)}"
                validator.add_error("too-many", ("vary", key), message, "one value")


def _is_about_variation(problem: Problem) -> bool:
    """A problem that explains an empty variation: in one of the sections, or a misspelt section."""
    return problem.path.partition(".")[0] in KEYS or problem.suggestion.strip("`") in KEYS


def _parse_fraction(validator: Validator, value: Any, design: str, varied: Variation) -> int:
    """Return the number of combinations for each one that runs."""
    keys = ("fraction",)
    if design != "factorial":
        message = f"the design `{design}` has no factors, so it has no fraction"
        validator.add_error("unused-option", keys, message, "design: factorial")
        return 1
    multilevel = next((levels for levels in varied.factors if len(levels) > 1), None)
    if multilevel is not None:
        message = f"a fraction needs two levels, and `{multilevel[0].changes[0][0]}` has {len(multilevel) + 1}"
        validator.add_error("invalid-fraction", keys, message, "one value for each axis, besides the base's")
        return 1
    factors = len(varied.factors)
    valid = [1 << halvings for halvings in range(1, factors) if is_possible(factors, halvings)]
    try:
        fraction = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        fraction = Fraction(0)
    if fraction.numerator != 1 or fraction.denominator not in valid:
        message = f"got {value_text(value)}, and {factors} factors have no such fraction that tells main effects apart"
        validator.add_error("invalid-fraction", keys, message, join_names(f"1/{it}" for it in valid) or "all of them")
        return 1
    return fraction.denominator


def _check_independent(validator: Validator, varied: Variation) -> None:
    """Report factors that change a key of another factor."""
    factor_by_key: dict[str, str] = {}
    for index, part in enumerate(varied.parts if varied.changes else ()):
        for key, _ in part.changes:
            other = next((it for it in factor_by_key if it == key or it.startswith(f"{key}.")), None)
            if other is not None:
                message = f"`{factor_by_key[other]}` changes `{other}`, which this would undo where both are on"
                valid = "factors that change different keys; or two values of one axis, under `vary`"
                validator.add_error("not-free", ("changes", index, key), message, valid)
        factor_by_key |= dict.fromkeys((key for key, _ in part.changes), part.name)


# --- exclude ---


@final
@dataclass(frozen=True)
class Exclusion:
    """Cells to skip: those whose spec has all of these values."""

    holds: Mapping[str, Any]  # by dotted key: a component by its name or some of its options, or any other value
    reason: str
    keys: Keys

    @property
    def message(self) -> str:
        """The reason that a plan shows."""
        return self.reason or f"excluded by `exclude`: {named_variant(*self.holds.items()).name}"

    def matches(self, get_value: Callable[[str], Any]) -> bool:
        """Return whether a cell is excluded; `get_value` returns its value at a dotted key."""
        return all(holds(get_value(key), value) for key, value in self.holds.items())


def parse_exclusions(validator: Validator, keys: CommonKeys) -> tuple[Exclusion, ...]:
    """Return the section `exclude`."""
    if keys.exclude and keys.design and keys.design not in PRODUCTS:
        message = f"the design `{keys.design}` has only the variants that are listed, so `exclude` would be ignored"
        validator.add_error("unused-option", ("exclude",), message, f"design: {join_names(PRODUCTS)}")
    return tuple(_parse_exclusion(validator, cell, ("exclude", index)) for index, cell in enumerate(keys.exclude))


def _parse_exclusion(validator: Validator, mapping: Mapping[str, Any], keys: Keys) -> Exclusion:
    reason = mapping.get(REASON, "")
    if not isinstance(reason, str):
        validator.add_error("wrong-type", (*keys, REASON), f"got {value_text(reason)}", "a sentence")
    cell = {key: value for key, value in mapping.items() if key != REASON}
    if not cell:
        validator.add_error("empty", keys, "this would exclude every cell", STUDY_OPTIONS["exclude"].example_text)
    return Exclusion(cell, str(reason), keys)


def idle_levels(
    varied: Variation, design: str, excluded: Iterable[tuple[str, str, str]], location_of: Callable[[str], str]
) -> Iterator[Problem]:
    """Yield levels of factors that equal the base: they would distort the effects of the other levels."""
    levels = {level.name: level for levels in varied.factors for level in levels}
    for name, _, same_as in excluded if design == "factorial" else ():
        if name in levels and levels[name].changes and same_as == BASELINE:
            key = levels[name].changes[0][0]
            message = f"`{name}` is the value of the base, which is a level of every factor already"
            valid = "values that the base does not have"
            yield Problem(
                code="level-without-effect", path=key, location=location_of(key), message=message, valid=valid
            )


@final
class ExclusionFilter:
    """Filter of cells by the exclusions of a study, which records the exclusions that matched."""

    def __init__(self, exclusions: Sequence[Exclusion]) -> None:
        self.exclusions = exclusions
        self.used: set[Keys] = set()

    def reason(self, variant: Variant, spec: Mapping[str, Any] | None) -> str:
        """Return why a cell is excluded, or an empty string. A cell with an invalid spec is matched by its changes."""
        changes = dict(variant.changes)

        def get_value(key: str) -> Any:
            return changes.get(key, MISSING) if spec is None else get_path(spec, key, MISSING)

        reason = ""
        for exclusion in self.exclusions if not variant.is_explicit else ():
            if exclusion.matches(get_value):
                self.used.add(exclusion.keys)
                reason = reason or exclusion.message
        return reason

    def unused(self, location: Callable[[Keys], str]) -> Iterator[Problem]:
        """Yield a problem for each exclusion that matched no cell: it is misspelt, or no longer needed."""
        for exclusion in self.exclusions:
            if exclusion.keys not in self.used:
                name = named_variant(*exclusion.holds.items()).name
                yield Problem(
                    code="exclusion-without-match",
                    path=join_keys(exclusion.keys),
                    location=location(exclusion.keys),
                    message=f"no cell has {name}, so this excludes nothing",
                    valid="values of some cell",
                )


def parse_axis(validator: Validator, axis: Any, keys: Keys) -> tuple[list[Any], list[When]]:
    """Return the values of an axis with their conditions: `[mha, {value: …, when: …}]` or `{values: […], when: …}`."""
    axis_when: When = {}
    if isinstance(axis, Mapping) and set(axis) <= AXIS_KEYS and "values" in axis:
        axis_when = _parse_when(validator, axis.get("when", {}), (*keys, "when"))
        axis, keys = axis["values"], (*keys, "values")
    if not isinstance(axis, list) or not axis:
        message = f"expected a list of values, got {value_text(axis)}"
        meant = [axis] if axis else ["…", "…"]
        example = replace(STUDY_OPTIONS["vary"], name=join_keys(keys), example=meant).example_text
        validator.add_error("wrong-type", keys, message, f"{example}, or with a condition: {WHEN_EXAMPLE}")
        return [], []
    values: list[Any] = []
    whens: list[When] = []
    for index, item in enumerate(axis):
        if isinstance(item, Mapping) and set(item) == VALUE_KEYS:
            values.append(item["value"])
            whens.append({**axis_when, **_parse_when(validator, item["when"], (*keys, index, "when"))})
        else:
            values.append(item)
            whens.append({**axis_when})
    return values, whens


def _parse_when(validator: Validator, when: Any, keys: Keys) -> When:
    return validator.as_mapping(when, keys, "when: {attention: restricted}") or {}


def check_conditions(validator: Validator, vary: Mapping[str, Sequence[Any]], conditions: Conditions) -> None:
    """Report conditions on axes that come later or do not exist, and on values that the axis does not have."""
    previous: list[str] = []
    for key, whens in conditions.items():
        for when in whens:
            for axis, allowed in when.items():
                _check_condition(validator, key, axis, allowed, vary, previous)
        previous.append(key)


def _check_condition(
    validator: Validator, key: str, axis: str, allowed: Any, vary: Mapping[str, Sequence[Any]], previous: Sequence[str]
) -> None:
    if axis not in previous:
        message = f'`{key}` depends on "{axis}", which is not an axis above it'
        validator.add_error(
            "unknown-axis", ("vary", key), message, join_names(previous) or "an axis that is listed first"
        )
    elif not any(matches_condition(value, allowed) for value in vary[axis]):
        message = f"`{key}` never applies: `{axis}` never has the value of its condition"
        names = (value.get("name", value) if isinstance(value, Mapping) else value for value in vary[axis])
        validator.add_error("never-applies", ("vary", key), message, join_names(names))
