"""Close all brackets that are open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_probe.drawing import END, MOST, PROBE, Asked, Drawn, Examples, HeldOut, Luck, Seed, letters


@final
class Dyck(Corpus):
    """The beginning of a text of nested brackets, and what closes it: Dyck languages of bounded depth, "RNNs can
    generate bounded hierarchical languages with optimal memory" (Hewitt et al. 2020).

    `(a (b b) (c >` asks for `c) a)`. Longer ones are no deeper.
    """

    traits: ClassVar[Traits] = PROBE

    def __init__(
        self,
        *,
        length: Annotated[int, "brackets of a beginning, at most", Range(2, 65_536)] = 32,
        depth: Annotated[int, "brackets that are open at once, at most", Range(1, 4096)] = 6,
        kinds: Annotated[int, "kinds of brackets", Range(1, MOST)] = 3,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._length = length
        self._depth = depth
        self._kinds = letters(kinds)
        self._drawn = Drawn(self._ask, examples, held_out, seed, __file__, length, depth, kinds)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._drawn.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._drawn.longer(times)

    def fingerprint(self) -> str:
        return self._drawn.fingerprint()

    def _ask(self, luck: Luck, times: int) -> Asked:
        text: list[str] = []
        open_: list[str] = []
        for left in range(luck.size(self._length, times), 0, -1):
            closes = left > 1 if len(open_) == 1 else bool(open_)  # one stays open at the end
            if len(open_) < self._depth and (not closes or luck.below(2)):
                open_.append(luck.one(self._kinds))
                text.append(f"({open_[-1]}")
            elif closes:
                text.append(f"{open_.pop()})")
        return Asked(" ".join([*text, END]), (" ".join(f"{kind})" for kind in reversed(open_)),))
