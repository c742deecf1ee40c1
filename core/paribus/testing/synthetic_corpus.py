"""A corpus of a few kilobytes, made of words that mean nothing: so that a step of training needs no file."""

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
class Babble(Corpus):
    """Documents of some sentences, each a few words in an order of its own; and what objectives need besides.

    Where there is another side, or words are told of one by one, documents are a few words, each a sentence.
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


def _words(name: str, fewest: int, more: int) -> tuple[str, ...]:
    """So many words and, from name to name, some more."""
    return tuple(WORDS[key32(name, at) % len(WORDS)] for at in range(fewest + key32(name) % more))


def _sentence(split: str, number: int, place: int) -> str:
    words = [WORDS[key32(split, number, place, at) % len(WORDS)] for at in range(6 + place)]
    return f"{' '.join(words).capitalize()}."


def readable(spec: Any, classes: Classes, tokenizer: Tokenizer) -> Corpus:
    """What the tokenizer can be tried on: words without a meaning, and with them all that the spec's objectives need;
    or the spec's own corpus if it reads no text."""
    if tokenizer.traits.get("modality", "text") != "text":
        return make(classes, "corpus", spec["corpus"], kind=Corpus)
    objectives: list[type[Objective]] = [classes.get("objective", node["name"]) for node in as_list(spec["objective"])]
    return Babble(needs={need for objective in objectives for need in objective.traits.get("needs", [])})


def babbled(spec: Any, classes: Classes) -> EncodedCorpus:
    """The corpus as the spec's tokenizer reads it."""
    tokenizer = make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer)
    with TemporaryDirectory() as cache:
        return encode_corpus(
            readable(spec, classes, tokenizer),
            tokenizer,
            spec=spec["tokenizer"],
            size=spec["dims"]["vocabulary"],
            cache=Path(cache),
            allow_overlap=True,
        )
