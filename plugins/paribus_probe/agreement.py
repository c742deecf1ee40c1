"""Say which verb a subject takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_probe.drawing import PROBE, Asked, Drawn, Examples, HeldOut, Luck, Seed

NOUNS = (
    "key", "cabinet", "author", "book", "pilot", "guard", "table", "window",
    "picture", "garden", "letter", "car", "river", "bridge", "tower", "road",
)  # fmt: skip
BETWEEN = ("near", "behind", "above", "beside")


@final
class Agreement(Corpus):
    """A subject with nouns behind it that are none, and the verb that agrees with it, in sentences of a small grammar:
    "Assessing the Ability of LSTMs to Learn Syntax-Sensitive Dependencies" (Linzen et al. 2016).

    `the keys near the cabinet` asks for `are`. The nouns between are singular or plural at even odds, whatever the
    subject is; longer ones have more of them.
    """

    traits: ClassVar[Traits] = PROBE

    def __init__(
        self,
        *,
        attractors: Annotated[int, "nouns between subject and verb, at most", Range(1, 4096)] = 3,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._attractors = attractors
        self._drawn = Drawn(self._ask, examples, held_out, seed, __file__, attractors)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._drawn.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._drawn.longer(times)

    def fingerprint(self) -> str:
        return self._drawn.fingerprint()

    def _ask(self, luck: Luck, times: int) -> Asked:
        count = luck.size(self._attractors, times, least=0) if times > 1 else luck.among(0, self._attractors)
        plural = luck.below(2)
        text = ["the", _noun(luck, plural)]
        for _ in range(count):
            text += [luck.one(BETWEEN), "the", _noun(luck, luck.below(2))]
        return Asked(" ".join(text), ("are" if plural else "is",))


def _noun(luck: Luck, plural: int) -> str:
    return luck.one(NOUNS) + "s" * plural
