"""Acceptability corpus: sentences in their original and in shuffled word order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_text.derived import DerivedCorpus, prose, random_below, shuffled
from paribus_text.reference import Reference, Topic


@final
class WordOrder(Corpus):
    """Sentences of `python-docs`: label 1 is the original, 0 has adjacent words shuffled, with probability one half.

    The format is that of CoLA: "Neural Network Acceptability Judgments" (Warstadt et al. 2019). The first and the last
    word are not moved, because the capital letter and the full stop would reveal it. Split by topic.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "labels"], "document_facts": {"classes": 2}}

    def __init__(
        self,
        *,
        moved: Annotated[int, "number of shuffled words; fewer are harder to detect", Range(2, 64)] = 6,
        docstrings: Annotated[bool, "add the docstrings of the standard library"] = False,
        held_out: Annotated[float, "share of the text held out for validation", Range(above=0, high=0.5)] = 0.2,
        seed: Annotated[int, "seed of the corruption", Range(0)] = 0,
    ) -> None:
        self._moved = moved
        self._seed = seed
        reference = Reference(held_out, docstrings=docstrings)
        self._derived = DerivedCorpus(reference, self._make, __file__, docstrings, moved, seed)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def classes(self) -> tuple[str, ...]:
        return ("moved", "as written")

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.skipped_inputs()

    def _make(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        for topic, paragraph in prose(topics):
            for sentence in paragraph.sentences:
                words = sentence.split()
                if len(words) < self._moved + 2:
                    dropped[f"sentences of fewer than {self._moved + 2} words"] += 1
                    continue
                is_original = random_below(2, self._seed, "kept", sentence)
                text = " ".join(words if is_original else self._shuffle(words))
                yield Document(topic.name, (text,), labels=(is_original,))

    def _shuffle(self, words: list[str]) -> list[str]:
        """Shuffle a window of words; if they are all the same word, the sentence stays equal."""
        start = 1 + random_below(len(words) - self._moved - 1, self._seed, "first", *words)
        window = words[start : start + self._moved]
        orders = (shuffled(window, self._seed, "order", attempt, *words) for attempt in range(32))
        shuffled_window = next((order for order in orders if order != window), window)
        return [*words[:start], *shuffled_window, *words[start + self._moved :]]
