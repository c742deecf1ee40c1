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
from paribus.specs.load import load
from paribus.specs.resolve import check
from paribus.testing.host_models import PRESETS, SMALL_SIZES, example_node

Row = dict[str, str]
Combination = tuple[tuple[str, str], ...]
"""Some of a row, in the order of the axes: (axis, value) each."""


def covering(
    axes: Mapping[str, Sequence[str]], possible: Callable[[Combination], bool], strength: int = 3
) -> list[Row]:
    """Rows with a value of each axis, in which every `strength` values of different axes that are possible come up.

    `possible` says whether some row with these values may be. Greedy, one row for the first that is still missing, and
    the same rows each time: "The AETG System" (Cohen et al. 1997), with no draws.
    """
    missing = dict.fromkeys(combination for combination in _all_combinations(axes, strength) if possible(combination))
    rows: list[Row] = []
    while missing:
        row = _complete_row(dict(next(iter(missing))), axes, possible, missing, strength, offset=len(rows))
        for combination in _combinations_in(row, axes, strength):
            missing.pop(combination, None)
        rows.append(row)
    return rows


def _all_combinations(axes: Mapping[str, Sequence[str]], strength: int) -> Iterator[Combination]:
    """Of the axes with the most values first, as those need the most rows, which then have the others for nothing."""
    chosen = sorted(combinations(axes, strength), key=lambda names: -_product_size(axes, names))
    for names in chosen:
        for values in product(*(axes[name] for name in names)):
            yield tuple(zip(names, values, strict=True))


def _product_size(axes: Mapping[str, Sequence[str]], names: Sequence[str]) -> int:
    size = 1
    for name in names:
        size *= len(axes[name])
    return size


def _complete_row(
    row: Row,
    axes: Mapping[str, Sequence[str]],
    possible: Callable[[Combination], bool],
    missing: Mapping[Combination, None],
    strength: int,
    offset: int,
) -> Row:
    """The row with what it lacks, each time the value with which most of what is missing comes up."""
    for name in sorted((name for name in axes if name not in row), key=lambda name: -len(axes[name])):
        values = axes[name]
        rotated = [values[(index + offset) % len(values)] for index in range(len(values))]  # or ties are one value's
        valid_values = [value for value in rotated if possible(_sorted({**row, name: value}, axes))]
        assert valid_values, "what is possible can be filled up"
        combinations_in_row = list(_combinations_in(row, axes, strength - 1))
        row[name] = max(
            valid_values,
            key=lambda value: sum(
                _sorted({**dict(combination), name: value}, axes) in missing for combination in combinations_in_row
            ),
        )
    return row


def _combinations_in(row: Row, axes: Mapping[str, Sequence[str]], strength: int) -> Iterator[Combination]:
    return combinations(_sorted(row, axes), strength)


def _sorted(row: Row, axes: Mapping[str, Sequence[str]]) -> Combination:
    return tuple((name, row[name]) for name in axes if name in row)


AXES: Final = ("topology", "attention", "position", "placement", "norm", "feedforward")
UNREAD: Final = ""  # stands for a slot that the topology does not read
_SIZES: Final = {**SMALL_SIZES, "dims.layers": 1, "dims.length": 16}


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
        nodes = {slot: example_node(self.index.entries[slot][row[slot]]) for slot in AXES[1:] if row[slot] != UNREAD}
        return {**base, **nodes, "parts": self._parts(row, base)}

    def cell_problems(self, row: Mapping[str, str]) -> tuple[Problem, ...]:
        """Return the problems of one cell; empty if it is valid."""
        return self.spec_problems(self.spec(row))

    def spec_problems(self, spec: Mapping[str, Any]) -> tuple[Problem, ...]:
        """Return the problems of a spec."""
        try:
            check(load(spec, (), self.index), self.index)
        except SpecError as error:
            return error.problems
        return ()

    def kind_problems(self, row: Mapping[str, str]) -> tuple[Problem, ...]:
        """Return the problems of the first cell of the same kind (cached)."""
        kinds = self.kinds(row)
        if kinds not in self._verdicts:
            self._verdicts[kinds] = self.cell_problems(row)
        return self._verdicts[kinds]

    def kinds(self, row: Mapping[str, str]) -> tuple[str, ...]:
        """Return the kind of each component; rules depend only on kinds."""
        return tuple(self._kind(slot, row[slot]) for slot in AXES)

    def nearest_valid(self, row: Mapping[str, str]) -> Row | None:
        """A cell that passes, and of those the first with the fewest other components; of the same topology if any."""
        slots = AXES[:0:-1]  # the feed-forward first, and the attention last
        for count in range(1, len(AXES)):
            for changed in combinations(slots, count):
                for values in product(*(self.axes[slot] for slot in changed)):
                    candidate = {**row, **dict(zip(changed, values, strict=True))}
                    if self._whole(candidate) and not self.kind_problems(candidate):
                        return candidate
        return None

    def covering(self, strength: int = 3) -> list[Row]:
        """Cells that pass, in which any `strength` components that go together do."""
        return covering(self.axes, self.possible, strength)

    def possible(self, combination: Combination) -> bool:
        """Return True if some cell with these components is valid."""
        return tuple((slot, self._kind(slot, value)) for slot, value in combination) in self._passing

    @cached_property
    def _passing(self) -> set[Combination]:
        """Combinations of kinds that occur in a valid cell."""
        passing: set[Combination] = set()
        for row in self.representatives():
            if not self.kind_problems(row):
                kinds = tuple(zip(AXES, self.kinds(row), strict=True))
                passing.update(
                    combination for count in range(1, len(AXES) + 1) for combination in combinations(kinds, count)
                )
        return passing

    def representatives(self) -> Iterator[Row]:
        """The first cell of each kind."""
        for values in product(*(self._component_representatives(slot) for slot in AXES)):
            row = dict(zip(AXES, values, strict=True))
            if self._whole(row):
                yield row

    def _component_representatives(self, slot: str) -> list[str]:
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
        narrowest: dict[str, tuple[int, str]] = {}
        for name in (*reversed(PRESETS), *self.index.presets):
            spec = resolved(name, registry=self.registry)
            width = 0 if name in PRESETS else spec["dims"]["width"]
            topology = spec["topology"]["name"]
            narrowest[topology] = min((width, name), narrowest.get(topology, (width, name)))
        return {
            name: resolved({"preset": narrowest[name][1], **_SIZES}, registry=self.registry)
            for name in self.index.entries["topology"]
            if name in narrowest
        }

    def _parts(self, row: Mapping[str, str], base: Mapping[str, Any]) -> dict[str, Any]:
        """What is said of single parts: an attention that cannot cross leaves that to the preset's."""
        parts = {name: dict(part) for name, part in (base.get("parts") or {}).items()}
        if row["attention"] == UNREAD or self.index.entries["attention"][row["attention"]].traits.get("cross"):
            return parts
        for part in self._topology(row["topology"]).parts:
            if part.cross and not part.recurrent:
                part_spec = parts.setdefault(part.name, {})
                part_spec["cross"] = {**(part_spec.get("cross") or {}), "attention": base["attention"]}
        return parts
