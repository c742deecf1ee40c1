"""Labelled corpora as text-to-text pairs."""

from collections.abc import Iterator
from typing import Any, ClassVar, final

import pytest
from tests.fixtures.problems import raises_problem

from paribus import Corpus, CorpusTraits, Document, SpecError, Split
from paribus.assembly.components import make
from paribus.registry import installed
from paribus.specs import resolved
from paribus_text.sections import Sections
from paribus_text.text_to_text import UNANSWERED, TextToText


def corpus_of(provides: str, *documents: Document, names: tuple[str, ...] = ("no", "yes")) -> Any:
    """A corpus with the same documents in both splits."""

    @final
    class ListCorpus(Corpus):
        traits: ClassVar[CorpusTraits] = {"provides": ["documents", provides]}

        def documents(self, split: Split) -> Iterator[Document]:
            yield from documents

        def classes(self) -> tuple[str, ...]:
            return names

        def fingerprint(self) -> str:
            return repr(documents)

        def skipped_inputs(self) -> dict[str, int]:
            return {"others": 3}

    return ListCorpus


def written_pairs(corpus: Corpus) -> list[tuple[str, str]]:
    return [(document.text, *document.target) for document in corpus.documents("train")]  # type: ignore[misc]  # a target has one sentence


def test_the_target_is_the_class_name_and_the_source_begins_with_the_task() -> None:
    documents = Document("a", ("It is", "so."), labels=(1,)), Document("b", ("Not.",), ("Or?",), labels=(0,))
    assert written_pairs(TextToText(source=corpus_of("labels", *documents), task="sst2")) == [
        ("sst2 sentence: It is so.", "yes"),
        ("sst2 sentence1: Not. sentence2: Or?", "no"),
    ]
    assert written_pairs(TextToText(source=corpus_of("labels", documents[0]))) == [("sentence: It is so.", "yes")]


def test_documents_of_unnamed_classes_are_dropped_and_counted() -> None:
    corpus = TextToText(
        source=corpus_of("labels", Document("a", ("A.",), labels=(2,)), Document("b", ("B.",), labels=(1,)))
    )
    assert written_pairs(corpus) == [("sentence: B.", "yes")]
    assert corpus.skipped_inputs() == {"others": 3, "documents of a class without a name": 1}


@pytest.mark.parametrize(
    ("score", "step", "text"), [(3.49, 0.2, "3.4"), (0.09, 0.2, "0.0"), (0.63, 0.25, "0.75"), (2.0, 1.0, "2")]
)
def test_a_score_is_rounded_to_a_step(score: float, step: float, text: str) -> None:
    corpus = TextToText(
        source=corpus_of("scores", Document("a", ("A.",), ("B.",), labels=(score,))), task="stsb", step=step
    )
    assert written_pairs(corpus) == [("stsb sentence1: A. sentence2: B.", text)]


def test_targets_of_tags_and_answers() -> None:
    assert written_pairs(TextToText(source=corpus_of("tags", Document("a", ("f", "is", "f"), labels=(1, 0, 1))))) == [
        ("sentence: f is f", "yes no yes")
    ]
    context = ("it", "is", "in", "here")
    documents = (Document("a", ("Where?",), context, labels=(2, 3)), Document("b", ("Who?",), context, labels=(-1, -1)))
    assert written_pairs(TextToText(source=corpus_of("answers", *documents))) == [
        ("question: Where? context: it is in here", "in here"),
        ("question: Who? context: it is in here", UNANSWERED),
    ]


def test_the_spec_contains_the_labelled_corpus() -> None:
    registry = installed()
    spec = resolved(
        "seq2seq-tiny", "corpus=text-to-text", "corpus.source=sections", "corpus.source.words=9", registry=registry
    )
    assert spec["corpus"]["source"] == {"name": "sections", "held_out": 0.2, "words": 9}
    built = make(registry, "corpus", spec["corpus"], kind=Corpus)
    assert len(list(built.documents("val"))) == len(list(Sections(words=9).documents("val")))
    assert {document.target[0] for document in built.documents("val")} == set(Sections().classes())
    other_task = make(registry, "corpus", {**spec["corpus"], "task": "x"}, kind=Corpus)
    assert other_task.fingerprint() != built.fingerprint()


@pytest.mark.parametrize("within", ["python-docs", "shapes"])
def test_a_corpus_without_labels_is_refused(within: str) -> None:
    registry = installed()
    spec = resolved("seq2seq-tiny", "corpus=text-to-text", f"corpus.source={within}", registry=registry)
    with raises_problem(SpecError, "component-error", "corpus", "source"):
        make(registry, "corpus", spec["corpus"], kind=Corpus)
