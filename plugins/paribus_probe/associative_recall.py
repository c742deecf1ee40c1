"""Associative recall task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Final, final

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

NOISE_SYMBOLS: Final = 16


@final
class AssociativeRecall(Corpus):
    """Multi-query associative recall: pairs of a key and a value, then keys whose values are predicted. "Zoology:
    Measuring and Improving Recall in Efficient Language Models" (Arora et al. 2023).

    The answer to `a C d B f C d` is `B`. With several queries it continues, `B f C`, where `f` is given and not
    predicted, as its labels mark for an objective with `marks: true`. Longer questions have more pairs of the same
    keys, so these must suffice.

    Two options are tasks of "Mechanistic Design and Scaling of Hybrid Architectures" (Poli et al. 2024): with `noise`,
    symbols that mean nothing, `7`, stand between the pairs; with a `motif` of 3, fuzzy recall, a key and a value have
    one to three symbols each, as in `c a D b B A c a`, so a model must match several. The corpus `depo` has values
    that are keys in turn.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "pairs", "longer"], "document_facts": {"marks": 1}}

    def __init__(
        self,
        *,
        pairs: Annotated[int, "maximum number of pairs", Range(1, MAX_SYMBOLS)] = 8,
        queries: Annotated[int, "maximum number of queries", Range(1, MAX_SYMBOLS)] = 4,
        keys: Annotated[int, "different keys", Range(2, MAX_SYMBOLS)] = 64,
        values: Annotated[int, "different values", Range(2, MAX_SYMBOLS)] = 64,
        noise: Annotated[float, "share of noise among the symbols before the first query", Range(0, high=0.9)] = 0.0,
        motif: Annotated[int, "maximum number of symbols of a key, and of a value", Range(1, 16)] = 1,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._different_keys = sum(keys**size for size in range(1, motif + 1))
        if self._different_keys < pairs:
            raise SpecError(_too_few(self._different_keys, pairs))
        self._pairs = pairs
        self._queries = queries
        self._keys = letters(keys)
        self._values = letters(values, capital=True)
        self._noise = noise
        self._motif = motif
        options = (pairs, queries, keys, values, noise, motif)
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, *options)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        if self._different_keys < times * self._pairs:
            raise DataError(_too_few(self._different_keys, times * self._pairs))
        keys = self._distinct_keys(rng, rng.size(self._pairs, times))
        value = {key: self._drawn(rng, self._values) for key in keys}
        first, *queries = rng.sample(keys, min(self._queries, len(keys)))
        text = [f"{key} {value[key]}" for key in keys]
        symbols = len(" ".join(text).split())
        for _ in range(round(self._noise / (1 - self._noise) * symbols)):
            text.insert(rng.between(0, len(text)), str(rng.below(NOISE_SYMBOLS)))
        answer = [part for key in queries for part in (key, value[key])]
        return Question(" ".join([*text, first]), (value[first], *answer), (1.0, *[0.0, 1.0] * len(queries)))

    def _distinct_keys(self, rng: KeyedRandom, count: int) -> list[str]:
        if self._motif == 1:
            return rng.sample(self._keys, count)
        keys: dict[str, None] = {}
        while len(keys) < count:
            keys[self._drawn(rng, self._keys)] = None
        return list(keys)

    def _drawn(self, rng: KeyedRandom, symbols: Sequence[str]) -> str:
        """Return up to `motif` symbols."""
        return " ".join(rng.choice(symbols) for _ in range(rng.between(1, self._motif)))


def _too_few(keys: int, pairs: int) -> Problem:
    message = f"{pairs} pairs need {pairs} different keys, got {keys}"
    return Problem(code="too-few-keys", path="corpus.keys", message=message, valid=f"≥ {pairs}")
