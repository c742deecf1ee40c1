"""Pairs of sentences, and whether the second follows the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_text.derived import Derived, below, prose
from paribus_text.reference import Reference, Topic


@final
class Follows(Corpus):
    """Two sentences of `python-docs`: 1 where the second follows the first, 0 where it does not, at even odds.

    Shaped like the pairs of GLUE: "GLUE" (Wang et al. 2019). What does not follow comes from another topic, stands
    elsewhere in the same one, or is what came before: in this order it is harder to tell. Split by topic.
    """

    traits: ClassVar[Traits] = {"provides": ["documents", "pairs", "labels"], "tells": {"classes": 2}}

    def __init__(
        self,
        *,
        other: Annotated[
            Literal["topic", "place", "order"], "what does not follow: of another topic, of another place, or swapped"
        ] = "topic",
        docstrings: Annotated[bool, "add the standard library's docstrings"] = False,
        held_out: Annotated[float, "share of the text held out for validation", Range(above=0, high=0.5)] = 0.2,
        seed: Annotated[int, "what decides which pairs are torn, and how", Range(0)] = 0,
    ) -> None:
        self._other = other
        self._seed = seed
        reference = Reference(held_out, docstrings=docstrings)
        self._derived = Derived(reference, self._made, __file__, docstrings, other, seed)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def classes(self) -> tuple[str, ...]:
        return ("torn", "follows")

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.dropped()

    def _made(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        pairs: dict[str, list[tuple[str, str]]] = {}
        for topic, paragraph in prose(topics):
            # Neighbours that share no sentence with the next pair: each stands in one example alone.
            pairs.setdefault(topic.name, []).extend(list(pairwise(paragraph.sentences))[::2])
        everything = [(name, second) for name, own in pairs.items() for _, second in own]
        for name, own in pairs.items():
            for first, second in own:
                kept = below(2, self._seed, "kept", first, second)
                a, b = (first, second) if kept else self._torn(name, first, second, everything)
                if not b:
                    dropped["pairs that nothing else could be put beside"] += 1
                else:
                    yield Document(name, (a,), (b,), labels=(kept,))

    def _torn(self, name: str, first: str, second: str, everything: list[tuple[str, str]]) -> tuple[str, str]:
        """The pair that does not follow; without its second where there is none."""
        if self._other == "order":
            return second, first
        same = self._other == "place"
        others = [text for topic, text in everything if (topic == name) == same and text not in (first, second)]
        return first, others[below(len(others), self._seed, "other", first, second)] if others else ""
