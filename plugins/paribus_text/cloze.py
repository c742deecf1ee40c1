"""Question answering corpus: sentences with a blank, and contexts that contain the answer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, ClassVar, Final, NamedTuple, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_text.derived import DerivedCorpus, prose, random_below, words
from paribus_text.reference import Reference, Topic

BLANK: Final = "___"

_QUOTED: Final = re.compile(r'"([^"\s]+)"')


class _Sentence(NamedTuple):
    topic: str
    text: str
    words: tuple[str, ...]


@final
class Cloze(Corpus):
    """A sentence of `python-docs` with a piece of code blanked out; the answer is in the sentences around it.

    The format is that of SQuAD 2.0: "Know What You Don't Know" (Rajpurkar, Jia & Liang 2018); questions are made as in
    "Teaching Machines to Read and Comprehend" (Hermann et al. 2015). The context contains the answer exactly once. For
    a question without an answer it is from another topic, and does not contain it. Split by topic.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "pairs", "answers"]}

    def __init__(
        self,
        *,
        context: Annotated[int, "approximate number of words of a context", Range(8, 4096)] = 80,
        unanswered: Annotated[float, "share of the questions without an answer", Range(0, 0.9)] = 0.25,
        docstrings: Annotated[bool, "add the docstrings of the standard library"] = False,
        held_out: Annotated[float, "share of the text held out for validation", Range(above=0, high=0.5)] = 0.2,
        seed: Annotated[int, "seed of the questions without an answer", Range(0)] = 0,
    ) -> None:
        self._context = context
        self._unanswered = unanswered
        self._seed = seed
        reference = Reference(held_out, docstrings=docstrings)
        self._derived = DerivedCorpus(reference, self._make, __file__, docstrings, context, unanswered, seed)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._derived.documents(split)

    def fingerprint(self) -> str:
        return self._derived.fingerprint()

    def skipped_inputs(self) -> dict[str, int]:
        return self._derived.skipped_inputs()

    def _make(self, topics: tuple[Topic, ...], dropped: Counter[str]) -> Iterator[Document]:
        sentences = [
            _Sentence(topic.name, sentence, tuple(words(sentence.replace('"', ""))))
            for topic, paragraph in prose(topics)
            for sentence in paragraph.sentences
        ]
        for index, sentence in enumerate(sentences):
            terms = list(dict.fromkeys(_QUOTED.findall(sentence.text)))
            if not terms:
                continue
            for term in terms:
                document = self._question(sentences, index, term)
                if document is not None:
                    yield document
                else:
                    dropped["blanks whose answer is not in the context exactly once"] += 1

    def _question(self, sentences: list[_Sentence], index: int, term: str) -> Document | None:
        """Return the question about one term; None if the context does not contain it exactly once."""
        sentence, answer = sentences[index], words(term)
        prefix, suffix = sentence.text.split(f'"{term}"', 1)
        question = (f"{prefix}{BLANK}{suffix}".replace('"', ""),)
        same_topic = [other for other in sentences if other.topic == sentence.topic and other.text != sentence.text]
        position = sum(other.topic == sentence.topic and other.text != sentence.text for other in sentences[:index])
        context = self._context_around(same_topic, position)
        starts = _answer_starts(context, answer)
        if len(starts) != 1 or not answer:
            return None
        if random_below(1000, self._seed, "unanswered", *question) < 1000 * self._unanswered:
            offset = random_below(len(sentences), self._seed, "elsewhere", *question)
            rotated = (*sentences[offset:], *sentences[:offset])
            context = self._context_around([other for other in rotated if other.topic != sentence.topic], 0)
            if not context or _answer_starts(context, answer):
                return None
            return Document(sentence.topic, question, context, labels=(-1, -1))
        return Document(sentence.topic, question, context, labels=(starts[0], starts[0] + len(answer) - 1))

    def _context_around(self, sentences: list[_Sentence], position: int) -> tuple[str, ...]:
        """Return the words of whole sentences around a position, the nearest first up to the size of a context."""
        selected: list[int] = []
        size = 0
        for index in islice(_by_distance(len(sentences), position), len(sentences)):
            if selected and size + len(sentences[index].words) > self._context:
                break
            selected.append(index)
            size += len(sentences[index].words)
        return tuple(word for index in sorted(selected) for word in sentences[index].words)


def _by_distance(count: int, position: int) -> Iterator[int]:
    """Yield all indices by their distance from a position, alternating after and before it."""
    for step in range(count + 1):
        yield from (index for index in (position + step, position - 1 - step) if 0 <= index < count)


def _answer_starts(context: tuple[str, ...], answer: list[str]) -> list[int]:
    """Return the positions at which the answer starts in the context."""
    size = len(answer)
    return [start for start in range(len(context) - size + 1) if list(context[start : start + size]) == answer]
