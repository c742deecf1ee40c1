"""Covering arrays: so few rows that any few values which go together stand together in one of them.

Every way to fill the slots of a layer, in every topology: which of them `check` refuses, and why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, product
from typing import Any, Final, final

from paribus.errors import Problem, SpecError
from paribus.registry import Entry, Registry
from paribus.specs import resolved
from paribus.specs.check import check
from paribus.specs.load import load
from paribus.testing.host_models import PRESETS, SMALL, example

Row = dict[str, str]
Few = tuple[tuple[str, str], ...]
"""Some of a row, in the order of the axes: (axis, value) each."""


def covering(axes: Mapping[str, Sequence[str]], possible: Callable[[Few], bool], strength: int = 3) -> list[Row]:
    """Rows with a value of each axis, in which every `strength` values of different axes that are possible come up.

    `possible` says whether some row with these values may be. Greedy, one row for the first that is still missing, and
    the same rows each time: "The AETG System" (Cohen et al. 1997), with no draws.
    """
    missing = dict.fromkeys(few for few in _all(axes, strength) if possible(few))
    rows: list[Row] = []
    while missing:
        row = _filled(dict(next(iter(missing))), axes, possible, missing, strength, turn=len(rows))
        for few in _within(row, axes, strength):
            missing.pop(few, None)
        rows.append(row)
    return rows


def _all(axes: Mapping[str, Sequence[str]], strength: int) -> Iterator[Few]:
    """Of the axes with the most values first, as those need the most rows, which then have the others for nothing."""
    chosen = sorted(combinations(axes, strength), key=lambda names: -_size(axes, names))
    for names in chosen:
        for values in product(*(axes[name] for name in names)):
            yield tuple(zip(names, values, strict=True))


def _size(axes: Mapping[str, Sequence[str]], names: Sequence[str]) -> int:
    size = 1
    for name in names:
        size *= len(axes[name])
    return size


def _filled(
    row: Row,
    axes: Mapping[str, Sequence[str]],
    possible: Callable[[Few], bool],
    missing: Mapping[Few, None],
    strength: int,
    turn: int,
) -> Row:
    """The row with what it lacks, each time the value with which most of what is missing comes up."""
    for name in sorted((name for name in axes if name not in row), key=lambda name: -len(axes[name])):
        values = axes[name]
        turned = [values[(place + turn) % len(values)] for place in range(len(values))]  # or ties are one value's
        fitting = [value for value in turned if possible(_sorted({**row, name: value}, axes))]
        assert fitting, "what is possible can be filled up"
        beside = list(_within(row, axes, strength - 1))
        row[name] = max(
            fitting, key=lambda value: sum(_sorted({**dict(few), name: value}, axes) in missing for few in beside)
        )
    return row


def _within(row: Row, axes: Mapping[str, Sequence[str]], strength: int) -> Iterator[Few]:
    return combinations(_sorted(row, axes), strength)


def _sorted(row: Row, axes: Mapping[str, Sequence[str]]) -> Few:
    return tuple((name, row[name]) for name in axes if name in row)


AXES: Final = ("topology", "attention", "position", "placement", "norm", "feedforward")
UNREAD: Final = ""  # stands for a slot that the topology does not read
_SIZES: Final = {**SMALL, "dims.layers": 1, "dims.length": 16}


@final
class Matrix:
    """All cells over what is installed. A cell names a component for each axis, or `UNREAD`.

    The rules look at what components declare, and never at names: so two that declare the same are one *kind*, and a
    verdict over kinds is one over all cells. `make test-matrix` puts every cell through `check` none the less.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.index = registry.index
        self.bases = self._bases()
        self.axes: dict[str, tuple[str, ...]] = {"topology": tuple(self.bases)}
        for slot in AXES[1:]:
            unread = any(slot not in self._topology(name).reads for name in self.bases)
            self.axes[slot] = (*self.index.entries[slot], *([UNREAD] if unread else []))
        self._verdicts: dict[tuple[str, ...], tuple[Problem, ...]] = {}

    def cells(self) -> Iterator[Row]:
        """The whole product, less what fills a slot that its topology never reads, or leaves empty one that it does."""
        for values in product(*self.axes.values()):
            row = dict(zip(self.axes, values, strict=True))
            if self._whole(row):
                yield row

    def spec(self, row: Mapping[str, str]) -> dict[str, Any]:
        """A cell, as a user would write it: the smallest preset of its topology, with these components in it."""
        base = self.bases[row["topology"]]
        nodes = {slot: example(self.index.entries[slot][row[slot]]) for slot in AXES[1:] if row[slot] != UNREAD}
        return {**base, **nodes, "parts": self._parts(row, base)}

    def refusal(self, row: Mapping[str, str]) -> tuple[Problem, ...]:
        """What `check` has to say of one cell: nothing, if it passes."""
        return self.told(self.spec(row))

    def told(self, spec: Mapping[str, Any]) -> tuple[Problem, ...]:
        """What `check` has to say of a spec."""
        try:
            check(load(spec, (), self.index), self.index)
        except SpecError as error:
            return error.problems
        return ()

    def verdict(self, row: Mapping[str, str]) -> tuple[Problem, ...]:
        """The same, of the first cell of its kind; found out once."""
        kinds = self.kinds(row)
        if kinds not in self._verdicts:
            self._verdicts[kinds] = self.refusal(row)
        return self._verdicts[kinds]

    def kinds(self, row: Mapping[str, str]) -> tuple[str, ...]:
        """What the rules can tell cells apart by."""
        return tuple(self._kind(slot, row[slot]) for slot in AXES)

    def nearest(self, row: Mapping[str, str]) -> Row | None:
        """A cell that passes, and of those the first with the fewest other components; of the same topology if any."""
        slots = AXES[:0:-1]  # the feed-forward first, and the attention last
        for count in range(1, len(AXES)):
            for changed in combinations(slots, count):
                for values in product(*(self.axes[slot] for slot in changed)):
                    other = {**row, **dict(zip(changed, values, strict=True))}
                    if self._whole(other) and not self.verdict(other):
                        return other
        return None

    def covering(self, strength: int = 3) -> list[Row]:
        """Cells that pass, in which any `strength` components that go together do."""
        return covering(self.axes, self.possible, strength)

    def possible(self, few: Few) -> bool:
        """Whether some cell with these components passes."""
        return tuple((slot, self._kind(slot, value)) for slot, value in few) in self._passing

    @cached_property
    def _passing(self) -> set[Few]:
        """Whatever stands together in some cell that passes, by kind."""
        passing: set[Few] = set()
        for row in self.firsts():
            if not self.verdict(row):
                kinds = tuple(zip(AXES, self.kinds(row), strict=True))
                passing.update(few for count in range(1, len(AXES) + 1) for few in combinations(kinds, count))
        return passing

    def firsts(self) -> Iterator[Row]:
        """The first cell of each kind."""
        for values in product(*(self._firsts(slot) for slot in AXES)):
            row = dict(zip(AXES, values, strict=True))
            if self._whole(row):
                yield row

    def _firsts(self, slot: str) -> list[str]:
        """The first of each kind."""
        firsts: dict[str, str] = {}
        for name in self.axes[slot]:
            firsts.setdefault(self._kind(slot, name), name)
        return list(firsts.values())

    def _kind(self, slot: str, name: str) -> str:
        if slot == "topology" or name == UNREAD:
            return name
        return self._declared[slot, name]

    @cached_property
    def _declared(self) -> dict[tuple[str, str], str]:
        return {
            (slot, entry.name): json.dumps(entry.traits, sort_keys=True)
            for slot in AXES[1:]
            for entry in self.index.entries[slot].values()
        }

    def _whole(self, row: Mapping[str, str]) -> bool:
        reads = self._topology(row["topology"]).reads
        return all((row[slot] != UNREAD) == (slot in reads) for slot in AXES[1:])

    def _topology(self, name: str) -> Entry:
        return self.index.entries["topology"][name]

    def _bases(self) -> dict[str, dict[str, Any]]:
        """For each topology the preset that its cells are made of: the kit's own, or the narrowest that there is."""
        found: dict[str, tuple[int, str]] = {}
        for name in (*reversed(PRESETS), *self.index.presets):
            plain = resolved(name, registry=self.registry)
            width = 0 if name in PRESETS else plain["dims"]["width"]
            topology = plain["topology"]["name"]
            found[topology] = min((width, name), found.get(topology, (width, name)))
        return {
            name: resolved({"preset": found[name][1], **_SIZES}, registry=self.registry)
            for name in self.index.entries["topology"]
            if name in found
        }

    def _parts(self, row: Mapping[str, str], base: Mapping[str, Any]) -> dict[str, Any]:
        """What is said of single parts: an attention that cannot cross leaves that to the preset's."""
        parts = {name: dict(part) for name, part in (base.get("parts") or {}).items()}
        if row["attention"] == UNREAD or self.index.entries["attention"][row["attention"]].traits.get("cross"):
            return parts
        for part in self._topology(row["topology"]).parts:
            if part.cross and not part.recurrent:
                own = parts.setdefault(part.name, {})
                own["cross"] = {**(own.get("cross") or {}), "attention": base["attention"]}
        return parts
