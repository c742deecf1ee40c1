"""The rules about what a model is trained for: what objectives read, and what they need of all the others.

The rules about how much of everything there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from paribus.errors import join_names
from paribus.registry import Entry
from paribus.specs.fields import CYCLED
from paribus.specs.spec_view import NamedComponent, SpecView, Violation

IN_TEXT: Final = frozenset(  # what a corpus has; the rest a tokenizer
    {"sentences", "documents", "pairs", "labels", "scores", "tags", "answers"}
)
_STREAMS: Final = frozenset({"last-layer", "second-stream"})  # what a topology has: rows that ask what others hold
_TOPOLOGY: Final = _STREAMS | {"feedback"}  # and rows that may read what the one before them said
_ASKED: Final = {"extra_queries": "lets none ask behind its keys", "order": "follows no order but the rows' own"}
TEACHER: Final = "teacher"  # what an objective needs that neither has
_ELSEWHERE: Final = _TOPOLOGY | {
    TEACHER,
    "weights",
    "normalized",
}  # what other rules ask for; the last, of an attention


def objective_fits(facts: SpecView) -> Iterator[Violation]:
    """An objective reads the stacks that there are, and its rows see what they may see."""
    for objective in (*facts.objectives, *facts.evaluated):
        why = misfit(objective.entry, facts.topology)
        if why:
            objectives = [entry.name for entry in facts.entries("objective") if not misfit(entry, facts.topology)]
            topologies = [entry.name for entry in facts.entries("topology") if not misfit(objective.entry, entry)]
            valid = (
                f"objective {join_names(objectives) or '(none)'} with topology {facts.topology.name}; "
                f"topology {join_names(topologies) or '(none)'} with objective {objective.entry.name}"
            )
            yield Violation("does-not-fit", objective.keys, why, valid)


def misfit(objective: Entry, topology: Entry) -> str:
    """Why an objective cannot train a topology, or nothing."""
    others = {part.path: part.name for part in topology.parts if part.path != "body"}
    reads = set(objective.traits.get("parts", []))
    for path in sorted(reads - set(others)):
        return f"objective `{objective.name}` reads the stack `{path}`, which the topology `{topology.name}` has not"
    for path in sorted(set(others) - reads - set(objective.traits.get("optional_parts", []))):
        return f"objective `{objective.name}` gives the {others[path]} nothing to read, and `{topology.name}` has one"
    lacking = [need for need in objective.traits.get("needs", []) if need in _TOPOLOGY - set(provided(topology))]
    if lacking:
        return f"objective `{objective.name}` needs a `{lacking[0]}`, which the topology `{topology.name}` has not"
    causal = next(part.causal for part in topology.parts if part.path == "body")
    sight = objective.traits.get("visibility", "any")
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


def visibility_fits_the_objective(facts: SpecView) -> Iterator[Violation]:
    """Where rows stand behind the others and only ask, attentions let them, and hide from them what comes later."""
    for objective in (*facts.objectives, *facts.evaluated):
        needs = _STREAMS.intersection(objective.list_trait("needs"))
        traits = [*(["extra_queries"] if needs else []), *(["order"] if "second-stream" in needs else [])]
        for stack in facts.stacks:
            for mixing in stack.self_attention if stack.part.path == "body" else ():
                for trait in [trait for trait in traits if not mixing.attention.has_trait(trait)][:1]:
                    what = f"{objective} has rows that only ask, but {mixing.attention} {_ASKED[trait]}"
                    yield Violation("does-not-fit", mixing.attention.keys, what, facts.names_with("attention", trait))


def attention_supports_order(facts: SpecView) -> Iterator[Violation]:
    """Where rows come with an order that an objective gives them, the attention of the body follows it."""
    ordering = [each for each in (*facts.objectives, *facts.evaluated) if each.has_trait("sets_order")]
    stack = next(stack for stack in facts.stacks if stack.part.path == "body")
    if not ordering or len(facts.stacks) > 1:
        return
    if stack.part.recurrent:
        what = f"{ordering[0]} says which rows see each other both ways, but those of `{facts.topology.name}` recur"
        others = [entry for entry in facts.entries("topology") if not any(part.recurrent for part in entry.parts)]
        fitting = [entry.name for entry in others if not misfit(ordering[0].entry, entry)]
        yield Violation("does-not-fit", ordering[0].keys, what, f"topology {join_names(fitting) or '(none)'}")
    for mixing in stack.self_attention:
        if not mixing.attention.has_trait("order"):
            what = f"{ordering[0]} says who sees whom by an order, but {mixing.attention} {_ASKED['order']}"
            yield Violation("does-not-fit", mixing.attention.keys, what, facts.names_with("attention", "order"))


def streams_are_trained(facts: SpecView) -> Iterator[Violation]:
    """A stream that a topology has for an objective to ask is asked by one that trains it."""
    asked = {need for objective in facts.objectives for need in objective.list_trait("needs")}
    for need in unasked(facts.topology, asked):
        if facts.objectives:
            fitting = [each.name for each in facts.entries("objective") if need in each.traits.get("needs", [])]
            what = f"topology `{facts.topology.name}` has a `{need}`, which no objective asks, so it never learns"
            yield Violation(
                "does-not-fit", facts.objectives[0].keys, what, f"objective {join_names(fitting) or '(none)'}"
            )


def objectives_combine(facts: SpecView) -> Iterator[Violation]:
    """Of a sum of objectives, at most one forms the examples, and at most one corrupts them."""
    for trait, does in (("example_kind", "forms the examples"), ("corrupts", "changes what the model sees")):
        doing = [objective for objective in facts.objectives if objective.has_trait(trait)]
        for objective in doing[1:]:
            what = f"{objective} {does}, and {doing[0]} does so already"
            yield Violation("does-not-fit", objective.keys, what, "one of the two, or one objective that does both")


def needs_are_met(facts: SpecView) -> Iterator[Violation]:
    """What an objective or a measure needs, the tokenizer or the corpus has."""
    for objective in (*facts.objectives, *facts.evaluated, *facts.measures):
        for need in objective.list_trait("needs"):
            if need in _ELSEWHERE:
                continue
            slot = "corpus" if need in IN_TEXT else "tokenizer"
            source = facts.component(slot)
            silent = source is None or (slot == "corpus" and "provides" not in source.entry.traits)
            if silent or source is None:
                continue
            if need in source.list_trait("provides"):
                yield from _given(facts, objective, source, need)
                continue
            fitting = [entry.name for entry in facts.entries(slot) if need in entry.traits.get("provides", [])]
            what = f"{objective} needs `{need}`, which the {source} does not have"
            yield Violation("does-not-fit", objective.keys, what, f"{slot} {join_names(fitting) or '(none has it)'}")


def _given(facts: SpecView, objective: NamedComponent, source: NamedComponent, need: str) -> Iterator[Violation]:
    """What is provided where an option is given, which it is not."""
    option = source.entry.traits.get("provides_if", {}).get(need)
    if option is not None and facts.options_of(source).get(option) is None:
        what = f"{objective} needs `{need}`, which the {source} has where it is told its `{option}`"
        yield Violation("does-not-fit", objective.keys, what, f"{'.'.join(map(str, source.keys))}.{option}=…")


def teacher_is_used(facts: SpecView) -> Iterator[Violation]:
    """There is a teacher where an objective asks for one, and nowhere else."""
    asking = [each for each in (*facts.objectives, *facts.evaluated) if TEACHER in each.list_trait("needs")]
    there = facts.spec.get("teacher") is not None
    for objective in asking if not there else ():
        what = f"{objective} needs a teacher, and the spec names none"
        yield Violation("does-not-fit", objective.keys, what, "teacher: FOLDER, where a model was saved")
    if there and not asking:
        what = "no objective asks for a teacher, so it would be ignored"
        fitting = [entry.name for entry in facts.entries("objective") if TEACHER in entry.traits.get("needs", [])]
        yield Violation(
            "not-read", ("teacher",), what, f"teacher=null; objective {join_names(fitting) or '(none asks)'}"
        )


def vocabulary_has_room(facts: SpecView) -> Iterator[Violation]:
    """A vocabulary of a given size has room for the tokenizer's specials and sentinels."""
    size, tokenizer, node = facts.spec["dims"]["vocabulary"], facts.component("tokenizer"), facts.spec.get("tokenizer")
    if not isinstance(size, int) or tokenizer is None or not isinstance(node, Mapping):
        return
    specials = [special for special in tokenizer.list_trait("provides") if special != "sentinels"]
    sentinels = node.get("sentinels")
    kept = sentinels if isinstance(sentinels, int) else 0
    needed = len(specials) + kept + 1
    if size < needed:
        what = f"`dims.vocabulary` ({size}) has no room: {tokenizer} keeps {len(specials)} specials, {kept} sentinels"
        yield Violation("out-of-range", ("dims", "vocabulary"), what, f"at least {needed}, one of them for text")


def segments_have_embeddings(facts: SpecView) -> Iterator[Violation]:
    """An embedding that tells segments apart has a row for each that an objective gives."""
    node = facts.spec.get("embedding")
    rows = node.get("segments") if isinstance(node, Mapping) else None
    for objective in facts.objectives:
        if objective.has_trait("segments") and rows == 1:
            what = f"{objective} tells two segments apart, but `embedding.segments` is 1"
            yield Violation(
                "out-of-range", ("embedding", "segments"), what, "2, or 0 for an embedding without segments"
            )


def widths_are_met(facts: SpecView) -> Iterator[Violation]:
    """Where stacks are of different widths, the embedding that they share brings its rows to each."""
    embedding, width = facts.component("embedding"), facts.sizes(facts.body)["width"]
    if embedding is None or embedding.has_trait("any_width") or not isinstance(width, int):
        return
    for part in facts.topology.parts:
        own = facts.sizes(part)["width"]
        if isinstance(own, int) and own != width:
            both = f"rows of the {part.name} are {own} wide and those of the {facts.body.name} {width}"
            what = f"{both}, but {embedding} makes rows of one width for all"
            valid = f"{width}, or embedding {facts.names_with('embedding', 'widens')}"
            yield Violation("does-not-fit", ("parts", part.name, "dims", "width"), what, valid)


def groups_are_whole(facts: SpecView) -> Iterator[Violation]:
    """Layers that share parameters are the same: in each group, a cycled list goes round evenly."""
    for stack in facts.stacks:
        sizes = facts.sizes(stack.part)
        layers, groups = sizes["layers"], sizes["groups"]
        if not isinstance(layers, int) or not isinstance(groups, int) or layers % groups or groups == layers:
            continue
        if stack.part.recurrent:
            what = f"layers of the {stack.part.name} recur, and none shares its parameters with another"
            yield Violation("does-not-fit", ("dims", "groups"), what, "dims.groups null")
            continue
        run, who = layers // groups, f"layers of the {stack.part.name}"
        for slot in CYCLED:
            node, keys = facts.slot_of(stack.part, slot)
            if isinstance(node, list) and run % len(node):
                what = f"{run} {who} share parameters, and a list of {len(node)} is not cycled evenly over them"
                yield Violation("does-not-fit", keys, what, f"a list whose length divides {run}")
            for named in facts.components(slot, node, keys):
                if "layer" in named.list_trait("needs"):
                    what = f"{named} must know which layer it is in, but {who} share their parameters"
                    yield Violation("does-not-fit", named.keys, what, "dims.groups null")
