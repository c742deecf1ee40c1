"""The rules about how much of everything there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paribus.specs.facts import Broken, Facts
from paribus.specs.fields import CYCLED


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
            valid = f"{width}, or embedding {facts.having('embedding', 'widens')}"
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
