"""Synthetic corpus of a few kilobytes, so that a training step needs no file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, final

from paribus.assembly.build import as_list
from paribus.assembly.components import Classes, make
from paribus.keyed import key32
from paribus.slots.corpus import Corpus, Document, Split
from paribus.slots.objective import Objective
from paribus.slots.tokenizer import Tokenizer
from paribus.storage.atomic import digest
from paribus.train.token_store import EncodedCorpus, encode_corpus

WORDS: Final = tuple(
    "the cat sat on a mat and then it ran to see what was there for all of us in the old house".split()  # noqa: SIM905  # a sentence is read more easily than a list
)
DOCUMENTS: Final = {"train": 60, "val": 12}


@final
class SyntheticCorpus(Corpus):
    """Documents of random short sentences, with the targets and labels that objectives need.

    For pairs, answers and tags a document is a few words, each a sentence of its own.
    """

    def __init__(self, *, needs: Collection[str] = ()) -> None:
        self.needs = frozenset(needs)

    def documents(self, split: Split) -> Iterator[Document]:
        short = not self.needs.isdisjoint({"pairs", "answers", "tags"})
        for number in range(DOCUMENTS[split]):
            name = f"{split} {number}"
            sentences = _words(name, 2, 3) if short else tuple(_sentence(split, number, place) for place in range(4))
            target = () if self.needs.isdisjoint({"pairs", "answers"}) else _words(f"{name}, target", 3, 2)
            yield Document(name, sentences, target, labels=self._labels(number, len(sentences)))

    def _labels(self, number: int, sentences: int) -> tuple[float, ...]:
        if "tags" in self.needs:
            return tuple((number + place) % 2 for place in range(sentences))
        if "answers" in self.needs:
            return (number % 2, 1 + number % 2)
        if "scores" in self.needs:
            return (number % 5 / 4,)
        return (number % 2,) if "labels" in self.needs else ()

    def fingerprint(self) -> str:
        return digest(repr([document for split in DOCUMENTS for document in self.documents(split)]).encode())  # type: ignore[arg-type]  # a key of DOCUMENTS is a split


def _words(name: str, minimum: int, extra: int) -> tuple[str, ...]:
    """Return `minimum` words and, depending on the name, up to `extra` - 1 more."""
    return tuple(WORDS[key32(name, index) % len(WORDS)] for index in range(minimum + key32(name) % extra))


def _sentence(split: str, number: int, place: int) -> str:
    words = [WORDS[key32(split, number, place, index) % len(WORDS)] for index in range(6 + place)]
    return f"{' '.join(words).capitalize()}."


def corpus_for_tokenizer(spec: Any, classes: Classes, tokenizer: Tokenizer) -> Corpus:
    """Return a synthetic corpus with the fields that the objectives need, or the spec's corpus if it has no text."""
    if tokenizer.traits.get("modality", "text") != "text":
        return make(classes, "corpus", spec["corpus"], kind=Corpus)
    objectives: list[type[Objective]] = [classes.get("objective", node["name"]) for node in as_list(spec["objective"])]
    return SyntheticCorpus(needs={need for objective in objectives for need in objective.traits.get("needs", [])})


def encode_synthetic_corpus(spec: Any, classes: Classes) -> EncodedCorpus:
    """Encode the corpus with the tokenizer of the spec."""
    tokenizer = make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer)
    with TemporaryDirectory() as cache:
        return encode_corpus(
            corpus_for_tokenizer(spec, classes, tokenizer),
            tokenizer,
            spec=spec["tokenizer"],
            size=spec["dims"]["vocabulary"],
            cache=Path(cache),
            allow_overlap=True,
        )
