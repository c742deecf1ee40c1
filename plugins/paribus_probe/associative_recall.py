"""Say what belongs to a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, DataError, Document, Problem, Range, SpecError, Split, Traits
from paribus_probe.drawing import MOST, Asked, Drawn, Examples, HeldOut, Luck, Seed, letters


@final
class AssociativeRecall(Corpus):
    """Pairs of a key and a value, and then keys whose values are asked for: multi-query associative recall, "Zoology:
    Measuring and Improving Recall in Efficient Language Models" (Arora et al. 2023).

    `a C d B f C d` asks for `B`; of several queries the answer goes on, `B f C`, where `f` is given and does not count:
    its labels say so, and an objective is told to heed them (`marks: true`). Longer ones have more pairs, of as many
    keys, so that these must be enough.
    """

    traits: ClassVar[Traits] = {"provides": ["documents", "pairs", "longer"], "tells": {"marks": 1}}

    def __init__(
        self,
        *,
        pairs: Annotated[int, "pairs, at most", Range(1, MOST)] = 8,
        queries: Annotated[int, "keys that are asked for, at most", Range(1, MOST)] = 4,
        keys: Annotated[int, "different keys", Range(2, MOST)] = 64,
        values: Annotated[int, "different values", Range(2, MOST)] = 64,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        if keys < pairs:
            raise SpecError(_too_few(keys, pairs))
        self._pairs = pairs
        self._queries = queries
        self._keys = letters(keys)
        self._values = letters(values, capital=True)
        self._drawn = Drawn(self._ask, examples, held_out, seed, __file__, pairs, queries, keys, values)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._drawn.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._drawn.longer(times)

    def fingerprint(self) -> str:
        return self._drawn.fingerprint()

    def _ask(self, luck: Luck, times: int) -> Asked:
        if len(self._keys) < times * self._pairs:
            raise DataError(_too_few(len(self._keys), times * self._pairs))
        keys = luck.some(self._keys, luck.size(self._pairs, times))
        value = {key: luck.one(self._values) for key in keys}
        first, *others = luck.some(keys, min(self._queries, len(keys)))
        text = " ".join(f"{key} {value[key]}" for key in keys)
        more = [each for key in others for each in (key, value[key])]
        return Asked(f"{text} {first}", (value[first], *more), (1.0, *[0.0, 1.0] * len(others)))


def _too_few(keys: int, pairs: int) -> Problem:
    what = f"{pairs} pairs need as many different keys, and there are {keys}"
    return Problem(code="too-few-keys", path="corpus.keys", message=what, valid=f"≥ {pairs}")
