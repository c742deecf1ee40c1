"""Documents of several labelled texts."""

from collections import Counter
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus import SpecError
from paribus_probe.groups import Groups
from paribus_text.dates import Dates
from paribus_text.in_context import InContext

SMALL: Any = {"examples": 40, "held_out": 10}


def small_groups() -> Groups:
    return Groups(classes=3, symbols=4, examples=60, held_out=20)


def lines(document: str) -> list[tuple[str, str]]:
    return [(text, label) for text, _, label in (line.partition(" : ") for line in document.split("\n"))]


def true_class(text: str) -> int:
    return (ord(text[0]) - ord("a")) // 4


def test_each_document_names_the_classes_consistently_and_in_its_own_way() -> None:
    corpus = InContext(source=small_groups, shots=12, **SMALL)
    namings: Counter[tuple[str, ...]] = Counter()
    for document in corpus.documents("train"):
        pairs = lines(document.text)
        assert len(pairs) == 12
        naming = {true_class(text): label for text, label in pairs}
        assert all(naming[true_class(text)] == label for text, label in pairs)
        assert len(set(naming.values())) == len(naming)
        if len(naming) == 3:
            namings[naming[0], naming[1], naming[2]] += 1
    assert len(namings) == 6


def test_fixed_names_are_those_of_the_source() -> None:
    corpus = InContext(source=small_groups, shots=5, names="fixed", **SMALL)
    for document in corpus.documents("val"):
        assert all(label == ("AA", "BB", "CC")[true_class(text)] for text, label in lines(document.text))


def test_texts_are_those_of_the_same_split() -> None:
    corpus, source = InContext(source=small_groups, shots=5, **SMALL), small_groups()
    for split in ("train", "val"):
        texts = {text for document in corpus.documents(split) for text, _ in lines(document.text)}
        assert texts <= {document.text for document in source.documents(split)}


def test_a_document_depends_on_its_number_and_the_seed_only() -> None:
    few, many = InContext(source=small_groups, **SMALL), InContext(source=small_groups, examples=50, held_out=10)
    assert list(many.documents("train"))[:40] == list(few.documents("train"))
    other = InContext(source=small_groups, seed=1, **SMALL)
    assert list(other.documents("train")) != list(few.documents("train"))
    assert len({few.fingerprint(), many.fingerprint(), other.fingerprint()}) == 3


def test_a_template_replaces_the_format_of_a_line() -> None:
    corpus = InContext(source=small_groups, shots=2, template="{text} = {label}", **SMALL)
    assert all(line[-5:-2] == " = " for line in next(corpus.documents("train")).text.split("\n"))
    with raises_problem(SpecError, "invalid-template", "corpus.template"):
        InContext(source=small_groups, template="{text}")


def test_only_corpora_with_named_classes_are_accepted() -> None:
    with pytest.raises(ValueError, match="classes that have names"):
        InContext(source=Dates)


def test_with_marks_only_labels_are_predicted() -> None:
    options: Any = {"source": small_groups, "shots": 4, "template": "{text} : {label}", **SMALL}
    marked, whole = InContext(predicted="labels", **options), InContext(**options)
    for document, text in zip(marked.documents("train"), whole.documents("train"), strict=True):
        pieces = [*document.sentences, *document.target]
        assert pieces[::2] == [f"{line} :" for line, _ in lines(text.text)]
        assert pieces[1::2] == [label for _, label in lines(text.text)]
        assert document.labels == (1, 0, 1, 0, 1, 0, 1)
    assert marked.fingerprint() != whole.fingerprint()


def test_a_decoder_trains_on_documents_of_both_kinds() -> None:
    small = ("dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=40", "data.batch=8", "tokenizer=symbols")
    corpus = "corpus={name: in-context, shots: 6, examples: 40, held_out: 10, source: {name: groups, examples: 60}}"
    paribus.data(paribus.spec("gpt-tiny", corpus, *small))
    completion = "objective={name: completion, separator: false, stop: false, marks: true}"
    spec = paribus.spec("gpt-tiny", corpus, "corpus.predicted=labels", completion, *small)
    batch = next(iter(paribus.data(spec).val_dataloader()))
    labels = batch.targets["completion"]["labels"]
    assert int((labels != paribus.IGNORED).sum(1).min()) == 6
    with raises_problem(SpecError, "does-not-fit", "pairs"):
        paribus.spec("gpt-tiny", corpus, completion, *small)
