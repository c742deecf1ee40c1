"""Memorisation of facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import (
    MAX_SYMBOLS,
    Examples,
    HeldOut,
    KeyedRandom,
    Question,
    Seed,
    TaskExamples,
    letters,
)


@final
class Memorise(Corpus):
    """Memorisation: the tag of each symbol is the value of the key that ends there, and no text has these values.
    "Mechanistic Design and Scaling of Hybrid Architectures" (Poli et al. 2024).

    A key is the symbol and those before it, two by default: the value of `c a` is the same in all texts of a seed, so a
    model can only know it from the weights. Train with the objective `tag`. There are `symbols` to the power of `key`
    facts; the first symbols of a text are keys of fewer. The validation split has the same facts in other texts.
    """

    traits: ClassVar[CorpusTraits] = {
        "provides": ["documents", "tags", "longer"],
        "document_facts": {"classes": "values"},
    }

    def __init__(
        self,
        *,
        symbols: Annotated[int, "different symbols", Range(2, MAX_SYMBOLS)] = 16,
        key: Annotated[int, "symbols of a key", Range(1, 16)] = 2,
        values: Annotated[int, "different values", Range(2, 26)] = 8,
        length: Annotated[int, "symbols of a text", Range(2, 65_536)] = 16,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._symbols = letters(symbols)
        self._key = key
        self._names = letters(values, capital=True)
        self._length = length
        self._seed = seed
        self._value: dict[tuple[str, ...], float] = {}
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, symbols, key, values, length)

    def documents(self, split: Split) -> Iterator[Document]:
        return map(self._tagged, self._examples.documents(split))

    def longer_documents(self, times: int) -> Iterator[Document]:
        return map(self._tagged, self._examples.longer_documents(times))

    def classes(self) -> tuple[str, ...]:
        return self._names

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        return Question(" ".join(rng.choice(self._symbols) for _ in range(times * self._length)), ())

    def _tagged(self, document: Document) -> Document:
        """Return a document with a sentence and a tag for each symbol."""
        words = tuple(document.text.split())
        keys = (words[max(0, stop - self._key) : stop] for stop in range(1, len(words) + 1))
        return document._replace(sentences=words, labels=tuple(map(self._lookup, keys)))

    def _lookup(self, key: tuple[str, ...]) -> float:
        if key not in self._value:
            self._value[key] = float(KeyedRandom(f"{self._seed} value of {key}").below(len(self._names)))
        return self._value[key]
