"""All faults that were seeded to test the conformance kit, by slot and author, with those that no check finds.

The kit's author wrote the faults of `mutants.py`, `slot_mutants.py` and `data_mutants.py`; others, who had not read the
kit, those of `independent_*_faults.py`: tuples of fault, source, original, replacement and component.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

HERE: Final = Path(__file__).parent
AUTHORS: Final = ("kit", "independent")
INDEPENDENT_RESULTS: Final[Mapping[str, Mapping[str, str]]] = json.loads(
    (HERE / "independent_results.json").read_text()
)
"""The check that finds a fault of another author, or the reason why none does, by "source: fault"."""


class SeededFault(NamedTuple):
    """Seeded fault; `reason` says why no check finds it, and is empty for one that is found."""

    slot: str
    author: str
    name: str  # source: fault
    reason: str = ""


def load(name: str) -> dict[str, Any]:
    """Return the names of a file in this folder."""
    return runpy.run_path(str(HERE / f"{name}.py"))


MUTANTS: Final = load("mutants")
SLOT_MUTANTS: Final = load("slot_mutants")
DATA_MUTANTS: Final = load("data_mutants")
Mutant: Any = MUTANTS["Mutant"]
INDEPENDENT: Final = tuple(
    Mutant(fault, source, original, replacement, component=component)
    for file in sorted(HERE.glob("independent_*_faults.py"))
    for fault, source, original, replacement, component in load(file.stem)["FAULTS"]
)
KILLED: Final = (
    *MUTANTS["KILLED"],
    *DATA_MUTANTS["DATA_KILLED"],
    *(
        Mutant(*fault[:4], check=check, component="".join(fault[4:]))
        for check, faults in SLOT_MUTANTS["FAULTS"].items()
        for fault in faults
    ),
)
SURVIVORS: Final = (*MUTANTS["SURVIVORS"], *DATA_MUTANTS["DATA_SURVIVORS"], *SLOT_MUTANTS["SLOT_SURVIVORS"])


def mutant_id(mutant: Any) -> str:
    return f"{mutant.source}: {mutant.fault}"


def seeded_faults() -> Iterator[SeededFault]:
    """Yield all faults; those that only an author's reference finds are not counted."""
    for mutant in (*KILLED, *SURVIVORS):
        yield SeededFault(_slot(mutant), "kit", mutant_id(mutant), mutant.reason)
    for mutant in INDEPENDENT:
        name = mutant_id(mutant)
        yield SeededFault(_slot(mutant), "independent", name, INDEPENDENT_RESULTS[name].get("reason", ""))


def _slot(mutant: Any) -> str:
    slot = str(mutant.component or mutant.source).split(".")[0]
    return "attention" if slot == "by_hand" else slot


def table(slots: tuple[str, ...]) -> list[str]:
    """Return the counts by slot and author as Markdown, and the faults that no check finds, with reasons."""
    faults = list(seeded_faults())
    lines = ["| slot | faults of the kit's author | found | faults of others | found |", "| --- |" + " ---: |" * 4]
    for slot in slots:
        cells = [slot]
        for author in AUTHORS:
            own = [fault for fault in faults if (fault.slot, fault.author) == (slot, author)]
            cells += [str(len(own)), str(sum(not fault.reason for fault in own))]
        lines.append(f"| {' | '.join(cells)} |")
    by_reference = sum(
        result.get("check") == "output equals the author's reference" for result in INDEPENDENT_RESULTS.values()
    )
    lines += ["", f"Of the faults of others, {by_reference} are found by a reference of the author only.", ""]
    lines += ["No check finds these:", ""]
    return lines + [f"- {fault.slot}: `{fault.name}`: {fault.reason}." for fault in faults if fault.reason]
