"""Multiple choice corpus: a sentence, and several that might follow it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_text.derived import DerivedCorpus, prose, random_below, shuffled
from paribus_text.reference import Reference, Topic
from paribus_text.swag_files import as_choices


@final
class Continuations(Corpus):
    """A sentence of `python-docs` and several sentences, one of which follows it there.

    The format is that of "SWAG" (Zellers et al. 2018). The others are from other topics, or from elsewhere in the same
    one, which is harder. Split by topic.
    """

    traits: ClassVar[CorpusTraits] = {
        "provides": ["documents", "pairs", "choices"],
        "document_facts": {"choices": "choices"},
    }

    def __init__(
        self,
        *,
        choices: Annotated[int, "number of sentences to choose from", Range(2, 64)] = 4,
        negatives: Annotated[Literal["topic", "place"], "from other topics, or another place in the topic"] = "topic",
        docstrings: Annotated[bool, "add the docstrings of the standard library"] = False,
        held_out: Annotated[float, "share of the text held out for validation", Range(above=0, high=0.5)] = 0.2,
        seed: Annotated[int, "seed of the wrong sentences and of the order", Range(0)] = 0,
    ) -> None:
        self._choices = choices
        self._negatives = negatives
        self._seed = seed
        reference = Reference(held_out, docstrings=docstrings)
        self._derived = DerivedCorpus(reference, self._make, __file__, docstrings, choices, negatives, seed)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.skipped_inputs()

    def _make(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        # Adjacent pairs without overlap: each sentence begins one question only.
        pairs = [
            (topic.name, *pair)
            for topic, paragraph in prose(topics)
            for pair in list(pairwise(paragraph.sentences))[::2]
        ]
        for name, first, second in pairs:
            same_topic = self._negatives == "place"
            candidates = [
                text for topic, _, text in pairs if (topic == name) == same_topic and text not in (first, second)
            ]
            others = shuffled(dict.fromkeys(candidates), self._seed, "others", first)[: self._choices - 1]
            if len(others) < self._choices - 1:
                dropped["sentences with too few others to choose from"] += 1
                continue
            right = random_below(self._choices, self._seed, "right", first, second)
            yield Document(name, (first,), as_choices([*others[:right], second, *others[right:]]), labels=(right,))
