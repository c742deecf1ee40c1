"""The rules about how examples share rows and batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from paribus.errors import listed
from paribus.registry import Entry
from paribus.specs.facts import Broken, Facts

PADDED: Final = frozenset({"segments", "pairs", "texts"})  # examples formed so are filled up with padding


def objective_packs(facts: Facts) -> Iterator[Broken]:
    """Whole documents are packed into rows for objectives that take such rows, and that form none of their own."""
    if facts.spec["data"].get("documents") != "packed":
        return
    for objective in (*facts.objectives, *facts.evaluated):
        if _packs(objective.entry):
            continue
        forms = objective.entry.traits.get("forms")
        own = f"forms {forms} of its own" if forms else "makes other rows of them, in which they would lie elsewhere"
        fitting = [entry.name for entry in facts.index.entries["objective"].values() if _packs(entry)]
        what = f"data.documents is packed, but {objective} {own}"
        yield Broken("does-not-fit", ("data", "documents"), what, f"mixed or apart, or objective {listed(fitting)}")


def examples_can_be_sorted(facts: Facts) -> Iterator[Broken]:
    """Examples are sorted by length where an objective pads them."""
    forms = [objective.entry.traits.get("forms") for objective in facts.objectives]
    if not facts.spec["data"].get("bucket") or not forms or PADDED.intersection(forms):
        return
    one = facts.objectives[0]
    what = f"data.bucket puts examples of about one length together, but those of {one} are all of one"
    yield Broken("not-read", ("data", "bucket"), what, "0, or an objective that pads its examples")


def _packs(objective: Entry) -> bool:
    traits = objective.traits
    makes = any(traits.get(trait) for trait in ("parts", "may", "pads", "orders"))
    return not traits.get("forms") and bool(traits.get("packs", not makes))
