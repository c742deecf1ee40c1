"""Bracket closing task (Dyck languages)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import (
    END,
    MAX_SYMBOLS,
    PROBE,
    Examples,
    HeldOut,
    KeyedRandom,
    Question,
    Seed,
    TaskExamples,
    letters,
)


@final
class Dyck(Corpus):
    """Bracket closing: a prefix of nested brackets, and the brackets that close it. Dyck languages of bounded
    depth, "RNNs can generate bounded hierarchical languages with optimal memory" (Hewitt et al. 2020).

    The answer to `(a (b b) (c >` is `c) a)`. Longer questions are not deeper.
    """

    traits: ClassVar[CorpusTraits] = PROBE

    def __init__(
        self,
        *,
        length: Annotated[int, "maximum number of brackets of a question", Range(2, 65_536)] = 32,
        depth: Annotated[int, "maximum number of open brackets", Range(1, 4096)] = 6,
        kinds: Annotated[int, "kinds of brackets", Range(1, MAX_SYMBOLS)] = 3,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._length = length
        self._depth = depth
        self._kinds = letters(kinds)
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, length, depth, kinds)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        text: list[str] = []
        open_: list[str] = []
        for remaining in range(rng.size(self._length, times), 0, -1):
            closes = remaining > 1 if len(open_) == 1 else bool(open_)  # one must be open at the end
            if len(open_) < self._depth and (not closes or rng.below(2)):
                open_.append(rng.choice(self._kinds))
                text.append(f"({open_[-1]}")
            elif closes:
                text.append(f"{open_.pop()})")
        return Question(" ".join([*text, END]), (" ".join(f"{kind})" for kind in reversed(open_)),))
