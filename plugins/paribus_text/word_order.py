"""Sentences as they were written, and others whose words were moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_text.derived import Derived, below, prose, shuffled
from paribus_text.reference import Reference, Topic


@final
class WordOrder(Corpus):
    """Sentences of `python-docs`: 1 is as it was written, 0 has words that lie together in another order, at even odds.

    Shaped like CoLA: "Neural Network Acceptability Judgments" (Warstadt et al. 2019). The first and the last word stay
    in their places, or a capital letter and a full stop would tell. Split by topic.
    """

    traits: ClassVar[Traits] = {"provides": ["documents", "labels"], "tells": {"classes": 2}}

    def __init__(
        self,
        *,
        moved: Annotated[int, "words that are moved: the fewer, the harder it is to tell", Range(2, 64)] = 6,
        docstrings: Annotated[bool, "add the standard library's docstrings"] = False,
        held_out: Annotated[float, "share of the text held out for validation", Range(above=0, high=0.5)] = 0.2,
        seed: Annotated[int, "what decides which sentences are corrupted, and how", Range(0)] = 0,
    ) -> None:
        self._moved = moved
        self._seed = seed
        reference = Reference(held_out, docstrings=docstrings)
        self._derived = Derived(reference, self._made, __file__, docstrings, moved, seed)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def classes(self) -> tuple[str, ...]:
        return ("moved", "as written")

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.dropped()

    def _made(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        for topic, paragraph in prose(topics):
            for sentence in paragraph.sentences:
                words = sentence.split()
                if len(words) < self._moved + 2:
                    dropped[f"sentences of fewer than {self._moved + 2} words"] += 1
                    continue
                kept = below(2, self._seed, "kept", sentence)
                yield Document(topic.name, (" ".join(words if kept else self._corrupted(words)),), labels=(kept,))

    def _corrupted(self, words: list[str]) -> list[str]:
        """The same words; where those that are moved are all one word, there is nothing to see."""
        first = 1 + below(len(words) - self._moved - 1, self._seed, "first", *words)
        window = words[first : first + self._moved]
        orders = (shuffled(window, self._seed, "order", attempt, *words) for attempt in range(32))
        other = next((order for order in orders if order != window), window)
        return [*words[:first], *other, *words[first + self._moved :]]
