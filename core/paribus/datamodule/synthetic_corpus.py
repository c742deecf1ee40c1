"""A small synthetic corpus for any objective and tokenizer: for checks of components, and to predict memory."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, final

from paribus.assembly.build import as_list
from paribus.assembly.components import Classes, make
from paribus.datamodule.encoding import SPLITS
from paribus.datamodule.token_store import EncodedCorpus, encode_corpus
from paribus.random_keys import key32
from paribus.slots.corpus import Corpus, Document, Split
from paribus.slots.objective import Objective
from paribus.slots.tokenizer import Tokenizer, Vocabulary
from paribus.storage.atomic import digest

WORDS: Final = tuple(
    "the cat sat on a mat and then it ran to see what was there for all of us in the old house".split()  # noqa: SIM905  # a sentence is easier to read than a list
)
COUNT: Final = 60


@final
class SyntheticCorpus(Corpus):
    """Documents of random short sentences, with the targets and labels that objectives need.

    For pairs, answers, tags and choices, a document has a few words, and each word is a sentence.
    """

    def __init__(
        self,
        *,
        needs: Collection[str] = (),
        count: int = COUNT,
        languages: int = 0,
        words: Sequence[str] = WORDS,
        choices: int = 0,
    ) -> None:
        """`count`: number of training documents; of validation documents there are a fifth."""
        self.needs = frozenset(needs)
        self.words = words
        self.languages = languages
        self.choices = choices  # sentences of the target of which one is right
        self.counts: dict[Split, int] = {"train": count, "val": -(-count // 5)}

    def documents(self, split: Split) -> Iterator[Document]:
        short = not self.needs.isdisjoint({"pairs", "answers", "tags", "choices"})
        for number in range(self.counts[split]):
            name = f"{split} {number}"
            sentences = self._words(name, 2, 3)
            if not short:
                sentences = tuple(self._sentence(split, number, index) for index in range(4))
            target = () if self.needs.isdisjoint({"pairs", "answers"}) else self._words(f"{name}, target", 3, 2)
            if "choices" in self.needs:
                target = self._words(f"{name}, target", self.choices, 1)
            labels = self._labels(number, len(sentences))
            yield Document(name, sentences, target, self._language(number), labels, self._language(number + 1))

    def classes(self) -> tuple[str, ...]:
        return ("O", "B-word") if "tags" in self.needs else ()

    def _labels(self, number: int, sentences: int) -> tuple[float, ...]:
        if "tags" in self.needs:
            return tuple((number + index) % 2 for index in range(sentences))
        if "answers" in self.needs:
            return (number % 2, 1 + number % 2)
        if "choices" in self.needs:
            return (number % self.choices,)
        if "scores" in self.needs:
            return (number % 5 / 4,)
        return (number % 2,) if "labels" in self.needs else ()

    def _language(self, number: int) -> str:
        return f"language {number % self.languages}" if self.languages else ""

    def _words(self, name: str, minimum: int, extra: int) -> tuple[str, ...]:
        """Return `minimum` words and, depending on the name, up to `extra` - 1 more."""
        count = minimum + key32(name) % extra
        return tuple(self.words[key32(name, index) % len(self.words)] for index in range(count))

    def _sentence(self, split: str, document: int, sentence: int) -> str:
        keys = [key32(split, document, sentence, word) for word in range(6 + sentence)]
        words = " ".join(self.words[key % len(self.words)] for key in keys)
        return f"{words.capitalize()}." if self.words is WORDS else words

    def fingerprint(self) -> str:
        return _fingerprint(self)


def _fingerprint(corpus: Corpus) -> str:
    return digest(repr([list(corpus.documents(split)) for split in SPLITS]).encode())


@final
class FirstDocuments(Corpus):
    """First documents of each split of another corpus."""

    def __init__(self, corpus: Corpus, count: int) -> None:
        self.corpus = corpus
        self.count = count

    def documents(self, split: Split) -> Iterator[Document]:
        return itertools.islice(self.corpus.documents(split), self.count)

    def fingerprint(self) -> str:
        return _fingerprint(self)


def corpus_for_tokenizer(spec: Any, classes: Classes, tokenizer: Tokenizer, count: int | None = None) -> Corpus:
    """Return a synthetic corpus with the fields that the objectives need, or the spec's images.

    `count`: number of documents, or of images at most; default: a few, or all images.
    """
    modality = tokenizer.traits.get("modality", "text")
    if modality == "images":
        images = make(classes, "corpus", spec["corpus"], kind=Corpus)
        return images if count is None else FirstDocuments(images, count)
    nodes = as_list(spec["objective"])
    objectives: list[type[Objective]] = [classes.get("objective", node["name"]) for node in nodes]
    needs = {need for objective in objectives for need in objective.traits.get("needs", [])}
    languages = max((node.get("languages") or 0 for node in (spec.get("embedding") or {}, *nodes)), default=0)
    choices = max((node.get("choices") or 0 for node in nodes), default=0)
    words = WORDS if modality == "text" else _numbers(tokenizer.vocabulary())
    return SyntheticCorpus(needs=needs, count=count or COUNT, languages=languages, words=words, choices=choices)


def _numbers(vocabulary: Vocabulary) -> list[str]:
    """Return some ids as text, as a tokenizer of ids reads them."""
    reserved = vocabulary.reserved
    ids = (token for token in range(vocabulary.size) if token not in reserved)
    return [str(token) for token in itertools.islice(ids, len(WORDS))]


def encode_synthetic_corpus(spec: Any, classes: Classes, count: int | None = None) -> EncodedCorpus:
    """Encode `corpus_for_tokenizer` with the tokenizer of the spec."""
    tokenizer = make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer)
    with TemporaryDirectory() as cache:
        return encode_corpus(
            corpus_for_tokenizer(spec, classes, tokenizer, count),
            tokenizer,
            spec=spec["tokenizer"],
            size=spec["dims"]["vocabulary"],
            cache=Path(cache),
            allow_overlap=True,
            processes=1,
        )
