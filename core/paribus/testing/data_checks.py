"""Check of the round trip of tokenizers, and the synthetic corpus that models are trained on here."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, final

from paribus.assembly.build import as_list
from paribus.assembly.components import Classes, make
from paribus.errors import DataError
from paribus.random_keys import key32
from paribus.slots.corpus import Corpus, Document, Split
from paribus.slots.objective import Objective
from paribus.slots.tokenizer import Tokenizer
from paribus.storage.atomic import digest
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.train.token_store import EncodedCorpus, encode_corpus

WORDS: Final = tuple(
    "the cat sat on a mat and then it ran to see what was there for all of us in the old house".split()  # noqa: SIM905  # a sentence is easier to read than a list
)
MAX_DOCUMENTS: Final = 20  # documents that a check reads of a corpus
DOCUMENTS: Final = {"train": 60, "val": 12}


@final
class SyntheticCorpus(Corpus):
    """Documents of random short sentences, with the targets and labels that objectives need.

    For pairs, answers and tags, a document has a few words, and each word is a sentence.
    """

    def __init__(self, *, needs: Collection[str] = ()) -> None:
        self.needs = frozenset(needs)

    def documents(self, split: Split) -> Iterator[Document]:
        short = not self.needs.isdisjoint({"pairs", "answers", "tags"})
        for number in range(DOCUMENTS[split]):
            name = f"{split} {number}"
            sentences = _words(name, 2, 3) if short else tuple(_sentence(split, number, index) for index in range(4))
            target = () if self.needs.isdisjoint({"pairs", "answers"}) else _words(f"{name}, target", 3, 2)
            yield Document(name, sentences, target, labels=self._labels(number, len(sentences)))

    def _labels(self, number: int, sentences: int) -> tuple[float, ...]:
        if "tags" in self.needs:
            return tuple((number + index) % 2 for index in range(sentences))
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


def _sentence(split: str, document: int, sentence: int) -> str:
    words = [WORDS[key32(split, document, sentence, word) % len(WORDS)] for word in range(6 + sentence)]
    return f"{' '.join(words).capitalize()}."


def write_files(folder: Path, pattern: str, fields: Collection[str]) -> None:
    """Write synthetic documents as files that match a pattern, such as `corpus/**/*.txt`.

    Rows of a table have their text in each of `fields`.
    """
    path = folder / pattern.replace("**/", "").replace("*", "0")
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [document.text for document in SyntheticCorpus().documents("train")]
    rows = [dict.fromkeys(fields, text) for text in texts]
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(fields), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    else:
        for number, text in enumerate(texts):
            path.with_stem(str(number)).write_text(f"{text}\n")


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


def tokenization(case: Case, host: HostModel) -> Verdict:
    """Encoded text has valid ids and decodes to itself, also after the tokenizer was saved and loaded."""
    corpus = corpus_for_tokenizer(host.spec, case.registry, _tokenizer(case, host))
    texts = [document.text for document in itertools.islice(corpus.documents("train"), MAX_DOCUMENTS)]
    tokenizer, restored = (_tokenizer(case, host) for _ in range(2))
    try:
        tokenizer.train(iter(texts), None)
    except DataError:  # the tokenizer reads a file that its example options do not have
        return DOES_NOT_APPLY
    restored.load(tokenizer.state())
    vocabulary = tokenizer.vocabulary()
    special = vocabulary.reserved - {vocabulary.specials.get("unk")}
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        invalid = [token for token in ids if not 0 <= token < vocabulary.size or token in special]
        if invalid:
            return (
                f"{text!r} is encoded with the id {invalid[0]}; expected an id of text, below the vocabulary size "
                f"{vocabulary.size}, and no special token"
            )
        if restored.encode_batch([text]) != [ids] or restored.vocabulary() != vocabulary:
            return (
                f"{text!r} has other ids after `load(state())`. Usual cause: `state` does not contain all that `train` "
                "learns"
            )
        if _comparable_text(tokenizer.decode(ids)) != _comparable_text(text):
            return f"{text!r} is decoded as {tokenizer.decode(ids)!r}; expected the same text, case and spaces aside"
    return HOLDS


def _tokenizer(case: Case, host: HostModel) -> Tokenizer:
    return make(case.registry, "tokenizer", host.spec["tokenizer"], kind=Tokenizer)


def _comparable_text(text: str) -> str:
    """Return the text without case and whitespace, which a tokenizer may drop."""
    return "".join(text.lower().split())
