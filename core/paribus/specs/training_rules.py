"""Rules about objectives (stacks, streams, teachers, corpora) and about sizes (vocabulary, widths, groups)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from paribus.errors import join_names
from paribus.registry import Entry, Index
from paribus.specs.fields import CYCLED, EMA_DECAY
from paribus.specs.spec_view import NamedComponent, SpecView, Violation
from paribus.specs.tree import Keys, get_path, is_met

IN_TEXT: Final = frozenset(  # provided by a corpus; other needs by a tokenizer
    {"sentences", "documents", "pairs", "labels", "scores", "tags", "answers", "choices"}
)
_STREAMS: Final = frozenset({"last-layer", "second-stream"})  # extra query streams of a topology
_TOPOLOGY: Final = _STREAMS | {"feedback", "separate-directions"}  # and decoders that read their output, or both ways
_ASKED: Final = {"extra_queries": "does not support it", "order": "has no factorisation order"}
TEACHER: Final = "teacher"  # a need that neither provides
_ELSEWHERE: Final = _TOPOLOGY | {TEACHER, "weights", "normalized"}  # needs that other rules check


def objective_fits(facts: SpecView) -> Iterator[Violation]:
    """Require a topology with the stacks and the visibility that each objective needs."""
    for objective in (*facts.objectives, *facts.evaluated):
        message = misfit(objective.entry, facts.topology)
        if message:
            objectives = [entry.name for entry in facts.entries("objective") if not misfit(entry, facts.topology)]
            topologies = [entry.name for entry in facts.entries("topology") if not misfit(objective.entry, entry)]
            valid = (
                f"objective {join_names(objectives) or '(none)'} with topology {facts.topology.name}; "
                f"topology {join_names(topologies) or '(none)'} with objective {objective.entry.name}"
            )
            yield Violation("does-not-fit", objective.keys, message, valid)


def misfit(objective: Entry, topology: Entry) -> str:
    """Return why an objective cannot train a topology, or an empty string."""
    other_stacks = {part.path: part.name for part in topology.parts if part.path != "body"}
    reads = set(objective.traits.get("parts", []))
    for path in sorted(reads - set(other_stacks)):
        return (
            f"objective `{objective.name}` reads the stack `{path}`, which the topology `{topology.name}` does not have"
        )
    for path in sorted(set(other_stacks) - reads - set(objective.traits.get("optional_parts", []))):
        return f"objective `{objective.name}` has no input for the {other_stacks[path]} of `{topology.name}`"
    lacking = [need for need in objective.traits.get("needs", []) if need in _TOPOLOGY - set(provided(topology))]
    if lacking:
        return (
            f"objective `{objective.name}` needs a `{lacking[0]}`, which the topology `{topology.name}` does not have"
        )
    causal = next(part.causal for part in topology.parts if part.path == "body")
    visibility = objective.traits.get("visibility", "any")
    if visibility == "both" and causal:
        return (
            f"objective `{objective.name}` needs bidirectional attention, but tokens of `{topology.name}` see only "
            "previous ones"
        )
    if visibility == "past" and not causal:
        return (
            f"objective `{objective.name}` predicts the next token, which tokens of `{topology.name}` see: "
            "the loss would be trivial"
        )
    return ""


def unasked(topology: Entry, needs: Iterable[str]) -> list[str]:
    """Return the streams of a topology that objectives with these needs do not train."""
    return [str(need) for need in topology.traits.get("needs", []) if need not in set(needs)]


def provided(entry: Entry) -> list[str]:
    return [str(item) for item in entry.traits.get("provides", [])]


def visibility_fits_the_objective(facts: SpecView) -> Iterator[Violation]:
    """Require attentions that support the extra query streams of an objective."""
    for objective in (*facts.objectives, *facts.evaluated):
        needs = _STREAMS.intersection(objective.list_trait("needs"))
        traits = [*(["extra_queries"] if needs else []), *(["order"] if "second-stream" in needs else [])]
        for stack in facts.stacks:
            for mixing in stack.self_attention if stack.part.path == "body" else ():
                for trait in [trait for trait in traits if not mixing.attention.has_trait(trait)][:1]:
                    message = f"{objective} has an extra query stream, but {mixing.attention} {_ASKED[trait]}"
                    yield Violation(
                        "does-not-fit", mixing.attention.keys, message, facts.names_with("attention", trait)
                    )


def attention_supports_order(facts: SpecView) -> Iterator[Violation]:
    """Require an attention that follows the factorisation order of an objective."""
    ordering = [objective for objective in (*facts.objectives, *facts.evaluated) if objective.has_trait("sets_order")]
    stack = next(stack for stack in facts.stacks if stack.part.path == "body")
    if not ordering or len(facts.stacks) > 1:
        return
    if stack.part.recurrent:
        message = f"{ordering[0]} needs attention, but `{facts.topology.name}` is recurrent"
        topologies = [entry for entry in facts.entries("topology") if not any(part.recurrent for part in entry.parts)]
        fitting = [entry.name for entry in topologies if not misfit(ordering[0].entry, entry)]
        yield Violation("does-not-fit", ordering[0].keys, message, f"topology {join_names(fitting) or '(none)'}")
    for mixing in stack.self_attention:
        if not mixing.attention.has_trait("order"):
            message = f"{ordering[0]} has a factorisation order, but {mixing.attention} {_ASKED['order']}"
            yield Violation("does-not-fit", mixing.attention.keys, message, facts.names_with("attention", "order"))


def neighbours_are_seen(facts: SpecView) -> Iterator[Violation]:
    """Require that no short convolution meets an order of the tokens, or extra queries, which have no neighbours."""
    ordering = [
        each
        for each in (*facts.objectives, *facts.evaluated)
        if (each.has_trait("sets_order") and len(facts.stacks) == 1) or _STREAMS.intersection(each.list_trait("needs"))
    ]
    if not ordering:
        return
    stack = next(stack for stack in facts.stacks if stack.part.path == "body")
    placements = facts.components("placement", *facts.slot_of(stack.part, "placement"))
    for reader in placements:
        if reader.has_trait("mixes_tokens"):
            message = f"{ordering[0]} has tokens that do not see their neighbours, but {reader} reads these"
            yield Violation("does-not-fit", reader.keys, message, "a placement without `mixes_tokens`, such as pre")
    feedforwards = facts.components("feedforward", *facts.slot_of(stack.part, "feedforward"))
    attentions = [mixing.attention for mixing in stack.self_attention]
    options: list[tuple[NamedComponent, Keys, Any]] = [
        *((each, each.keys, facts.options_of(each)) for each in feedforwards),
        *((each, (*each.keys, "scores"), facts.options_of(each).get("scores")) for each in attentions),
    ]
    for reader, keys, values in options:
        if isinstance(values, Mapping) and values.get("kernel") is not None:
            message = f"{ordering[0]} has tokens that do not see their neighbours, but `kernel` of {reader} reads these"
            yield Violation("does-not-fit", (*keys, "kernel"), message, "null")


def copies_are_not_counted(facts: SpecView) -> Iterator[Violation]:
    """Require that nothing counts the tokens between two, or reads those before one, where the text is read twice."""
    copying = [each for each in (*facts.objectives, *facts.evaluated) if each.has_trait("copies_tokens")]
    if not copying:
        return
    stack = next(stack for stack in facts.stacks if stack.part.path == "body")
    for mixing in stack.self_attention:
        scores = facts.options_of(mixing.attention).get("scores")
        if isinstance(scores, Mapping) and scores.get("forget"):
            message = f"{copying[0]} reads the text twice in one sequence, in which forget gates count tokens twice"
            yield Violation("does-not-fit", (*mixing.attention.keys, "scores", "forget"), message, "false")
    embedding = facts.spec.get("embedding")
    ngrams = embedding.get("ngrams") if isinstance(embedding, Mapping) else None
    if isinstance(ngrams, Mapping) and ngrams.get("longest", 1) > 1:
        message = f"{copying[0]} reads the text twice in one sequence, in which masks have no n-grams"
        yield Violation("does-not-fit", ("embedding", "ngrams", "longest"), message, "1")


def streams_are_trained(facts: SpecView) -> Iterator[Violation]:
    """Require that some objective trains each extra stream of a topology."""
    trained_needs = {need for objective in facts.objectives for need in objective.list_trait("needs")}
    for need in unasked(facts.topology, trained_needs):
        if facts.objectives:
            fitting = [entry.name for entry in facts.entries("objective") if need in entry.traits.get("needs", [])]
            message = f"topology `{facts.topology.name}` has a `{need}`, which no objective trains"
            yield Violation(
                "does-not-fit", facts.objectives[0].keys, message, f"objective {join_names(fitting) or '(none)'}"
            )


def objectives_combine(facts: SpecView) -> Iterator[Violation]:
    """Require that at most one of several objectives forms the examples, and at most one corrupts them."""
    for trait, action in (("example_kind", "forms the examples"), ("corrupts", "changes what the model sees")):
        matching = [objective for objective in facts.objectives if objective.has_trait(trait)]
        for objective in matching[1:]:
            message = f"{objective} {action}, and so does {matching[0]}"
            yield Violation("does-not-fit", objective.keys, message, "one of the two, or one objective that does both")


def provides(index: Index, corpus: Mapping[str, Any], content: str) -> bool:
    """Return whether a corpus with these options declares a content, such as pairs."""
    traits = index.entries["corpus"][corpus["name"]].traits
    condition = traits.get("provides_if", {}).get(content)
    return content in traits.get("provides", []) and (condition is None or is_met(corpus, condition))


def needs_are_met(facts: SpecView) -> Iterator[Violation]:
    """Require a tokenizer and a corpus that provide what objectives and measures need."""
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
            message = f"{objective} needs `{need}`, which the {source} does not have"
            yield Violation("does-not-fit", objective.keys, message, f"{slot} {join_names(fitting) or '(none has it)'}")


def _given(facts: SpecView, objective: NamedComponent, source: NamedComponent, need: str) -> Iterator[Violation]:
    """Report a need that the corpus provides only if one of its options is set, or has one of some values."""
    condition = source.entry.traits.get("provides_if", {}).get(need)
    if condition is None or is_met(facts.options_of(source), condition):
        return
    option, _, values = condition.partition("=")
    setting = f"{'.'.join(map(str, source.keys))}.{option}="
    if values:
        requirement = f"with some values of `{option}`"
        valid = join_names(f"{setting}{value}" for value in values.split("|"))
    else:
        is_empty = get_path(facts.options_of(source), option) is None
        requirement, valid = f"if `{option}` is set", f"{setting}{'…' if is_empty else 'true'}"
    message = f"{objective} needs `{need}`, which the {source} has only {requirement}"
    yield Violation("does-not-fit", objective.keys, message, valid)


def teacher_is_used(facts: SpecView) -> Iterator[Violation]:
    """Require a teacher if and only if an objective needs one."""
    objectives = [each for each in (*facts.objectives, *facts.evaluated) if TEACHER in each.list_trait("needs")]
    has_teacher = facts.spec.get("teacher") is not None
    for objective in objectives if not has_teacher else ():
        message = f"{objective} needs a teacher"
        yield Violation("does-not-fit", objective.keys, message, "teacher: FOLDER, where a model was saved")
    if has_teacher and not objectives:
        message = "no objective uses a teacher"
        fitting = [entry.name for entry in facts.entries("objective") if TEACHER in entry.traits.get("needs", [])]
        yield Violation(
            "unused-option",
            ("teacher",),
            message,
            f"teacher=null; objective {join_names(fitting) or '(none uses one)'}",
        )


def vocabulary_has_room(facts: SpecView) -> Iterator[Violation]:
    """Require a vocabulary that is large enough for the special tokens and sentinels."""
    size, tokenizer, node = facts.spec["dims"]["vocabulary"], facts.component("tokenizer"), facts.spec.get("tokenizer")
    if not isinstance(size, int) or tokenizer is None or not isinstance(node, Mapping):
        return
    specials = [special for special in tokenizer.list_trait("provides") if special != "sentinels"]
    sentinels = node.get("sentinels")
    sentinel_count = sentinels if isinstance(sentinels, int) else 0
    needed = len(specials) + sentinel_count + 1
    if size < needed:
        reserved = f"{len(specials)} specials, {sentinel_count} sentinels"
        message = f"`dims.vocabulary` ({size}) is too small: {tokenizer} needs {reserved}"
        yield Violation("out-of-range", ("dims", "vocabulary"), message, f"at least {needed}, one of them for text")


def segments_have_embeddings(facts: SpecView) -> Iterator[Violation]:
    """Require two segment embeddings for an objective with two segments."""
    node = facts.spec.get("embedding")
    rows = node.get("segments") if isinstance(node, Mapping) else None
    for objective in facts.objectives:
        if objective.has_trait("segments") and rows == 1:
            message = f"{objective} has two segments, but `embedding.segments` is 1"
            yield Violation(
                "out-of-range", ("embedding", "segments"), message, "2, or 0 for an embedding without segments"
            )


def widths_are_met(facts: SpecView) -> Iterator[Violation]:
    """Require an embedding that projects to each width if stacks have different widths."""
    embedding, width = facts.component("embedding"), facts.sizes(facts.body)["width"]
    if embedding is None or embedding.has_trait("any_width") or not isinstance(width, int):
        return
    for part in facts.topology.parts:
        part_width = facts.sizes(part)["width"]
        if isinstance(part_width, int) and part_width != width:
            widths = f"the {part.name} has width {part_width} and the {facts.body.name} {width}"
            message = f"{widths}, but {embedding} supports only one width"
            valid = f"{width}, or embedding {facts.names_with('embedding', 'any_width')}"
            yield Violation("does-not-fit", ("parts", part.name, "dims", "width"), message, valid)


def shared_layers_are_alike(facts: SpecView) -> Iterator[Violation]:
    """Require equal layers among those that share parameters, in groups or in the passes of a loop."""
    for stack in facts.stacks:
        sizes = facts.sizes(stack.part)
        layers, loops = sizes["layers"], sizes["loops"]
        key = "groups" if loops is None else "loops"
        looped = layers if loops is None else _difference(layers, sizes["before_loop"], sizes["after_loop"])
        sets = sizes[key]
        if not isinstance(looped, int) or not isinstance(sets, int) or looped % sets:
            continue
        size = looped // sets
        if (size if key == "groups" else sets) == 1:
            continue  # no two layers share parameters
        if stack.part.recurrent:
            message = f"recurrent layers of the {stack.part.name} cannot share parameters"
            yield Violation("does-not-fit", ("dims", key), message, f"dims.{key} null")
            continue
        subject = f"layers of the {stack.part.name}"
        for slot in CYCLED:
            node, keys = facts.slot_of(stack.part, slot)
            if isinstance(node, list) and size % len(node):
                shares = f"{size} {subject} share parameters" if key == "groups" else f"a pass has {size} {subject}"
                message = f"{shares}, and a list of {len(node)} does not divide them"
                yield Violation("does-not-fit", keys, message, f"a list whose length divides {size}")
            for named in facts.components(slot, node, keys):
                if "layer" in named.list_trait("needs"):
                    message = f"{named} depends on the layer, but {subject} share parameters"
                    yield Violation("does-not-fit", named.keys, message, f"dims.{key} null")


def _difference(layers: object, *outside: object) -> int | None:
    """Return the number of layers in a loop, or None where a size is not known."""
    if not isinstance(layers, int) or not all(isinstance(size, int) for size in outside):
        return None
    return layers - sum(size for size in outside if isinstance(size, int))


def factor_violations(index: Index, spec: Mapping[str, Any]) -> Iterator[Violation]:
    """Require steps of Adam's size, and a table of its own for scores, where an initialisation has rate factors."""
    scheme, optimizer, embedding = (spec.get(slot) for slot in ("initialisation", "optimizer", "embedding"))
    entry = index.entries["initialisation"].get(scheme["name"]) if isinstance(scheme, Mapping) else None
    if entry is None or not entry.traits.get("rate_factors"):
        return
    steps = index.entries["optimizer"]
    fitting = [each.name for each in steps.values() if each.traits.get("adam_like", True)]
    if isinstance(optimizer, Mapping) and optimizer["name"] in steps and optimizer["name"] not in fitting:
        message = f"initialisation `{entry.name}` has learning rates for steps of Adam's size, which the optimizer "
        message += f"`{optimizer['name']}` does not take"
        yield Violation("does-not-fit", ("optimizer",), message, join_names(fitting))
    if isinstance(embedding, Mapping) and embedding.get("tie") is True:
        message = f"initialisation `{entry.name}` has another learning rate for scores of tokens than for their table"
        yield Violation("does-not-fit", ("embedding", "tie"), message, "false")


def averaging_violations(index: Index, spec: Mapping[str, Any]) -> Iterator[Violation]:
    """Refuse two averages of weights, and an average of weights that are scaled after a step, which it is not."""
    optimizer, trainer = spec.get("optimizer"), spec.get("trainer")
    entry = index.entries["optimizer"].get(optimizer["name"]) if isinstance(optimizer, Mapping) else None
    averages = entry is not None and bool(entry.traits.get("averages"))
    has_ema = isinstance(trainer, Mapping) and trainer.get(EMA_DECAY.name) is not None
    if averages and has_ema and entry is not None:
        message = f"the optimizer `{entry.name}` has averaged weights of its own, which are evaluated and saved"
        yield Violation("does-not-fit", ("trainer", EMA_DECAY.name), message, "null")
    if not (averages or has_ema):
        return
    placements = index.entries["placement"]
    for name in sorted(_placement_names(spec)):
        if name in placements and placements[name].traits.get("unit_weights"):
            message = f"placement `{name}` scales weights after each step, but not their averages"
            if averages and entry is not None:
                message += f" in `{entry.name}`"
            if has_ema:
                yield Violation("does-not-fit", ("trainer", EMA_DECAY.name), message, "null")
            else:
                yield Violation("does-not-fit", ("optimizer",), message, "an optimizer without the trait `averages`")


def _placement_names(spec: Mapping[str, Any]) -> set[str]:
    parts = spec.get("parts")
    places = [spec, *(parts.values() if isinstance(parts, Mapping) else ())]
    nodes = [place.get("placement") for place in places if isinstance(place, Mapping)]
    each = [item for node in nodes for item in (node if isinstance(node, list) else [node])]
    return {item["name"] for item in each if isinstance(item, Mapping)}
