"""Associative recall task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, DataError, Document, Problem, Range, SpecError, Split
from paribus_probe.task_examples import (
    MAX_SYMBOLS,
    Examples,
    HeldOut,
    KeyedRandom,
    Question,
    Seed,
    TaskExamples,
    letters,
)


@final
class AssociativeRecall(Corpus):
    """Multi-query associative recall: pairs of a key and a value, then keys whose values are predicted. "Zoology:
    Measuring and Improving Recall in Efficient Language Models" (Arora et al. 2023).

    The answer to `a C d B f C d` is `B`. With several queries it continues, `B f C`, where `f` is given and not
    predicted, as its labels mark for an objective with `marks: true`. Longer questions have more pairs of the same
    keys, so these must suffice.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "pairs", "longer"], "document_facts": {"marks": 1}}

    def __init__(
        self,
        *,
        pairs: Annotated[int, "maximum number of pairs", Range(1, MAX_SYMBOLS)] = 8,
        queries: Annotated[int, "maximum number of queries", Range(1, MAX_SYMBOLS)] = 4,
        keys: Annotated[int, "different keys", Range(2, MAX_SYMBOLS)] = 64,
        values: Annotated[int, "different values", Range(2, MAX_SYMBOLS)] = 64,
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
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, pairs, queries, keys, values)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        if len(self._keys) < times * self._pairs:
            raise DataError(_too_few(len(self._keys), times * self._pairs))
        keys = rng.sample(self._keys, rng.size(self._pairs, times))
        value = {key: rng.choice(self._values) for key in keys}
        first, *queries = rng.sample(keys, min(self._queries, len(keys)))
        text = " ".join(f"{key} {value[key]}" for key in keys)
        answer = [symbol for key in queries for symbol in (key, value[key])]
        return Question(f"{text} {first}", (value[first], *answer), (1.0, *[0.0, 1.0] * len(queries)))


def _too_few(keys: int, pairs: int) -> Problem:
    message = f"{pairs} pairs need {pairs} different keys, got {keys}"
    return Problem(code="too-few-keys", path="corpus.keys", message=message, valid=f"≥ {pairs}")
