"""The rules about what mixes rows: attentions, the positions that they meet, and what is around them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from paribus.errors import join_names
from paribus.registry import Entry
from paribus.specs.data_rules import PADDED
from paribus.specs.spec_view import AttentionPair, SpecView, Violation

_VERBS: Final = {
    "rotate": "rotates queries and keys",
    "bias": "adds a bias to the scores",
    "mix": "adds to what is mixed",
    "read": "reads queries and keys",
    "embed": "adds to the rows",
}


def position_fits(facts: SpecView) -> Iterator[Violation]:
    """What a position does in an attention is something that this attention asks for."""
    for stack in facts.stacks:
        for mixing in stack.self_attention:
            yield from _unasked(facts, mixing, crossing=False)
        for mixing in stack.cross_attention:
            yield from _unasked(facts, mixing, crossing=True)


def _unasked(facts: SpecView, mixing: AttentionPair, *, crossing: bool) -> Iterator[Violation]:
    attention, position = mixing
    if position is None:
        return
    asked = {*attention.list_trait("position_hooks"), *([] if crossing else ["embed"])}
    unasked = [moment for moment in _asks(position.entry) if moment not in asked]
    if not unasked:
        return
    how = " and ".join(_VERBS.get(moment, moment) for moment in unasked)
    whose = f"the cross-{attention}" if crossing else f"{attention}"
    so = "it would mean nothing there" if attention.has_trait("weights") else "it would be ignored"
    fitting = [entry.name for entry in facts.entries("position") if {*_asks(entry)} <= asked]
    yield Violation(
        "does-not-fit",
        position.keys,
        f"{position} {how}, but {whose} never asks for that, so {so}",
        f"with {whose}, position {join_names(fitting)}",
    )


def position_sees_the_past(facts: SpecView) -> Iterator[Violation]:
    """A position that lowers what is further behind stands where nothing is ahead, which it would raise."""
    fitting = [entry.name for entry in facts.entries("position") if entry.traits.get("visibility") != "past"]
    for stack in facts.stacks:
        name = stack.part.name
        own = [] if stack.part.causal else [(mixing, f"the rows of the {name} see") for mixing in stack.self_attention]
        for mixing, rows in (
            *own,
            *((mixing, f"the cross-attention of the {name} sees") for mixing in stack.cross_attention),
        ):
            position = mixing.position
            if position is not None and position.entry.traits.get("visibility") == "past":
                what = f"{position} takes rows that see only what came before, but {rows} more than that"
                yield Violation("does-not-fit", position.keys, what, f"position {join_names(fitting)}")


def _asks(position: Entry) -> list[str]:
    """What a position does in an attention, or has to see there."""
    moments = [str(moment) for moment in position.traits.get("hooks", [])]
    return [*moments, "read"] if position.traits.get("bias") == "content" else moments


def attention_is_causal(facts: SpecView) -> Iterator[Violation]:
    """The attention of a causal stack can hide the future."""
    for stack in facts.stacks:
        for mixing in stack.self_attention:
            if stack.part.causal and not mixing.attention.has_trait("causal"):
                why = f"the {stack.part.name} is causal, but {mixing.attention} cannot hide what comes later"
                yield Violation("does-not-fit", mixing.attention.keys, why, facts.names_with("attention", "causal"))


def attention_crosses(facts: SpecView) -> Iterator[Violation]:
    """What attends to another stack can attend to a memory."""
    for stack in facts.stacks:
        for mixing in stack.cross_attention:
            if not mixing.attention.has_trait("cross") and not stack.part.recurrent:
                place = f"parts.{stack.part.name}.cross.attention"
                why = f"{mixing.attention} cannot attend to another stack, as {place} is to"
                yield Violation(
                    "does-not-fit", mixing.attention.keys, why, f"{place}={facts.names_with('attention', 'cross')}"
                )


def attention_keeps_documents_apart(facts: SpecView) -> Iterator[Violation]:
    """Where rows are padded, or documents are kept apart, the attention can do so."""
    documents = facts.spec["data"].get("documents")
    apart = documents in ("apart", "packed")
    padded = [
        each
        for each in facts.objectives
        if each.entry.traits.get("example_kind") in PADDED or each.has_trait("adds_padding")
    ]
    for stack in facts.stacks:
        for mixing in (*stack.self_attention, *stack.cross_attention):
            if apart and not mixing.attention.has_trait("documents"):
                what = f"data.documents is {documents}, but {mixing.attention} lets rows see other documents"
                yield Violation("does-not-fit", mixing.attention.keys, what, facts.names_with("attention", "documents"))
            elif padded and not (mixing.attention.has_trait("documents") or mixing.attention.has_trait("padding")):
                what = f"{padded[0]} pads its examples, but {mixing.attention} lets rows see padding"
                fitting = facts.names_with("attention", "documents", "padding")
                yield Violation("does-not-fit", mixing.attention.keys, what, fitting)


def placement_can_wrap(facts: SpecView) -> Iterator[Violation]:
    """What a placement wraps, or another layer reads, returns rows of the stream's width."""
    for stack in facts.stacks:
        for mixing in (*stack.self_attention, *stack.cross_attention):
            if not stack.part.recurrent and not mixing.attention.has_trait("residual"):
                what = f"{mixing.attention} does not return the width of the stream, so no placement can wrap it"
                yield Violation("does-not-fit", mixing.attention.keys, what, facts.names_with("attention", "residual"))


def recurrence_reads(facts: SpecView) -> Iterator[Violation]:
    """A recurrence reads a memory by one attention, which gives its rows back as they stand."""
    for stack in facts.stacks:
        if not stack.part.recurrent or not stack.cross_attention:
            continue
        first, *others = stack.cross_attention
        if others:
            what = (
                f"the {stack.part.name} of `{facts.topology.name}` has one attention, and {others[0].attention} is more"
            )
            yield Violation("does-not-fit", others[0].attention.keys, what, f"{first.attention} alone")
        if first.attention.has_trait("cross") and first.attention.has_trait("raw_memory"):
            continue
        does = "projects what it reads" if first.attention.has_trait("cross") else "attends to no other rows"
        what = f"{first.attention} {does}, but the {stack.part.name} reads a memory as it stands"
        both = [
            entry
            for entry in facts.entries("attention")
            if entry.traits.get("cross") and entry.traits.get("raw_memory")
        ]
        fitting = join_names(entry.name for entry in both) or "(none is installed)"
        yield Violation("does-not-fit", first.attention.keys, what, f"attention {fitting}")
