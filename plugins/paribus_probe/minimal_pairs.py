"""Minimal pairs of sentences of a small grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, ClassVar, Final, Literal, NamedTuple, TypeAlias, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import Examples, HeldOut, KeyedRandom, Question, Seed, TaskExamples

NOUNS: Final = ("key", "book", "guard", "table", "window", "garden", "letter", "bridge")
BETWEEN: Final = ("near", "behind", "above", "beside")
PEOPLE: Final = {"king": "himself", "queen": "herself", "prince": "himself", "duchess": "herself"}
PLURALS: Final = {"duchess": "duchesses"}  # others add an s
ADJECTIVES: Final = ("old", "new", "red", "tall", "heavy", "small", "bright", "plain")
PAST: Final = ("saw", "found", "painted", "admired", "watched", "liked")
PARTICIPLES: Final = ("fallen", "moved", "appeared", "vanished", "changed", "returned")
DAYS: Final = ("today", "here", "now", "there")

Phenomenon: TypeAlias = Literal["agreement", "determiner", "reflexive", "polarity"]


class Pair(NamedTuple):
    """Words of a right sentence, and one of them in the wrong form."""

    words: list[str]
    place: int  # of the wrong word
    wrong: str

    def endings(self) -> tuple[str, str]:
        """Return the right and the wrong sentence from the word that differs."""
        rest = self.words[self.place + 1 :]
        return " ".join(self.words[self.place :]), " ".join([self.wrong, *rest])


@final
class MinimalPairs(Corpus):
    """Sentences of a small grammar, or minimal pairs of these: a right sentence and one that differs in one word, of
    which a language model should find the first likelier. "BLiMP" (Warstadt et al. 2020).

    `agreement`: `the keys near the table are old`, not `is`. `determiner`: `the guard saw these old books`, not `book`.
    `reflexive`: `the queen near the tables admired herself`, not `themselves`. `polarity`: `today no bridge has ever
    fallen` and `today every bridge has already fallen`, not the other way round. Train a decoder on the sentences, and
    evaluate it by the measure `few-shot` with `corpus: {name: minimal-pairs, choices: true}` and `shots: [0]`: the
    choices are the ends of both sentences, from the word that differs. Longer sentences have more phrases between the
    two words that agree.
    """

    traits: ClassVar[CorpusTraits] = {
        "provides": ["documents", "pairs", "choices", "longer"],
        "provides_if": {"pairs": "choices", "choices": "choices"},
    }

    def __init__(
        self,
        *,
        phenomenon: Annotated[Literal["all", Phenomenon], "what the sentences are about"] = "all",
        distance: Annotated[int, "maximum number of phrases between words that agree", Range(1, 4096)] = 2,
        choices: Annotated[bool, "pairs of sentences in place of right sentences"] = False,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._phenomena = tuple(_SENTENCES) if phenomenon == "all" else (phenomenon,)
        self._distance = distance
        self._choices = choices
        options = (phenomenon, distance, choices)
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, *options)

    def documents(self, split: Split) -> Iterator[Document]:
        return map(self._document, self._examples.documents(split))

    def longer_documents(self, times: int) -> Iterator[Document]:
        return map(self._document, self._examples.longer_documents(times))

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        shortest = 0 if times == 1 else (times - 1) * self._distance + 1
        count = rng.between(shortest, times * self._distance)
        pair = _SENTENCES[rng.choice(self._phenomena)](rng, count)
        if not self._choices:
            return Question(" ".join(pair.words), ())
        right = rng.below(2)
        endings = pair.endings()
        return Question(" ".join(pair.words), endings if right == 0 else endings[::-1], (float(right),))

    def _document(self, document: Document) -> Document:
        """Return the words before the one that differs, if there are choices: the split was decided by all words."""
        if not document.target:
            return document
        ending = document.target[int(document.labels[0])]
        return document._replace(sentences=(document.text.removesuffix(ending).strip(),))


def _agreement(rng: KeyedRandom, count: int) -> Pair:
    plural = rng.below(2)
    subject = ["the", rng.choice(NOUNS) + "s" * plural, *_phrases(rng, count)]
    verbs = rng.choice((("is", "are"), ("was", "were")))
    return Pair([*subject, verbs[plural], rng.choice(ADJECTIVES)], len(subject), verbs[1 - plural])


def _determiner(rng: KeyedRandom, count: int) -> Pair:
    plural, noun = rng.below(2), rng.choice(NOUNS)
    determiner = rng.choice((("this", "these"), ("that", "those")))[plural]
    start = ["the", rng.choice(NOUNS), rng.choice(PAST), determiner, *(rng.choice(ADJECTIVES) for _ in range(count))]
    return Pair([*start, noun + "s" * plural], len(start), noun + "s" * (1 - plural))


def _reflexive(rng: KeyedRandom, count: int) -> Pair:
    person, plural = rng.choice(tuple(PEOPLE)), rng.below(2)
    right = "themselves" if plural else PEOPLE[person]
    start = ["the", PLURALS.get(person, f"{person}s") if plural else person, *_phrases(rng, count), rng.choice(PAST)]
    wrong = rng.choice([form for form in ("himself", "herself", "themselves") if form != right])
    return Pair([*start, right], len(start), wrong)


def _polarity(rng: KeyedRandom, count: int) -> Pair:
    """Return a sentence with `ever`, which needs `no`, or with `already`, which needs none."""
    quantifier, other, adverb = rng.choice((("no", "every", "ever"), ("every", "no", "already")))
    start = [rng.choice(DAYS), quantifier, rng.choice(NOUNS), *_phrases(rng, count), "has"]
    return Pair([*start, adverb, rng.choice(PARTICIPLES)], 1, other)


def _phrases(rng: KeyedRandom, count: int) -> list[str]:
    """Return phrases such as `near the books`, with nouns of either number."""
    phrases = (("the", rng.choice(NOUNS) + "s" * rng.below(2)) for _ in range(count))
    return [word for phrase in phrases for word in (rng.choice(BETWEEN), *phrase)]


_SENTENCES: Final[Mapping[str, Callable[[KeyedRandom, int], Pair]]] = {
    "agreement": _agreement,
    "determiner": _determiner,
    "reflexive": _reflexive,
    "polarity": _polarity,
}
