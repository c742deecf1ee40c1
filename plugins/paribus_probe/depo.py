"""Depo, a task of reasoning depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, DataError, Document, Range, SpecError, Split
from paribus_probe.symbol_limits import too_few_symbols
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
class Depo(Corpus):
    """Depo, k-hop traversal: the edges of a directed cycle in random order, then nodes whose k-th successor is
    predicted. "Physics of Language Models: Part 4.1" (Allen-Zhu 2025).

    The answer to `c a b c a b 2 c` is `b`: from `c` to `a`, and to `b`. With several queries it continues, `b 1 a b`,
    where the number of hops and the node are given, as in `recall`. Each hop is a lookup whose value is the next key,
    so the answer takes as many layers as hops, or log2 of these. Longer questions have more nodes, and as many hops.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "pairs", "longer"], "document_facts": {"marks": 1}}

    def __init__(
        self,
        *,
        nodes: Annotated[int, "maximum number of nodes of the cycle", Range(2, MAX_SYMBOLS)] = 8,
        hops: Annotated[int, "maximum number of hops", Range(1, 4096)] = 2,
        queries: Annotated[int, "maximum number of queries", Range(1, MAX_SYMBOLS)] = 4,
        symbols: Annotated[int, "different nodes", Range(2, MAX_SYMBOLS)] = 64,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        if symbols < nodes:
            raise SpecError(too_few_symbols(symbols, nodes))
        self._nodes = nodes
        self._hops = hops
        self._queries = queries
        self._symbols = letters(symbols)
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, nodes, hops, queries, symbols)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        if len(self._symbols) < times * self._nodes:
            raise DataError(too_few_symbols(len(self._symbols), times * self._nodes))
        cycle = rng.sample(self._symbols, rng.size(self._nodes, times, minimum=2))
        edges = [f"{node} {cycle[(place + 1) % len(cycle)]}" for place, node in enumerate(cycle)]
        text = " ".join(rng.sample(edges, len(edges)))
        queries = []
        for place in rng.sample(range(len(cycle)), min(self._queries, len(cycle))):
            hops = rng.between(1, self._hops)
            queries.append((f"{hops} {cycle[place]}", cycle[(place + hops) % len(cycle)]))
        (first, answer), *others = queries
        given = [part for query in others for part in query]
        return Question(f"{text} {first}", (answer, *given), (1.0, *[0.0, 1.0] * len(others)))
