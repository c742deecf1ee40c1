"""A corpus of a few kilobytes, made of words that mean nothing: so that a step of training needs no file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, final

from paribus.assembly.components import Classes, make
from paribus.durable import digest
from paribus.keyed import key32
from paribus.slots.corpus import Corpus, Document, Split
from paribus.slots.tokenizer import Tokenizer
from paribus.train.tokens import Encoded, encoded

WORDS: Final = tuple(
    "the cat sat on a mat and then it ran to see what was there for all of us in the old house".split()  # noqa: SIM905  # a sentence is read more easily than a list
)
DOCUMENTS: Final = {"train": 60, "val": 12}


@final
class Babble(Corpus):
    """Documents of some sentences, each a few words in an order of its own."""

    def documents(self, split: Split) -> Iterator[Document]:
        for number in range(DOCUMENTS[split]):
            yield Document(f"{split} {number}", tuple(_sentence(split, number, place) for place in range(4)))

    def fingerprint(self) -> str:
        return digest(repr([document for split in DOCUMENTS for document in self.documents(split)]).encode())  # type: ignore[arg-type]  # a key of DOCUMENTS is a split


def _sentence(split: str, number: int, place: int) -> str:
    words = [WORDS[key32(split, number, place, at) % len(WORDS)] for at in range(6 + place)]
    return f"{' '.join(words).capitalize()}."


def readable(spec: Any, classes: Classes, tokenizer: Tokenizer) -> Corpus:
    """What the tokenizer can be tried on: words without a meaning, or the spec's own corpus if it reads no text."""
    text = tokenizer.traits.get("modality", "text") == "text"
    return Babble() if text else make(classes, "corpus", spec["corpus"], kind=Corpus)


def babbled(spec: Any, classes: Classes) -> Encoded:
    """The corpus as the spec's tokenizer reads it."""
    tokenizer = make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer)
    with TemporaryDirectory() as cache:
        return encoded(
            readable(spec, classes, tokenizer),
            tokenizer,
            spec=spec["tokenizer"],
            size=spec["dims"]["vocabulary"],
            cache=Path(cache),
            allow_overlap=True,
        )
