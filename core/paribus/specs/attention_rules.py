"""Rules about attention: positions, causality, cross-attention, masks and placements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from paribus.errors import join_names
from paribus.registry import Entry, Index
from paribus.specs.data_rules import PADDED
from paribus.specs.spec_view import AttentionPair, SpecView, Violation

_VERBS: Final = {
    "rotate": "rotates queries and keys",
    "bias": "adds a bias to the scores",
    "mix": "adds to the values",
    "read": "reads queries and keys",
    "embed": "adds to the embeddings",
}


def position_fits(facts: SpecView) -> Iterator[Violation]:
    """Require that an attention supports everything that its position does, or reads none beside one that does."""
    for stack in facts.stacks:
        for mixings, crossing in ((stack.self_attention, False), (stack.cross_attention, True)):
            missing = [(mixing, _unsupported_hooks(mixing, crossing=crossing)) for mixing in mixings]
            read = {mixing.position.keys for mixing, hooks in missing if mixing.position is not None and not hooks}
            for mixing, hooks in missing:
                beside = mixing.position is not None and mixing.position.keys in read
                if hooks and not (beside and reads_no_position(mixing.attention.entry)):
                    yield _unread(facts, mixing, hooks, crossing=crossing)


def reads_no_position(attention: Entry) -> bool:
    """Return whether an attention calls no hook of a position."""
    return not attention.traits.get("position_hooks")


def partly_read_positions(spec: Mapping[str, Any], index: Index) -> Iterator[str]:
    """Yield each position of a resolved spec that some layers of its stack do not read, with the layers that do."""
    for part in index.entries["topology"][spec["topology"]["name"]].parts:
        own = {**spec, **((spec.get("parts") or {}).get(part.name) or {})}
        layers = {**spec["dims"], **own["dims"]}["layers"]
        attentions, positions = (
            [index.find(slot, node["name"]) for node in _nodes(own.get(slot))] for slot in ("attention", "position")
        )
        for place, position in enumerate(positions if attentions else ()):
            named = range(place, layers, len(positions))
            read = [layer + 1 for layer in named if not reads_no_position(attentions[layer % len(attentions)])]
            if len(read) < len(named) and {*_required_hooks(position)} - {"embed"}:
                noun = "layer" if len(read) == 1 else "layers"
                yield f"{position.name} in {noun} {', '.join(map(str, read))} of {layers} of the {part.name}"


def positions_of(spec: Mapping[str, Any]) -> list[Any]:
    """Return the positions that a resolved spec names: for all stacks, then for each part with its own."""
    return [spec.get("position"), *(own.get("position") for own in (spec.get("parts") or {}).values())]


def _nodes(value: Any) -> Sequence[Mapping[str, Any]]:
    return value if isinstance(value, list) else [value] if value else []


def _unsupported_hooks(mixing: AttentionPair, *, crossing: bool) -> list[str]:
    if mixing.position is None:
        return []
    supported = _supported_hooks(mixing, crossing=crossing)
    return [hook for hook in _required_hooks(mixing.position.entry) if hook not in supported]


def _supported_hooks(mixing: AttentionPair, *, crossing: bool) -> set[str]:
    return {*mixing.attention.list_trait("position_hooks"), *([] if crossing else ["embed"])}


def _unread(facts: SpecView, mixing: AttentionPair, hooks: list[str], *, crossing: bool) -> Violation:
    attention, position = mixing
    assert position is not None, "no position has no hooks"
    supported = _supported_hooks(mixing, crossing=crossing)
    action = " and ".join(_VERBS.get(hook, hook) for hook in hooks)
    owner = f"the cross-{attention}" if crossing else f"{attention}"
    consequence = "it would have no effect" if attention.has_trait("weights") else "it would be ignored"
    fitting = [entry.name for entry in facts.entries("position") if {*_required_hooks(entry)} <= supported]
    return Violation(
        "does-not-fit",
        position.keys,
        f"{position} {action}, which {owner} does not support, so {consequence}",
        f"with {owner}, position {join_names(fitting)}",
    )


def position_sees_the_past(facts: SpecView) -> Iterator[Violation]:
    """Reject a position for causal stacks (ALiBi, …) in a stack that also sees later tokens."""
    fitting = [entry.name for entry in facts.entries("position") if entry.traits.get("visibility") != "past"]
    for stack in facts.stacks:
        name = stack.part.name
        self_attention = (
            []
            if stack.part.causal or stack.part.opposite
            else [(mixing, f"tokens of the {name} see") for mixing in stack.self_attention]
        )
        for mixing, rows in (
            *self_attention,
            *((mixing, f"the cross-attention of the {name} sees") for mixing in stack.cross_attention),
        ):
            position = mixing.position
            if position is not None and position.entry.traits.get("visibility") == "past":
                message = f"{position} needs a causal mask, but {rows} later tokens too"
                yield Violation("does-not-fit", position.keys, message, f"position {join_names(fitting)}")


def _required_hooks(position: Entry) -> list[str]:
    """Return the operations of a position in an attention."""
    moments = [str(moment) for moment in position.traits.get("hooks", [])]
    return [*moments, "read"] if position.traits.get("bias") == "content" else moments


def attention_is_causal(facts: SpecView) -> Iterator[Violation]:
    """Require a causal mask of the attention of a causal stack."""
    for stack in facts.stacks:
        for mixing in stack.self_attention:
            if (stack.part.causal or stack.part.opposite) and not mixing.attention.has_trait("causal"):
                kind = "is causal" if stack.part.causal else "read in one direction each"
                message = f"the {stack.part.name} {kind}, but {mixing.attention} has no causal mask"
                yield Violation("does-not-fit", mixing.attention.keys, message, facts.names_with("attention", "causal"))


def attention_is_bidirectional(facts: SpecView) -> Iterator[Violation]:
    """Reject an attention that is always causal in a bidirectional stack."""
    fitting = [entry.name for entry in facts.entries("attention") if entry.traits.get("bidirectional", True)]
    for stack in facts.stacks:
        for mixing in stack.self_attention:
            is_bidirectional = not stack.part.causal and not stack.part.opposite
            if is_bidirectional and not mixing.attention.entry.traits.get("bidirectional", True):
                is_causal = mixing.attention.has_trait("causal")
                reason = "is always causal" if is_causal else "can only attend to another stack"
                message = f"the {stack.part.name} is bidirectional, but {mixing.attention} {reason}"
                yield Violation("does-not-fit", mixing.attention.keys, message, join_names(fitting))


def attention_crosses(facts: SpecView) -> Iterator[Violation]:
    """Require that a cross-attention can attend to a memory."""
    for stack in facts.stacks:
        for mixing in stack.cross_attention:
            if not mixing.attention.has_trait("cross") and not stack.part.recurrent:
                place = f"parts.{stack.part.name}.cross.attention"
                message = f"{mixing.attention} cannot attend to another stack, as {place} must"
                yield Violation(
                    "does-not-fit", mixing.attention.keys, message, f"{place}={facts.names_with('attention', 'cross')}"
                )


def attention_keeps_documents_apart(facts: SpecView) -> Iterator[Violation]:
    """Require masks of padding and of other documents where examples need them."""
    documents = facts.spec["data"].get("documents")
    apart = f"data.documents is {documents}" if documents in ("apart", "packed") else ""
    separating = next((objective for objective in facts.objectives if objective.has_trait("separates")), None)
    if separating is not None:
        apart = f"{separating} has several documents in an example"
    padded = [
        objective
        for objective in facts.objectives
        if objective.entry.traits.get("example_kind") in PADDED or objective.has_trait("adds_padding")
    ]
    for stack in facts.stacks:
        for mixing in (*stack.self_attention, *stack.cross_attention):
            if apart and not mixing.attention.has_trait("documents"):
                message = f"{apart}, but {mixing.attention} does not mask other documents"
                yield Violation(
                    "does-not-fit", mixing.attention.keys, message, facts.names_with("attention", "documents")
                )
            elif padded and not (mixing.attention.has_trait("documents") or mixing.attention.has_trait("padding")):
                message = f"{padded[0]} pads its examples, but {mixing.attention} does not mask padding"
                fitting = facts.names_with("attention", "documents", "padding")
                yield Violation("does-not-fit", mixing.attention.keys, message, fitting)


def placement_can_wrap(facts: SpecView) -> Iterator[Violation]:
    """Require that an attention under a residual connection returns the model width."""
    for stack in facts.stacks:
        for mixing in (*stack.self_attention, *stack.cross_attention):
            if not stack.part.recurrent and not mixing.attention.has_trait("residual"):
                message = f"{mixing.attention} does not return the model width, so no norm placement applies to it"
                yield Violation(
                    "does-not-fit", mixing.attention.keys, message, facts.names_with("attention", "residual")
                )


def separate_inputs_are_read(facts: SpecView) -> Iterator[Violation]:
    """Require an attention that reads the inputs of queries, keys and values of a placement that separates them."""
    for stack in facts.stacks:
        placements = facts.components("placement", *facts.slot_of(stack.part, "placement"))
        separating = next((reader for reader in placements if reader.has_trait("separate_inputs")), None)
        for mixing in stack.self_attention if separating is not None else ():
            if not mixing.attention.has_trait("separate_inputs"):
                message = f"{separating} has separate inputs for queries, keys and values, but {mixing.attention} "
                message += "reads one input"
                fitting = facts.names_with("attention", "separate_inputs")
                yield Violation("does-not-fit", mixing.attention.keys, message, fitting)


def recurrence_reads(facts: SpecView) -> Iterator[Violation]:
    """Require one cross-attention of a recurrent decoder, which returns values of the memory unprojected."""
    for stack in facts.stacks:
        if not stack.part.recurrent or not stack.cross_attention:
            continue
        reader, *other_readers = stack.cross_attention
        if other_readers:
            second = other_readers[0].attention
            message = f"the {stack.part.name} of `{facts.topology.name}` has one attention, got also {second}"
            yield Violation("does-not-fit", other_readers[0].attention.keys, message, f"{reader.attention} alone")
        if reader.attention.has_trait("cross") and reader.attention.has_trait("raw_memory"):
            continue
        name = stack.part.name
        reason = f"has no cross-attention, by which the {name} reads the encoder"
        if reader.attention.has_trait("cross"):
            reason = f"projects its values, but the {name} needs the unprojected memory"
        message = f"{reader.attention} {reason}"
        both = [
            entry
            for entry in facts.entries("attention")
            if entry.traits.get("cross") and entry.traits.get("raw_memory")
        ]
        fitting = join_names(entry.name for entry in both) or "(none is installed)"
        yield Violation("does-not-fit", reader.attention.keys, message, f"attention {fitting}")
