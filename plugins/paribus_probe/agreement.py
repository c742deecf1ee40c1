"""Subject-verb agreement task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import PROBE, Examples, HeldOut, KeyedRandom, Question, Seed, TaskExamples

NOUNS = (
    "key", "cabinet", "author", "book", "pilot", "guard", "table", "window",
    "picture", "garden", "letter", "car", "river", "bridge", "tower", "road",
)  # fmt: skip
BETWEEN = ("near", "behind", "above", "beside")


@final
class Agreement(Corpus):
    """Subject-verb agreement across attractor nouns, in sentences of a small grammar:
    "Assessing the Ability of LSTMs to Learn Syntax-Sensitive Dependencies" (Linzen et al. 2016).

    The answer to `the keys near the cabinet` is `are`. Each attractor is singular or plural with probability one half,
    independently of the subject; longer questions have more of them.
    """

    traits: ClassVar[CorpusTraits] = PROBE

    def __init__(
        self,
        *,
        attractors: Annotated[int, "maximum number of nouns between subject and verb", Range(1, 4096)] = 3,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._attractors = attractors
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, attractors)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        count = rng.size(self._attractors, times, minimum=0) if times > 1 else rng.between(0, self._attractors)
        plural = rng.below(2)
        text = ["the", _noun(rng, plural)]
        for _ in range(count):
            text += [rng.choice(BETWEEN), "the", _noun(rng, rng.below(2))]
        return Question(" ".join(text), ("are" if plural else "is",))


def _noun(rng: KeyedRandom, plural: int) -> str:
    return rng.choice(NOUNS) + "s" * plural
