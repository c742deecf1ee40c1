"""Rules about corpus, tokenizer, embedding, measures, packing and bucketing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from paribus.errors import join_names
from paribus.registry import Entry
from paribus.specs.spec_view import NamedComponent, SpecView, Violation
from paribus.specs.training_rules import needs_are_met
from paribus.specs.tree import document_fact


def tokenizer_reads_the_corpus(facts: SpecView) -> Iterator[Violation]:
    """Require the same modality of corpus and tokenizer; ids may belong to a tokenizer of text that is not trained."""
    corpus, tokenizer = facts.component("corpus"), facts.component("tokenizer")
    if corpus is None or tokenizer is None or _fits(corpus.entry, tokenizer.entry):
        return
    if facts.spec.get("from") is not None and modality(corpus.entry) == "ids":
        return  # the tokenizer of the saved model is trained already
    message = f"{tokenizer} reads {modality(tokenizer.entry)}, but {corpus} has {modality(corpus.entry)}"
    tokenizers = (entry for entry in facts.entries("tokenizer") if _fits(corpus.entry, entry))
    corpora = (entry for entry in facts.entries("corpus") if _fits(entry, tokenizer.entry))
    valid = f"tokenizer {_names(tokenizers)} with {corpus}; corpus {_names(corpora)} with {tokenizer}"
    yield Violation("does-not-fit", tokenizer.keys, message, valid)


def embedding_reads_the_examples(facts: SpecView) -> Iterator[Violation]:
    """Require an embedding of images if and only if the examples are images."""
    embedding = facts.component("embedding")
    for objectives in (facts.objectives, facts.evaluated):
        forming = [objective for objective in objectives if objective.entry.traits.get("example_kind") == "images"]
        if embedding is None or not objectives or bool(forming) == (modality(embedding.entry) == "images"):
            continue
        if forming:
            message = f"the examples of {forming[0]} are images, but {embedding} reads tokens of text"
            yield Violation("does-not-fit", forming[0].keys, message, f"embedding {_reading(facts, 'images')}")
        else:
            fitting = [
                entry.name for entry in facts.entries("objective") if entry.traits.get("example_kind") == "images"
            ]
            message = f"{embedding} reads images, but the examples of {objectives[0]} are not images"
            valid = f"objective {join_names(fitting) or '(none makes any)'}, or embedding {_reading(facts, 'text')}"
            yield Violation("does-not-fit", objectives[0].keys, message, valid)


def values_have_token_ids(facts: SpecView) -> Iterator[Violation]:
    """Require an embedding of tokens for tables of values, which token ids look up."""
    embedding = facts.component("embedding")
    if embedding is None or modality(embedding.entry) != "images":
        return
    for mixing in (mixing for stack in facts.stacks for mixing in stack.self_attention):
        scores = facts.options_of(mixing.attention).get("scores")
        if isinstance(scores, Mapping) and scores.get("value_embedding"):
            message = f"{mixing.attention} looks up values by token id, but {embedding} reads images"
            yield Violation("does-not-fit", (*mixing.attention.keys, "scores", "value_embedding"), message, "false")


def embedding_has_a_vocabulary(facts: SpecView) -> Iterator[Violation]:
    """Require an embedding with a vocabulary for objectives that score tokens."""
    embedding = facts.component("embedding")
    if embedding is None or embedding.entry.traits.get("unembeds", True):
        return
    for objective in (*facts.objectives, *facts.evaluated):
        if objective.entry.traits.get("unembeds", True):
            fitting = [entry.name for entry in facts.entries("objective") if not entry.traits.get("unembeds", True)]
            message = f"{objective} scores tokens, but {embedding} has no vocabulary"
            yield Violation("does-not-fit", objective.keys, message, f"objective {join_names(fitting) or '(none)'}")


def options_match_the_corpus(facts: SpecView) -> Iterator[Violation]:
    """Require that options which describe the corpus, such as the number of classes, match it."""
    corpus, embedding = facts.component("corpus"), facts.component("embedding")
    if corpus is None:
        return
    corpus_values = {
        name: document_fact(facts.options_of(corpus), value)
        for name, value in corpus.entry.traits.get("document_facts", {}).items()
    }
    for named in (*([embedding] if embedding else []), *facts.objectives, *facts.evaluated):
        for option, comparison in named.entry.traits.get("options_from_corpus", {}).items():
            here, corpus_value = facts.options_of(named).get(option), corpus_values.get(option)
            if not isinstance(here, int) or not isinstance(corpus_value, int) or here == corpus_value:
                continue
            if comparison != "least" or here < corpus_value:
                message = f"`{option}` of {named} is {here}, but for {corpus} it is {corpus_value}"
                valid = f"{corpus_value} or more" if comparison == "least" else str(corpus_value)
                yield Violation("does-not-fit", (*named.keys, option), message, valid)


def modality(entry: Entry) -> str:
    return str(entry.traits.get("modality", "text"))


def _fits(corpus: Entry, tokenizer: Entry) -> bool:
    if modality(corpus) == "ids" and modality(tokenizer) == "text":
        return bool(tokenizer.traits.get("fixed", False))
    return modality(corpus) == modality(tokenizer)


def _names(entries: Iterable[Entry]) -> str:
    return join_names(entry.name for entry in entries) or "(none)"


def _reading(facts: SpecView, kind: str) -> str:
    return join_names(entry.name for entry in facts.entries("embedding") if modality(entry) == kind) or "(none)"


_WEIGHTS: Final = ("weights", "normalized")


def measure_fits_the_model(facts: SpecView) -> Iterator[Violation]:
    """Require that each measure can evaluate the model."""
    for measure in facts.measures:
        reason, valid = _misfit(facts, measure)
        if reason:
            yield Violation("does-not-fit", measure.keys, reason, valid)


def objectives_read_other_corpora(facts: SpecView) -> Iterator[Violation]:
    """Require that the objectives can read each corpus on which a measure evaluates them."""
    for measure in facts.measures:
        option = str(measure.entry.traits.get("other_corpus"))
        corpus = facts.options_of(measure).get(option)
        if isinstance(corpus, Mapping):
            evaluated, spec = facts.evaluated or facts.objectives, {**facts.spec, "corpus": corpus, "from": None}
            other = replace(facts, spec=spec, objectives=evaluated, evaluated=(), measures=())
            for rule in (needs_are_met, tokenizer_reads_the_corpus, options_match_the_corpus):
                for fault in rule(other):
                    yield fault._replace(keys=(*measure.keys, option), message=f"{measure}: {fault.message}")


def _misfit(facts: SpecView, measure: NamedComponent) -> tuple[str, str]:
    """Return why a measure cannot evaluate the model, and what it could evaluate."""
    body = facts.body
    if measure.entry.traits.get("visibility") == "past" and not body.causal:
        message = f"{measure} needs a causal model, but tokens of `{facts.topology.name}` see both"
        return f"{message} sides", f"topology {_topologies(facts, causal=True)}"
    if measure.has_trait("own_tokens"):
        if body.cross is not None:
            message = f"{measure} makes its own inputs for the {body.name}, and none for the {body.cross}"
            return message, f"topology {_topologies(facts, causal=body.causal)}"
        embedding = facts.component("embedding")
        if embedding is not None and embedding.entry.traits.get("modality", "text") != "text":
            return f"{measure} makes its own tokens, but {embedding} reads images", "a model of text"
    return _unweighed(facts, measure)


def _unweighed(facts: SpecView, measure: NamedComponent) -> tuple[str, str]:
    """Return why no attention of the body has the weights that a measure reads."""
    attentions = [
        mixing.attention for stack in facts.stacks if stack.part is facts.body for mixing in stack.self_attention
    ]
    needs = [need for need in measure.list_trait("needs") if need in _WEIGHTS]
    weighing = [attention for attention in attentions if attention.has_trait("weights")]
    fitting = [
        entry.name
        for entry in facts.index.entries["attention"].values()
        if all(entry.traits.get(need) for need in needs)
    ]
    valid = f"attention {join_names(fitting) or '(none is installed)'}"
    if needs and not weighing:
        subject = str(attentions[0]) if attentions else f"the {facts.body.name} of `{facts.topology.name}`"
        return f"{measure} reads attention weights, which {subject} does not have", valid
    for attention in weighing:
        if "normalized" in needs and not attention.has_trait("normalized"):
            return f"{measure} needs weights that sum to 1, but those of {attention} may not", valid
    return "", ""


def _topologies(facts: SpecView, *, causal: bool) -> str:
    """Return the names of the topologies of one stack that is causal, or bidirectional."""
    names = [
        entry.name
        for entry in facts.index.entries["topology"].values()
        if any(part.path == "body" and part.causal == causal and part.cross is None for part in entry.parts)
    ]
    return join_names(names) or "(none is installed)"


PADDED: Final = frozenset({"segments", "pairs", "texts"})  # formats whose examples are padded


def objective_packs(facts: SpecView) -> Iterator[Violation]:
    """Reject `data.documents: packed` for objectives that form their own examples."""
    if facts.spec["data"].get("documents") != "packed":
        return
    for objective in (*facts.objectives, *facts.evaluated):
        if _packs(objective.entry):
            continue
        forms = objective.entry.traits.get("example_kind")
        reason = f"forms its own {forms}" if forms else "makes other examples of them"
        fitting = [entry.name for entry in facts.index.entries["objective"].values() if _packs(entry)]
        message = f"data.documents is packed, but {objective} {reason}"
        yield Violation(
            "does-not-fit", ("data", "documents"), message, f"mixed or apart, or objective {join_names(fitting)}"
        )


def examples_can_be_sorted(facts: SpecView) -> Iterator[Violation]:
    """Reject `data.bucket` if no objective pads its examples."""
    forms = [objective.entry.traits.get("example_kind") for objective in facts.objectives]
    if not facts.spec["data"].get("bucket") or not forms or PADDED.intersection(forms):
        return
    one = facts.objectives[0]
    message = f"data.bucket groups examples by length, but those of {one} all have the same length"
    yield Violation("unused-option", ("data", "bucket"), message, "0, or an objective that pads its examples")


def _packs(objective: Entry) -> bool:
    traits = objective.traits
    makes = any(traits.get(trait) for trait in ("parts", "optional_parts", "adds_padding", "sets_order"))
    return not traits.get("example_kind") and bool(traits.get("packs_documents", not makes))
