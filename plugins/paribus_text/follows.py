"""Pair classification corpus: sentences that follow each other, and negatives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_text.derived import DerivedCorpus, prose, random_below
from paribus_text.reference import Reference, Topic


@final
class Follows(Corpus):
    """Two sentences of `python-docs`: label 1 if the second follows the first, 0 otherwise, with probability one half.

    The format is that of the pairs of "GLUE" (Wang et al. 2019). A negative is from another topic, from elsewhere in
    the same topic, or the pair in reverse order, from easy to hard. Split by topic.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "pairs", "labels"], "document_facts": {"classes": 2}}

    def __init__(
        self,
        *,
        negatives: Annotated[
            Literal["topic", "place", "order"], "from another topic, from another place in the topic, or swapped"
        ] = "topic",
        docstrings: Annotated[bool, "add the docstrings of the standard library"] = False,
        held_out: Annotated[float, "share of the text held out for validation", Range(above=0, high=0.5)] = 0.2,
        seed: Annotated[int, "seed of the negatives", Range(0)] = 0,
    ) -> None:
        self._negatives = negatives
        self._seed = seed
        reference = Reference(held_out, docstrings=docstrings)
        self._derived = DerivedCorpus(reference, self._make, __file__, docstrings, negatives, seed)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def classes(self) -> tuple[str, ...]:
        return ("torn", "follows")

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.skipped_inputs()

    def _make(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        pairs: dict[str, list[tuple[str, str]]] = {}
        for topic, paragraph in prose(topics):
            # Adjacent pairs without overlap: each sentence is in one example only.
            pairs.setdefault(topic.name, []).extend(list(pairwise(paragraph.sentences))[::2])
        all_sentences = [(name, second) for name, topic_pairs in pairs.items() for _, second in topic_pairs]
        for name, topic_pairs in pairs.items():
            for first, second in topic_pairs:
                is_positive = random_below(2, self._seed, "kept", first, second)
                a, b = (first, second) if is_positive else self._negative(name, first, second, all_sentences)
                if not b:
                    dropped["pairs without another sentence for a negative"] += 1
                else:
                    yield Document(name, (a,), (b,), labels=(is_positive,))

    def _negative(self, name: str, first: str, second: str, sentences: list[tuple[str, str]]) -> tuple[str, str]:
        """Return a negative; its second sentence is empty if there is no candidate."""
        if self._negatives == "order":
            return second, first
        same_topic = self._negatives == "place"
        candidates = [
            text for topic, text in sentences if (topic == name) == same_topic and text not in (first, second)
        ]
        if not candidates:
            return first, ""
        return first, candidates[random_below(len(candidates), self._seed, "other", first, second)]
