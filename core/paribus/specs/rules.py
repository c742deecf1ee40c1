"""The rules across fields, each one sentence over what components declare of themselves, and none over their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from paribus.errors import listed
from paribus.registry import Entry, Index
from paribus.specs.facts import Broken, Facts, Mixing, Named
from paribus.specs.fields import CYCLED
from paribus.specs.modality import (
    corpus_has_the_last_word,
    embedding_has_a_vocabulary,
    embedding_reads_the_examples,
    tokenizer_reads_the_corpus,
)

_VERBS: Final = {
    "rotate": "rotates queries and keys",
    "bias": "adds a bias to the scores",
    "mix": "adds to what is mixed",
    "read": "reads queries and keys",
    "embed": "adds to the rows",
}
_TEXT: Final = frozenset(  # what a corpus has; the rest a tokenizer
    {"sentences", "documents", "pairs", "labels", "scores", "tags", "answers"}
)
_STREAMS: Final = frozenset({"last-layer", "second-stream"})  # what a topology has: rows that ask what others hold
_ASKED: Final = {"appended": "lets none ask behind its keys", "order": "follows no order but the rows' own"}
TEACHER: Final = "teacher"  # what an objective needs that neither has
_PADDED: Final = frozenset({"segments", "texts", "pairs"})  # examples formed so are filled up with padding


Rule = Callable[[Facts], Iterable[Broken]]


def position_fits(facts: Facts) -> Iterator[Broken]:
    """What a position does in an attention is something that this attention asks for."""
    for stack in facts.stacks:
        for mixing in stack.own:
            yield from _unasked(facts, mixing, crossing=False)
        for mixing in stack.cross:
            yield from _unasked(facts, mixing, crossing=True)


def _unasked(facts: Facts, mixing: Mixing, *, crossing: bool) -> Iterator[Broken]:
    attention, position = mixing
    if position is None:
        return
    asked = {*attention.list("consumes"), *([] if crossing else ["embed"])}
    unasked = [moment for moment in _asks(position.entry) if moment not in asked]
    if not unasked:
        return
    how = " and ".join(_VERBS.get(moment, moment) for moment in unasked)
    whose = f"the cross-{attention}" if crossing else f"{attention}"
    so = "it would mean nothing there" if attention.has("weights") else "it would be ignored"
    fitting = [entry.name for entry in _entries(facts, "position") if {*_asks(entry)} <= asked]
    yield Broken(
        "does-not-fit",
        position.keys,
        f"{position} {how}, but {whose} never asks for that, so {so}",
        f"with {whose}, position {listed(fitting)}",
    )


def position_sees_the_past(facts: Facts) -> Iterator[Broken]:
    """A position that lowers what is further behind stands where nothing is ahead, which it would raise."""
    fitting = [entry.name for entry in _entries(facts, "position") if entry.traits.get("sight") != "past"]
    for stack in facts.stacks:
        name = stack.part.name
        own = [] if stack.part.causal else [(mixing, f"the rows of the {name} see") for mixing in stack.own]
        for mixing, rows in (*own, *((mixing, f"the cross-attention of the {name} sees") for mixing in stack.cross)):
            position = mixing.position
            if position is not None and position.entry.traits.get("sight") == "past":
                what = f"{position} takes rows that see only what came before, but {rows} more than that"
                yield Broken("does-not-fit", position.keys, what, f"position {listed(fitting)}")


def _asks(position: Entry) -> list[str]:
    """What a position does in an attention, or has to see there."""
    moments = [str(moment) for moment in position.traits.get("moments", [])]
    return [*moments, "read"] if position.traits.get("bias") == "content" else moments


def attention_is_causal(facts: Facts) -> Iterator[Broken]:
    """The attention of a causal stack can hide the future."""
    for stack in facts.stacks:
        for mixing in stack.own:
            if stack.part.causal and not mixing.attention.has("causal"):
                why = f"the {stack.part.name} is causal, but {mixing.attention} cannot hide what comes later"
                yield Broken("does-not-fit", mixing.attention.keys, why, _with(facts, "attention", "causal"))


def attention_crosses(facts: Facts) -> Iterator[Broken]:
    """What attends to another stack can attend to a memory."""
    for stack in facts.stacks:
        for mixing in stack.cross:
            if not mixing.attention.has("cross") and not stack.part.recurrent:
                place = f"parts.{stack.part.name}.cross.attention"
                why = f"{mixing.attention} cannot attend to another stack, as {place} is to"
                yield Broken(
                    "does-not-fit", mixing.attention.keys, why, f"{place}={_with(facts, 'attention', 'cross')}"
                )


def attention_keeps_documents_apart(facts: Facts) -> Iterator[Broken]:
    """Where rows are padded, or documents are kept apart, the attention can do so."""
    apart = facts.spec["data"].get("documents") == "apart"
    padded = [named for named in facts.objectives if named.entry.traits.get("forms") in _PADDED]
    for stack in facts.stacks:
        for mixing in (*stack.own, *stack.cross):
            if apart and not mixing.attention.has("documents"):
                what = f"data.documents is apart, but {mixing.attention} lets rows see other documents"
                yield Broken("does-not-fit", mixing.attention.keys, what, _with(facts, "attention", "documents"))
            elif padded and not (mixing.attention.has("documents") or mixing.attention.has("padding")):
                what = f"{padded[0]} pads its examples, but {mixing.attention} lets rows see padding"
                fitting = _with(facts, "attention", "documents", "padding")
                yield Broken("does-not-fit", mixing.attention.keys, what, fitting)


def placement_can_wrap(facts: Facts) -> Iterator[Broken]:
    """What a placement wraps, or another layer reads, returns rows of the stream's width."""
    for stack in facts.stacks:
        for mixing in (*stack.own, *stack.cross):
            if not stack.part.recurrent and not mixing.attention.has("residual"):
                what = f"{mixing.attention} does not return the width of the stream, so no placement can wrap it"
                yield Broken("does-not-fit", mixing.attention.keys, what, _with(facts, "attention", "residual"))


def recurrence_reads(facts: Facts) -> Iterator[Broken]:
    """A recurrence reads a memory by one attention, which gives its rows back as they stand."""
    for stack in facts.stacks:
        if not stack.part.recurrent or not stack.cross:
            continue
        first, *others = stack.cross
        if others:
            what = (
                f"the {stack.part.name} of `{facts.topology.name}` has one attention, and {others[0].attention} is more"
            )
            yield Broken("does-not-fit", others[0].attention.keys, what, f"{first.attention} alone")
        if first.attention.has("cross") and first.attention.has("raw"):
            continue
        does = "projects what it reads" if first.attention.has("cross") else "attends to no other rows"
        what = f"{first.attention} {does}, but the {stack.part.name} reads a memory as it stands"
        both = [
            entry for entry in _entries(facts, "attention") if entry.traits.get("cross") and entry.traits.get("raw")
        ]
        fitting = listed(entry.name for entry in both) or "(none is installed)"
        yield Broken("does-not-fit", first.attention.keys, what, f"attention {fitting}")


def objective_fits(facts: Facts) -> Iterator[Broken]:
    """An objective reads the stacks that there are, and its rows see what they may see."""
    for objective in (*facts.objectives, *facts.evaluated):
        why = misfit(objective.entry, facts.topology)
        if why:
            objectives = [entry.name for entry in _entries(facts, "objective") if not misfit(entry, facts.topology)]
            topologies = [entry.name for entry in _entries(facts, "topology") if not misfit(objective.entry, entry)]
            valid = (
                f"objective {listed(objectives) or '(none)'} with topology {facts.topology.name}; "
                f"topology {listed(topologies) or '(none)'} with objective {objective.entry.name}"
            )
            yield Broken("does-not-fit", objective.keys, why, valid)


def misfit(objective: Entry, topology: Entry) -> str:
    """Why an objective cannot train a topology, or nothing."""
    others = {part.path: part.name for part in topology.parts if part.path != "body"}
    reads = set(objective.traits.get("parts", []))
    for path in sorted(reads - set(others)):
        return f"objective `{objective.name}` reads the stack `{path}`, which the topology `{topology.name}` has not"
    for path in sorted(set(others) - reads):
        return f"objective `{objective.name}` gives the {others[path]} nothing to read, and `{topology.name}` has one"
    lacking = [need for need in objective.traits.get("needs", []) if need in _STREAMS - set(provided(topology))]
    if lacking:
        return f"objective `{objective.name}` needs a `{lacking[0]}`, which the topology `{topology.name}` has not"
    causal = next(part.causal for part in topology.parts if part.path == "body")
    sight = objective.traits.get("sight", "any")
    if sight == "both" and causal:
        return (
            f"objective `{objective.name}` needs rows that see both sides, but those of `{topology.name}` see only "
            "what came before: the loss would not mean what its name says"
        )
    if sight == "past" and not causal:
        return (
            f"objective `{objective.name}` predicts what comes next, but the rows of `{topology.name}` see it: "
            "the loss would be trivial"
        )
    return ""


def unasked(topology: Entry, needs: Iterable[str]) -> list[str]:
    """What a topology has for an objective to ask, and objectives with these needs leave alone."""
    return [str(need) for need in topology.traits.get("needs", []) if need not in set(needs)]


def provided(entry: Entry) -> list[str]:
    return [str(item) for item in entry.traits.get("provides", [])]


def rows_may_ask(facts: Facts) -> Iterator[Broken]:
    """Where rows stand behind the others and only ask, attentions let them, and hide from them what comes later."""
    for objective in (*facts.objectives, *facts.evaluated):
        needs = _STREAMS.intersection(objective.list("needs"))
        traits = [*(["appended"] if needs else []), *(["order"] if "second-stream" in needs else [])]
        for stack in facts.stacks:
            for mixing in stack.own if stack.part.path == "body" else ():
                for trait in [trait for trait in traits if not mixing.attention.has(trait)][:1]:
                    what = f"{objective} has rows that only ask, but {mixing.attention} {_ASKED[trait]}"
                    yield Broken("does-not-fit", mixing.attention.keys, what, _with(facts, "attention", trait))


def streams_are_asked(facts: Facts) -> Iterator[Broken]:
    """A stream that a topology has for an objective to ask is asked by one that trains it."""
    asked = {need for objective in facts.objectives for need in objective.list("needs")}
    for need in unasked(facts.topology, asked):
        if facts.objectives:
            fitting = [each.name for each in _entries(facts, "objective") if need in each.traits.get("needs", [])]
            what = f"topology `{facts.topology.name}` has a `{need}`, which no objective asks, so it never learns"
            yield Broken("does-not-fit", facts.objectives[0].keys, what, f"objective {listed(fitting) or '(none)'}")


def one_forms_one_corrupts(facts: Facts) -> Iterator[Broken]:
    """Of a sum of objectives, at most one forms the examples, and at most one corrupts them."""
    for trait, does in (("forms", "forms the examples"), ("corrupts", "changes what the model sees")):
        doing = [objective for objective in facts.objectives if objective.has(trait)]
        for objective in doing[1:]:
            what = f"{objective} {does}, and {doing[0]} does so already"
            yield Broken("does-not-fit", objective.keys, what, "one of the two, or one objective that does both")


def needs_are_met(facts: Facts) -> Iterator[Broken]:
    """What an objective needs, the tokenizer or the corpus has."""
    for objective in (*facts.objectives, *facts.evaluated):
        for need in objective.list("needs"):
            if need in _STREAMS or need == TEACHER:
                continue
            slot = "corpus" if need in _TEXT else "tokenizer"
            source = facts.named(slot)
            silent = source is None or (slot == "corpus" and "provides" not in source.entry.traits)
            if silent or source is None or need in source.list("provides"):
                continue
            fitting = [entry.name for entry in _entries(facts, slot) if need in entry.traits.get("provides", [])]
            what = f"{objective} needs `{need}`, which the {source} does not have"
            yield Broken("does-not-fit", objective.keys, what, f"{slot} {listed(fitting) or '(none has it)'}")


def teacher_is_asked(facts: Facts) -> Iterator[Broken]:
    """There is a teacher where an objective asks for one, and nowhere else."""
    asking = [each for each in (*facts.objectives, *facts.evaluated) if TEACHER in each.list("needs")]
    there = facts.spec.get("teacher") is not None
    for objective in asking if not there else ():
        what = f"{objective} needs a teacher, and the spec names none"
        yield Broken("does-not-fit", objective.keys, what, "teacher: FOLDER, where a model was saved")
    if there and not asking:
        what = "no objective asks for a teacher, so it would be ignored"
        fitting = [entry.name for entry in _entries(facts, "objective") if TEACHER in entry.traits.get("needs", [])]
        yield Broken("not-read", ("teacher",), what, f"teacher=null; objective {listed(fitting) or '(none asks)'}")


def vocabulary_has_room(facts: Facts) -> Iterator[Broken]:
    """A vocabulary of a given size has room for the tokenizer's specials and sentinels."""
    size, tokenizer, node = facts.spec["dims"]["vocabulary"], facts.named("tokenizer"), facts.spec.get("tokenizer")
    if not isinstance(size, int) or tokenizer is None or not isinstance(node, Mapping):
        return
    specials = [special for special in tokenizer.list("provides") if special != "sentinels"]
    sentinels = node.get("sentinels")
    kept = sentinels if isinstance(sentinels, int) else 0
    needed = len(specials) + kept + 1
    if size < needed:
        what = f"`dims.vocabulary` ({size}) has no room: {tokenizer} keeps {len(specials)} specials, {kept} sentinels"
        yield Broken("out-of-range", ("dims", "vocabulary"), what, f"at least {needed}, one of them for text")


def segments_have_rows(facts: Facts) -> Iterator[Broken]:
    """An embedding that tells segments apart has a row for each that an objective gives."""
    node = facts.spec.get("embedding")
    rows = node.get("segments") if isinstance(node, Mapping) else None
    for objective in facts.objectives:
        if objective.has("segments") and rows == 1:
            what = f"{objective} tells two segments apart, but `embedding.segments` is 1"
            yield Broken("out-of-range", ("embedding", "segments"), what, "2, or 0 for an embedding without segments")


def widths_are_met(facts: Facts) -> Iterator[Broken]:
    """Where stacks are of different widths, the embedding that they share brings its rows to each."""
    embedding, width = facts.named("embedding"), facts.sizes(facts.body)["width"]
    if embedding is None or embedding.has("widens") or not isinstance(width, int):
        return
    for part in facts.topology.parts:
        own = facts.sizes(part)["width"]
        if isinstance(own, int) and own != width:
            both = f"rows of the {part.name} are {own} wide and those of the {facts.body.name} {width}"
            what = f"{both}, but {embedding} makes rows of one width for all"
            valid = f"{width}, or embedding {_with(facts, 'embedding', 'widens')}"
            yield Broken("does-not-fit", ("parts", part.name, "dims", "width"), what, valid)


def groups_are_whole(facts: Facts) -> Iterator[Broken]:
    """Layers that share parameters are the same: in each group, a cycled list goes round evenly."""
    for stack in facts.stacks:
        sizes = facts.sizes(stack.part)
        layers, groups = sizes["layers"], sizes["groups"]
        if not isinstance(layers, int) or not isinstance(groups, int) or layers % groups or groups == layers:
            continue
        if stack.part.recurrent:
            what = f"layers of the {stack.part.name} recur, and none shares its parameters with another"
            yield Broken("does-not-fit", ("dims", "groups"), what, "dims.groups null")
            continue
        run, who = layers // groups, f"layers of the {stack.part.name}"
        for slot in CYCLED:
            node, keys = facts.around(stack.part, slot)
            if isinstance(node, list) and run % len(node):
                what = f"{run} {who} share parameters, and a list of {len(node)} is not cycled evenly over them"
                yield Broken("does-not-fit", keys, what, f"a list whose length divides {run}")
            for named in facts.all(slot, node, keys):
                if "layer" in named.list("needs"):
                    what = f"{named} must know which layer it is in, but {who} share their parameters"
                    yield Broken("does-not-fit", named.keys, what, "dims.groups null")


RULES: Final[tuple[Rule, ...]] = (
    position_fits,
    position_sees_the_past,
    attention_is_causal,
    attention_crosses,
    attention_keeps_documents_apart,
    placement_can_wrap,
    recurrence_reads,
    objective_fits,
    rows_may_ask,
    streams_are_asked,
    one_forms_one_corrupts,
    needs_are_met,
    teacher_is_asked,
    vocabulary_has_room,
    segments_have_rows,
    widths_are_met,
    groups_are_whole,
    tokenizer_reads_the_corpus,
    embedding_reads_the_examples,
    embedding_has_a_vocabulary,
    corpus_has_the_last_word,
)


def _entries(facts: Facts, slot: str) -> list[Entry]:
    index: Index = facts.index
    return list(index.entries[slot].values())


def _with(facts: Facts, slot: str, *traits: str) -> str:
    """Those that have one of the traits."""
    fitting = [entry.name for entry in _entries(facts, slot) if any(entry.traits.get(trait) for trait in traits)]
    return listed(fitting) or "(none is installed)"


__all__ = ["RULES", "Broken", "Named", "misfit", "unasked"]
