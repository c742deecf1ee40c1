"""A sentence with a blank, and a context that has what belongs there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, ClassVar, Final, NamedTuple, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_text.derived import Derived, below, prose, words
from paribus_text.reference import Reference, Topic

BLANK: Final = "___"

_QUOTED: Final = re.compile(r'"([^"\s]+)"')


class _Sentence(NamedTuple):
    topic: str
    text: str
    words: tuple[str, ...]


@final
class Cloze(Corpus):
    """A sentence of `python-docs` with a piece of code left out; which words of the sentences around it belong there?

    Shaped like SQuAD 2.0: "Know What You Don't Know" (Rajpurkar, Jia & Liang 2018); the question is made as in
    "Teaching Machines to Read and Comprehend" (Hermann et al. 2015). The context has the answer exactly once, or, where
    nothing answers, not at all: it is then of another topic. Split by topic.
    """

    traits: ClassVar[Traits] = {"provides": ["documents", "pairs", "answers"]}

    def __init__(
        self,
        *,
        context: Annotated[int, "words of a context, about", Range(8, 4096)] = 80,
        unanswered: Annotated[float, "share of the questions that nothing answers", Range(0, 0.9)] = 0.25,
        docstrings: Annotated[bool, "add the standard library's docstrings"] = False,
        held_out: Annotated[float, "share of the text held out for validation", Range(above=0, high=0.5)] = 0.2,
        seed: Annotated[int, "what decides which questions nothing answers", Range(0)] = 0,
    ) -> None:
        self._context = context
        self._unanswered = unanswered
        self._seed = seed
        reference = Reference(held_out, docstrings=docstrings)
        self._derived = Derived(reference, self._made, __file__, docstrings, context, unanswered, seed)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.dropped()

    def _made(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        every = [
            _Sentence(topic.name, sentence, tuple(words(sentence.replace('"', ""))))
            for topic, paragraph in prose(topics)
            for sentence in paragraph.sentences
        ]
        for place, sentence in enumerate(every):
            terms = list(dict.fromkeys(_QUOTED.findall(sentence.text)))
            if not terms:
                continue
            for term in terms:
                made = self._asked(every, place, term)
                if made is not None:
                    yield made
                else:
                    dropped["blanks that the sentences around them do not fill exactly once"] += 1

    def _asked(self, every: list[_Sentence], place: int, term: str) -> Document | None:
        """The question about one term, if the sentences around it answer it once."""
        sentence, answer = every[place], words(term)
        before, after = sentence.text.split(f'"{term}"', 1)
        question = (f"{before}{BLANK}{after}".replace('"', ""),)
        own = [other for other in every if other.topic == sentence.topic and other.text != sentence.text]
        at = sum(other.topic == sentence.topic and other.text != sentence.text for other in every[:place])
        context = self._around(own, at)
        places = _places(context, answer)
        if len(places) != 1 or not answer:
            return None
        if below(1000, self._seed, "unanswered", *question) < 1000 * self._unanswered:
            start = below(len(every), self._seed, "elsewhere", *question)
            turned = (*every[start:], *every[:start])
            context = self._around([other for other in turned if other.topic != sentence.topic], 0)
            nothing = context and not _places(context, answer)
            return Document(sentence.topic, question, context, labels=(-1, -1)) if nothing else None
        return Document(sentence.topic, question, context, labels=(places[0], places[0] + len(answer) - 1))

    def _around(self, sentences: list[_Sentence], at: int) -> tuple[str, ...]:
        """The words of whole sentences before and behind a place, the nearest first to be taken."""
        taken: list[int] = []
        size = 0
        for place in islice(_nearest(len(sentences), at), len(sentences)):
            if taken and size + len(sentences[place].words) > self._context:
                break
            taken.append(place)
            size += len(sentences[place].words)
        return tuple(word for place in sorted(taken) for word in sentences[place].words)


def _nearest(count: int, at: int) -> Iterator[int]:
    """All places, from the nearest on: the one behind, the one before, and so on."""
    for step in range(count + 1):
        yield from (place for place in (at + step, at - 1 - step) if 0 <= place < count)


def _places(context: tuple[str, ...], answer: list[str]) -> list[int]:
    """Where the answer begins in the context."""
    size = len(answer)
    return [at for at in range(len(context) - size + 1) if list(context[at : at + size]) == answer]
