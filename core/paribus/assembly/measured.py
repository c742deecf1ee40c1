"""What a spec will measure, before anything is trained: its objectives on the meta device say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from paribus.assembly.build import build, listed
from paribus.assembly.components import Classes
from paribus.kernels import KERNELS
from paribus.registry import Index
from paribus.slots.objective import Objective
from paribus.slots.tokenizer import Vocabulary

STAND_IN: Final = 8192  # tokens of a vocabulary that is not known before its tokenizer is trained


def measured(spec: Mapping[str, Any], classes: Classes, index: Index) -> list[str]:
    """The names of all metrics that a trial of this spec will have: `val/mlm/loss`, `val/mlm/accuracy`."""
    objectives = build(spec, classes, stand_in(spec, index), KERNELS).objectives
    found: list[str] = []
    for node in listed(spec.get("evaluate") or spec["objective"]):
        objective = objectives[node["name"]]
        assert isinstance(objective, Objective)
        found += [f"val/{node['name']}/{name}" for name in dict.fromkeys((*objective.terms, *objective.metrics()))]
    return found


def stand_in(spec: Mapping[str, Any], index: Index) -> Vocabulary:
    """A vocabulary with the specials that the tokenizer declares, where its true one is not needed."""
    provides = index.find("tokenizer", spec["tokenizer"]["name"]).traits.get("provides", [])
    specials = {name: place for place, name in enumerate(name for name in provides if name != "sentinels")}
    sentinels = range(len(specials), len(specials) + spec["tokenizer"].get("sentinels", 0))
    return Vocabulary(spec["dims"]["vocabulary"] or STAND_IN, specials, tuple(sentinels), frozenset())
