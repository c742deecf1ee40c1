"""The rules about what documents are: text or images, and what the corpus says of them.

The rule about what a measure asks of a model.

The rules about how examples share rows and batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from paribus.errors import join_names
from paribus.registry import Entry
from paribus.specs.spec_view import NamedComponent, SpecView, Violation


def tokenizer_reads_the_corpus(facts: SpecView) -> Iterator[Violation]:
    """What a tokenizer reads is what the corpus has."""
    corpus, tokenizer = facts.component("corpus"), facts.component("tokenizer")
    if corpus is None or tokenizer is None or modality(corpus.entry) == modality(tokenizer.entry):
        return
    what = f"{tokenizer} reads {modality(tokenizer.entry)}, but {corpus} has {modality(corpus.entry)}"
    valid = (
        f"tokenizer {_of(facts, 'tokenizer', corpus.entry)} with {corpus}; "
        f"corpus {_of(facts, 'corpus', tokenizer.entry)} with {tokenizer}"
    )
    yield Violation("does-not-fit", tokenizer.keys, what, valid)


def embedding_reads_the_examples(facts: SpecView) -> Iterator[Violation]:
    """Examples that are whole images are for an embedding that reads images, and the other way round."""
    embedding = facts.component("embedding")
    for objectives in (facts.objectives, facts.evaluated):
        forming = [objective for objective in objectives if objective.entry.traits.get("example_kind") == "images"]
        if embedding is None or not objectives or bool(forming) == (modality(embedding.entry) == "images"):
            continue
        if forming:
            what = f"the examples of {forming[0]} are images, but {embedding} reads tokens of text"
            yield Violation("does-not-fit", forming[0].keys, what, f"embedding {_reading(facts, 'images')}")
        else:
            fitting = [
                entry.name for entry in facts.entries("objective") if entry.traits.get("example_kind") == "images"
            ]
            what = f"{embedding} reads images, but the examples of {objectives[0]} are none"
            valid = f"objective {join_names(fitting) or '(none makes any)'}, or embedding {_reading(facts, 'text')}"
            yield Violation("does-not-fit", objectives[0].keys, what, valid)


def embedding_has_a_vocabulary(facts: SpecView) -> Iterator[Violation]:
    """Where rows are scored against a vocabulary, the embedding has one."""
    embedding = facts.component("embedding")
    if embedding is None or embedding.entry.traits.get("unembeds", True):
        return
    for objective in (*facts.objectives, *facts.evaluated):
        if objective.entry.traits.get("unembeds", True):
            fitting = [entry.name for entry in facts.entries("objective") if not entry.traits.get("unembeds", True)]
            what = f"{objective} scores rows against the vocabulary, but {embedding} has none"
            yield Violation("does-not-fit", objective.keys, what, f"objective {join_names(fitting) or '(none)'}")


def options_match_the_corpus(facts: SpecView) -> Iterator[Violation]:
    """What an embedding or an objective is told of the documents is what the corpus tells of them."""
    corpus, embedding = facts.component("corpus"), facts.component("embedding")
    if corpus is None:
        return
    tells = {name: _told(facts, corpus, value) for name, value in corpus.entry.traits.get("document_facts", {}).items()}
    for named in (*([embedding] if embedding else []), *facts.objectives, *facts.evaluated):
        for option, how in named.entry.traits.get("options_from_corpus", {}).items():
            here, there = facts.options_of(named).get(option), tells.get(option)
            if not isinstance(here, int) or not isinstance(there, int) or here == there:
                continue
            if how != "least" or here < there:
                what = f"`{option}` of {named} is {here}, but for {corpus} it is {there}"
                valid = f"{there} or more" if how == "least" else str(there)
                yield Violation("does-not-fit", (*named.keys, option), what, valid)


def modality(entry: Entry) -> str:
    return str(entry.traits.get("modality", "text"))


def _told(facts: SpecView, corpus: NamedComponent, value: Any) -> Any:
    """A number, or what the option of this name is, or how much is listed there."""
    said = facts.options_of(corpus).get(value) if isinstance(value, str) else value
    return len(said) if isinstance(said, (list, tuple)) else said


def _of(facts: SpecView, slot: str, other: Entry) -> str:
    return join_names(entry.name for entry in facts.entries(slot) if modality(entry) == modality(other)) or "(none)"


def _reading(facts: SpecView, what: str) -> str:
    return join_names(entry.name for entry in facts.entries("embedding") if modality(entry) == what) or "(none)"


_WEIGHTS: Final = ("weights", "normalized")


def measure_fits_the_model(facts: SpecView) -> Iterator[Violation]:
    """What a measure asks of a model is something that it can answer."""
    for measure in facts.measures:
        why, valid = _misfit(facts, measure)
        if why:
            yield Violation("does-not-fit", measure.keys, why, valid)


def _misfit(facts: SpecView, measure: NamedComponent) -> tuple[str, str]:
    """Why a model cannot answer, and what could."""
    body = facts.body
    if measure.entry.traits.get("visibility") == "past" and not body.causal:
        what = f"{measure} takes rows that see only what came before, but those of `{facts.topology.name}` see both"
        return f"{what} sides", f"topology {_topologies(facts, causal=True)}"
    if measure.has_trait("own_tokens"):
        if body.cross is not None:
            what = f"{measure} shows the {body.name} rows of its own making, and the {body.cross} has nothing to read"
            return what, f"topology {_topologies(facts, causal=body.causal)}"
        embedding = facts.component("embedding")
        if embedding is not None and embedding.entry.traits.get("modality", "text") != "text":
            return f"{measure} shows the model tokens of its own making, but {embedding} reads none", "a model of text"
    return _unweighed(facts, measure)


def _unweighed(facts: SpecView, measure: NamedComponent) -> tuple[str, str]:
    """Some attention of the body has the weights that a measure reads; beside it, one without any is left out."""
    own = [mixing.attention for stack in facts.stacks if stack.part is facts.body for mixing in stack.self_attention]
    wanted = [need for need in measure.list_trait("needs") if need in _WEIGHTS]
    weighing = [attention for attention in own if attention.has_trait("weights")]
    fitting = [
        entry.name
        for entry in facts.index.entries["attention"].values()
        if all(entry.traits.get(need) for need in wanted)
    ]
    valid = f"attention {join_names(fitting) or '(none is installed)'}"
    if wanted and not weighing:
        who = str(own[0]) if own else f"the {facts.body.name} of `{facts.topology.name}`"
        return f"{measure} reads how much rows weigh each other, but {who} cannot say", valid
    for attention in weighing:
        if "normalized" in wanted and not attention.has_trait("normalized"):
            return f"{measure} takes weights that share out 1, but those of {attention} may sum to anything", valid
    return "", ""


def _topologies(facts: SpecView, *, causal: bool) -> str:
    """Those of one stack whose rows see the past alone, or both sides."""
    found = [
        entry.name
        for entry in facts.index.entries["topology"].values()
        if any(part.path == "body" and part.causal == causal and part.cross is None for part in entry.parts)
    ]
    return join_names(found) or "(none is installed)"


PADDED: Final = frozenset({"segments", "pairs", "texts"})  # examples formed so are filled up with padding


def objective_packs(facts: SpecView) -> Iterator[Violation]:
    """Whole documents are packed into rows for objectives that take such rows, and that form none of their own."""
    if facts.spec["data"].get("documents") != "packed":
        return
    for objective in (*facts.objectives, *facts.evaluated):
        if _packs(objective.entry):
            continue
        forms = objective.entry.traits.get("example_kind")
        own = f"forms {forms} of its own" if forms else "makes other rows of them, in which they would lie elsewhere"
        fitting = [entry.name for entry in facts.index.entries["objective"].values() if _packs(entry)]
        what = f"data.documents is packed, but {objective} {own}"
        yield Violation(
            "does-not-fit", ("data", "documents"), what, f"mixed or apart, or objective {join_names(fitting)}"
        )


def examples_can_be_sorted(facts: SpecView) -> Iterator[Violation]:
    """Examples are sorted by length where an objective pads them."""
    forms = [objective.entry.traits.get("example_kind") for objective in facts.objectives]
    if not facts.spec["data"].get("bucket") or not forms or PADDED.intersection(forms):
        return
    one = facts.objectives[0]
    what = f"data.bucket puts examples of about one length together, but those of {one} are all of one"
    yield Violation("not-read", ("data", "bucket"), what, "0, or an objective that pads its examples")


def _packs(objective: Entry) -> bool:
    traits = objective.traits
    makes = any(traits.get(trait) for trait in ("parts", "optional_parts", "adds_padding", "sets_order"))
    return not traits.get("example_kind") and bool(traits.get("packs_documents", not makes))
