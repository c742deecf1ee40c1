"""`exclude`: the cells of a product that a study leaves out, by what their specs say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from paribus.errors import Problem, listed
from paribus.specs.tree import Keys, shown
from paribus.specs.values import Checking
from paribus.studies.designs import BASELINE, PRODUCTS, Variant, named
from paribus.studies.differences import MISSING, at, holds

if TYPE_CHECKING:
    from paribus.studies.study import Study

REASON: Final = "reason"
EXAMPLE: Final = "exclude: [{attention: mqa, norm: rmsnorm, reason: …}]"


@final
@dataclass(frozen=True)
class Exclusion:
    """Cells of whose spec all of this holds: a component by its name or by some of its options, any other value."""

    holds: Mapping[str, Any]  # by dotted key
    reason: str
    at: Keys

    @property
    def why(self) -> str:
        """What a reader of the plan is told."""
        return self.reason or f"left out by `exclude`: {named(*self.holds.items()).name}"

    def covers(self, value: Callable[[str], Any]) -> bool:
        """Whether it is about a cell, of which `value` tells what stands at a dotted key."""
        return all(holds(value(key), wanted) for key, wanted in self.holds.items())


def exclusions_of(checking: Checking, given: Any, design: str) -> tuple[Exclusion, ...]:
    """The exclusions that a study writes down."""
    if not given:
        return ()
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        what = f"`exclude` is a list of mappings, but this is {shown(given)}"
        checking.wrong("wrong-type", ("exclude",), what, EXAMPLE)
        return ()
    if design and design not in PRODUCTS:
        what = f"the design `{design}` has only what is written down, so there is no cell to leave out"
        checking.wrong("not-read", ("exclude",), what, f"design: {listed(PRODUCTS)}")
    return tuple(_read(checking, each, ("exclude", place)) for place, each in enumerate(given))


def _read(checking: Checking, each: Mapping[str, Any], keys: Keys) -> Exclusion:
    reason = each.get(REASON, "")
    if not isinstance(reason, str):
        checking.wrong("wrong-type", (*keys, REASON), f"this is {shown(reason)}", "a sentence")
    cell = {key: value for key, value in each.items() if key != REASON}
    if not cell:
        checking.wrong("empty", keys, "this would leave out every cell", EXAMPLE)
    return Exclusion(cell, str(reason), keys)


def idle(study: Study, excluded: Iterable[tuple[str, str, str]]) -> Iterator[Problem]:
    """Levels of factors that are what the base has: their effects would be 0, and in part those of the others."""
    levels = {level.name: level for levels in study.varied.factors for level in levels}
    for name, _, same in excluded if study.design == "factorial" else ():
        if name in levels and same == BASELINE:
            key = levels[name].changes[0][0]
            what = f"`{name}` is what the base has, which every factor has as a level without being told"
            valid = "values that the base does not have"
            yield Problem(code="idle-level", path=key, where=study.written(key), what=what, valid=valid)


@final
class Excluding:
    """Which cells are left out; and at the end, which exclusions were about none."""

    def __init__(self, exclusions: Sequence[Exclusion]) -> None:
        self.exclusions = exclusions
        self.used: set[Keys] = set()

    def why(self, variant: Variant, spec: Mapping[str, Any] | None) -> str:
        """Why a cell is left out; empty where it is not. What cannot be has no spec, and is known by its changes."""
        changes = dict(variant.changes)
        found = ""
        for each in self.exclusions if not variant.chosen else ():
            if each.covers(lambda key: changes.get(key, MISSING) if spec is None else at(spec, key)):
                self.used.add(each.at)
                found = found or each.why
        return found

    def unused(self, where: Callable[[Keys], str]) -> Iterator[Problem]:
        """An exclusion about no cell was mistyped, or is no longer needed: nobody is to believe that it is in force."""
        for each in self.exclusions:
            if each.at not in self.used:
                what = f"there is no cell with {named(*each.holds.items()).name}, so this leaves nothing out"
                path = ".".join(map(str, each.at))
                yield Problem(code="no-cell", path=path, where=where(each.at), what=what, valid="what some cell has")
