"""Similarity corpus: pairs of sentences with the share of words they have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_text.derived import DerivedCorpus, prose, random_below, shuffled
from paribus_text.reference import Reference, Topic


@final
class Overlap(Corpus):
    """A sentence of `python-docs`, a copy with some words replaced by those of another sentence, and the share of words
    that are the same.

    The format is that of STS-B, with scores from 0 to 1: "SemEval-2017 Task 1" (Cer et al. 2017). The number of
    replaced words is uniform. Split by topic.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "pairs", "scores"]}

    def __init__(
        self,
        *,
        words: Annotated[int, "minimum number of words of a sentence", Range(2, 1000)] = 8,
        docstrings: Annotated[bool, "add the docstrings of the standard library"] = False,
        held_out: Annotated[float, "share of the text held out for validation", Range(above=0, high=0.5)] = 0.2,
        seed: Annotated[int, "seed of the replaced words", Range(0)] = 0,
    ) -> None:
        self._words = words
        self._seed = seed
        reference = Reference(held_out, docstrings=docstrings)
        self._derived = DerivedCorpus(reference, self._make, __file__, docstrings, words, seed)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.skipped_inputs()

    def _make(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        sentences = [(topic.name, text.split()) for topic, paragraph in prose(topics) for text in paragraph.sentences]
        long_enough = [(name, text) for name, text in sentences if len(text) >= self._words]
        dropped[f"sentences of fewer than {self._words} words"] += len(sentences) - len(long_enough)
        for index, (name, text) in enumerate(long_enough):
            key = (self._seed, *text)
            other: list[str] = []
            if len(long_enough) > 1:
                offset = 1 + random_below(len(long_enough) - 1, "other", *key)
                _, other = long_enough[(index + offset) % len(long_enough)]
            foreign = [word for word in other if word not in text]
            if not foreign:
                dropped["sentences without another to take words from"] += 1
                continue
            positions = shuffled(range(len(text)), "places", *key)[: random_below(len(text) + 1, "number", *key)]
            replacements = {
                position: foreign[random_below(len(foreign), "word", position, *key)] for position in positions
            }
            second = " ".join(replacements.get(position, word) for position, word in enumerate(text))
            yield Document(name, (" ".join(text),), (second,), labels=(1 - len(positions) / len(text),))
