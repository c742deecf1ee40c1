"""The rules about what documents are: text or images, and what the corpus says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paribus.errors import listed
from paribus.registry import Entry
from paribus.specs.facts import Broken, Facts, Named


def tokenizer_reads_the_corpus(facts: Facts) -> Iterator[Broken]:
    """What a tokenizer reads is what the corpus has."""
    corpus, tokenizer = facts.named("corpus"), facts.named("tokenizer")
    if corpus is None or tokenizer is None or modality(corpus.entry) == modality(tokenizer.entry):
        return
    what = f"{tokenizer} reads {modality(tokenizer.entry)}, but {corpus} has {modality(corpus.entry)}"
    valid = (
        f"tokenizer {_of(facts, 'tokenizer', corpus.entry)} with {corpus}; "
        f"corpus {_of(facts, 'corpus', tokenizer.entry)} with {tokenizer}"
    )
    yield Broken("does-not-fit", tokenizer.keys, what, valid)


def embedding_reads_the_examples(facts: Facts) -> Iterator[Broken]:
    """Examples that are whole images are for an embedding that reads images, and the other way round."""
    embedding = facts.named("embedding")
    for objectives in (facts.objectives, facts.evaluated):
        forming = [objective for objective in objectives if objective.entry.traits.get("forms") == "images"]
        if embedding is None or not objectives or bool(forming) == (modality(embedding.entry) == "images"):
            continue
        if forming:
            what = f"the examples of {forming[0]} are images, but {embedding} reads tokens of text"
            yield Broken("does-not-fit", forming[0].keys, what, f"embedding {_reading(facts, 'images')}")
        else:
            fitting = [entry.name for entry in facts.entries("objective") if entry.traits.get("forms") == "images"]
            what = f"{embedding} reads images, but the examples of {objectives[0]} are none"
            valid = f"objective {listed(fitting) or '(none makes any)'}, or embedding {_reading(facts, 'text')}"
            yield Broken("does-not-fit", objectives[0].keys, what, valid)


def embedding_has_a_vocabulary(facts: Facts) -> Iterator[Broken]:
    """Where rows are scored against a vocabulary, the embedding has one."""
    embedding = facts.named("embedding")
    if embedding is None or embedding.entry.traits.get("unembeds", True):
        return
    for objective in (*facts.objectives, *facts.evaluated):
        if objective.entry.traits.get("unembeds", True):
            fitting = [entry.name for entry in facts.entries("objective") if not entry.traits.get("unembeds", True)]
            what = f"{objective} scores rows against the vocabulary, but {embedding} has none"
            yield Broken("does-not-fit", objective.keys, what, f"objective {listed(fitting) or '(none)'}")


def corpus_has_the_last_word(facts: Facts) -> Iterator[Broken]:
    """What an embedding or an objective is told of the documents is what the corpus tells of them."""
    corpus, embedding = facts.named("corpus"), facts.named("embedding")
    if corpus is None:
        return
    tells = {name: _told(facts, corpus, value) for name, value in corpus.entry.traits.get("tells", {}).items()}
    for named in (*([embedding] if embedding else []), *facts.objectives, *facts.evaluated):
        for option, how in named.entry.traits.get("told", {}).items():
            here, there = facts.at(named).get(option), tells.get(option)
            if not isinstance(here, int) or not isinstance(there, int) or here == there:
                continue
            if how != "least" or here < there:
                what = f"`{option}` of {named} is {here}, but for {corpus} it is {there}"
                valid = f"{there} or more" if how == "least" else str(there)
                yield Broken("does-not-fit", (*named.keys, option), what, valid)


def modality(entry: Entry) -> str:
    return str(entry.traits.get("modality", "text"))


def _told(facts: Facts, corpus: Named, value: Any) -> Any:
    """A number, or what the option of this name is, or how much is listed there."""
    said = facts.at(corpus).get(value) if isinstance(value, str) else value
    return len(said) if isinstance(said, (list, tuple)) else said


def _of(facts: Facts, slot: str, other: Entry) -> str:
    return listed(entry.name for entry in facts.entries(slot) if modality(entry) == modality(other)) or "(none)"


def _reading(facts: Facts, what: str) -> str:
    return listed(entry.name for entry in facts.entries("embedding") if modality(entry) == what) or "(none)"
