"""The rule about what a measure asks of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from paribus.errors import listed
from paribus.specs.facts import Broken, Facts, Named

_WEIGHTS: Final = ("weights", "shares")


def measure_can_ask(facts: Facts) -> Iterator[Broken]:
    """What a measure asks of a model is something that it can answer."""
    for measure in facts.measures:
        why, valid = _misfit(facts, measure)
        if why:
            yield Broken("does-not-fit", measure.keys, why, valid)


def _misfit(facts: Facts, measure: Named) -> tuple[str, str]:
    """Why a model cannot answer, and what could."""
    body = facts.body
    if measure.entry.traits.get("sight") == "past" and not body.causal:
        what = f"{measure} takes rows that see only what came before, but those of `{facts.topology.name}` see both"
        return f"{what} sides", f"topology {_topologies(facts, causal=True)}"
    if measure.has("own"):
        if body.cross is not None:
            what = f"{measure} shows the {body.name} rows of its own making, and the {body.cross} has nothing to read"
            return what, f"topology {_topologies(facts, causal=body.causal)}"
        embedding = facts.named("embedding")
        if embedding is not None and embedding.entry.traits.get("modality", "text") != "text":
            return f"{measure} shows the model tokens of its own making, but {embedding} reads none", "a model of text"
    return _unweighed(facts, measure)


def _unweighed(facts: Facts, measure: Named) -> tuple[str, str]:
    """Some attention of the body has the weights that a measure reads; beside it, one without any is left out."""
    own = [mixing.attention for stack in facts.stacks if stack.part is facts.body for mixing in stack.own]
    wanted = [need for need in measure.list("needs") if need in _WEIGHTS]
    weighing = [attention for attention in own if attention.has("weights")]
    fitting = [
        entry.name
        for entry in facts.index.entries["attention"].values()
        if all(entry.traits.get(need) for need in wanted)
    ]
    valid = f"attention {listed(fitting) or '(none is installed)'}"
    if wanted and not weighing:
        who = str(own[0]) if own else f"the {facts.body.name} of `{facts.topology.name}`"
        return f"{measure} reads how much rows weigh each other, but {who} cannot say", valid
    for attention in weighing:
        if "shares" in wanted and not attention.has("shares"):
            return f"{measure} takes weights that share out 1, but those of {attention} may sum to anything", valid
    return "", ""


def _topologies(facts: Facts, *, causal: bool) -> str:
    """Those of one stack whose rows see the past alone, or both sides."""
    found = [
        entry.name
        for entry in facts.index.entries["topology"].values()
        if any(part.path == "body" and part.causal == causal and part.cross is None for part in entry.parts)
    ]
    return listed(found) or "(none is installed)"
