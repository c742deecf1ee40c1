"""Pairs of sentences, and how much of the first the second has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_text.derived import Derived, below, prose, shuffled
from paribus_text.reference import Reference, Topic


@final
class Overlap(Corpus):
    """A sentence of `python-docs`, and the same with some words exchanged for those of another; which share was kept.

    Shaped like the similarities of STS-B, from 0 to 1: "SemEval-2017 Task 1" (Cer et al. 2017). Any number of words is
    as likely to be exchanged. Split by topic.
    """

    traits: ClassVar[Traits] = {"provides": ["documents", "pairs", "scores"]}

    def __init__(
        self,
        *,
        words: Annotated[int, "least words of a sentence", Range(2, 1000)] = 8,
        docstrings: Annotated[bool, "add the standard library's docstrings"] = False,
        held_out: Annotated[float, "share of the text held out for validation", Range(above=0, high=0.5)] = 0.2,
        seed: Annotated[int, "what decides which words are exchanged", Range(0)] = 0,
    ) -> None:
        self._words = words
        self._seed = seed
        reference = Reference(held_out, docstrings=docstrings)
        self._derived = Derived(reference, self._made, __file__, docstrings, words, seed)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.dropped()

    def _made(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        found = [(topic.name, text.split()) for topic, paragraph in prose(topics) for text in paragraph.sentences]
        kept = [(name, text) for name, text in found if len(text) >= self._words]
        dropped[f"sentences of fewer than {self._words} words"] += len(found) - len(kept)
        for place, (name, text) in enumerate(kept):
            key = (self._seed, *text)
            _, other = (
                kept[(place + 1 + below(len(kept) - 1, "other", *key)) % len(kept)] if len(kept) > 1 else ("", [])
            )
            foreign = [word for word in other if word not in text]
            if not foreign:
                dropped["sentences without another to exchange words with"] += 1
                continue
            places = shuffled(range(len(text)), "places", *key)[: below(len(text) + 1, "number", *key)]
            drawn = {at: foreign[below(len(foreign), "word", at, *key)] for at in places}
            second = " ".join(drawn.get(at, word) for at, word in enumerate(text))
            yield Document(name, (" ".join(text),), (second,), labels=(1 - len(places) / len(text),))
