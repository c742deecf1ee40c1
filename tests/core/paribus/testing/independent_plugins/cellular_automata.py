"""Histories of cellular automata, labelled with their rule."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, final

from paribus import Corpus, CorpusTraits, Document, Problem, Range, SpecError, Split, code_fingerprint, hookimpl

HELD_OUT_DIVISOR: Final = 8  # one in eight first rows is held out
DEAD, LIVE = ".", "#"


@final
class CellularAutomata(Corpus):
    """Histories of elementary cellular automata, labelled with the rule: "Intelligence at the Edge of Chaos" (Zhang et
    al. 2024).

    A document starts with a random row of cells; each sentence is the row after the one before it, on a ring. Label i
    is the i-th of `rules`. The first row decides the split, so that no history is in both. Document i of a split
    depends on the seed, the split and i only.
    """

    traits: ClassVar[CorpusTraits] = {
        "provides": ["sentences", "documents", "labels"],
        "document_facts": {"classes": "rules"},
    }

    def __init__(
        self,
        *,
        rules: Annotated[tuple[int, ...], "two or more of Wolfram's rules", Range(0, 255)] = (30, 90, 110, 184),
        width: Annotated[int, "cells of a row", Range(8, 4096)] = 12,
        rows: Annotated[int, "rows of a document", Range(2, 4096)] = 6,
        examples: Annotated[int, "documents of the training split", Range(1, 10_000_000)] = 2048,
        held_out: Annotated[int, "documents of the validation split", Range(1, 1_000_000)] = 256,
        seed: Annotated[int, "seed of all documents", Range(0)] = 0,
    ) -> None:
        if len(set(rules)) < max(2, len(rules)):
            message = f"expected two or more different rules, got {', '.join(map(str, rules)) or 'none'}"
            raise SpecError(Problem(code="too-few", path="corpus.rules", message=message))
        self._rules = rules
        self._width = width
        self._rows = rows
        self._counts: Mapping[Split, int] = {"train": examples, "val": held_out}
        self._seed = seed

    def documents(self, split: Split) -> Iterator[Document]:
        for number in range(self._counts[split]):
            name = f"{split} {number}"
            label = number_of(f"{self._seed} {name} rule") % len(self._rules)
            rows = [self._first_row(name, split)]
            while len(rows) < self._rows:
                rows.append(next_row(rows[-1], self._rules[label]))
            yield Document(name, tuple(rows), labels=(label,))

    def classes(self) -> tuple[str, ...]:
        return tuple(f"rule {rule}" for rule in self._rules)

    def fingerprint(self) -> str:
        """Return a hash of the options and of the code that draws."""
        options = (self._rules, self._width, self._rows, *self._counts.values(), self._seed)
        return hashlib.sha256("\0".join([repr(options), *code_fingerprint(__file__)]).encode()).hexdigest()

    def _first_row(self, name: str, split: Split) -> str:
        for attempt in range(4096):
            bits = number_of(f"{self._seed} {name} {attempt}", self._width // 8 + 1)
            row = "".join(LIVE if bits >> cell & 1 else DEAD for cell in range(self._width))
            if (number_of(row) % HELD_OUT_DIVISOR == 0) == (split == "val"):
                return row
        raise AssertionError("one in eight rows is held out")


def next_row(row: str, rule: int) -> str:
    """Return the row after `row`: bit 4 l + 2 c + r of the rule for a cell and its neighbours left and right."""
    cells = [int(cell == LIVE) for cell in row]
    return "".join(
        LIVE if rule >> (4 * cells[place - 1] + 2 * cell + cells[(place + 1) % len(cells)]) & 1 else DEAD
        for place, cell in enumerate(cells)
    )


def number_of(key: str, size: int = 8) -> int:
    """Return a random number of `size` bytes, the same on every machine."""
    return int.from_bytes(hashlib.shake_256(key.encode()).digest(size), "little")


@hookimpl
def corpus() -> Mapping[str, type[Corpus]]:
    return {"cellular-automata": CellularAutomata}
