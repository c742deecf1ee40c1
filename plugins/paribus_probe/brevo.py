"""Brevo, a task of reasoning breadth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, DataError, Document, Range, SpecError, Split
from paribus_probe.symbol_limits import too_few_symbols
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
class Brevo(Corpus):
    """Brevo, dependencies: the edges of a directed acyclic graph in random order, a node, and all that it depends on
    in topological order. "Physics of Language Models: Part 4.1" (Allen-Zhu 2025).

    The answer to `b c a b d c c e c >` is `a b d c`: an edge leads from a node to one that depends on it, and of the
    nodes that could be next, the first of the alphabet is. In the paper any topological order is right. The answer
    has no fixed length, so train with `stop: true`. Longer questions have more nodes.
    """

    traits: ClassVar[CorpusTraits] = PROBE

    def __init__(
        self,
        *,
        nodes: Annotated[int, "maximum number of nodes of the graph", Range(3, MAX_SYMBOLS)] = 8,
        parents: Annotated[int, "maximum number of edges to a node", Range(1, 64)] = 2,
        symbols: Annotated[int, "different nodes", Range(3, MAX_SYMBOLS)] = 64,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        if symbols < nodes:
            raise SpecError(too_few_symbols(symbols, nodes))
        self._nodes = nodes
        self._max_parents = parents
        self._symbols = letters(symbols)
        self._rank = {symbol: rank for rank, symbol in enumerate(self._symbols)}
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, nodes, parents, symbols)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        if len(self._symbols) < times * self._nodes:
            raise DataError(too_few_symbols(len(self._symbols), times * self._nodes))
        nodes = rng.sample(self._symbols, rng.size(self._nodes, times, minimum=3))
        roots = rng.between(1, max(1, len(nodes) // 4))
        parents: dict[str, list[str]] = {node: [] for node in nodes}
        for place in range(roots, len(nodes)):
            count = rng.between(1, min(self._max_parents, place))
            parents[nodes[place]] = rng.sample(nodes[:place], count)
        edges = [f"{parent} {node}" for node in nodes for parent in parents[node]]
        query = nodes[rng.between(max(roots, len(nodes) * 3 // 4), len(nodes) - 1)]
        text = " ".join([*rng.sample(edges, len(edges)), query, END])
        return Question(text, (" ".join(self._sorted(parents, query)),))

    def _sorted(self, parents: Mapping[str, Sequence[str]], query: str) -> list[str]:
        """Return a node and its ancestors in topological order, the first of the alphabet where several could be."""
        remaining, unread = {query}, [query]
        while unread:
            added = set(parents[unread.pop()]) - remaining
            remaining |= added
            unread += added
        order: list[str] = []
        while remaining:
            possible = [node for node in remaining if remaining.isdisjoint(parents[node])]
            order.append(min(possible, key=self._rank.__getitem__))
            remaining.remove(order[-1])
        return order
