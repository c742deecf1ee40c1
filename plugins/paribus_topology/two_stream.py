"""Two-stream topology (`two-stream`), XLNet's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    Builder,
    Capture,
    Memory,
    Output,
    Part,
    Role,
    States,
    Stream,
    Topology,
    TopologyTraits,
    append_copies,
    token_layout,
)
from paribus_topology.run_stack import run_stack


@final
class TwoStream(Topology):
    """Two-stream encoder for permutation language modelling (Yang et al. 2019).

    "XLNet". Content tokens are followed by query tokens, which predict a position without seeing its content. The
    stream has the queried positions (`query_positions`) and an order: a content token of order 2 r is visible to
    orders 2 r and above; a query for it has order 2 r - 1 and sees all before it, but not the token. A query starts as
    a learned vector in place of token and segment embeddings, plus its position; both streams share parameters.
    Without queries this is `encoder`. (B, T) -> (B, T + N, D), queries last.
    """

    parts: ClassVar[tuple[Part, ...]] = (Part("encoder", "body", causal=False),)
    traits: ClassVar[TopologyTraits] = {"provides": ["last-layer", "second-stream"], "needs": ["second-stream"]}

    def __init__(self, build: Builder) -> None:
        super().__init__()
        self.embedding = build.embedding()
        self.body = build.stack("body")
        self.query = QueryVector(self.body.shape.embedding_width)

    def run(
        self,
        streams: Mapping[str, Stream],
        part: str,
        *,
        memory: Memory | None = None,
        states: States | None = None,
        capture: Capture | bool = False,
    ) -> Output:
        assert part == "body", "validated: an objective runs existing parts only"
        assert memory is None, "no part of this topology attends to a memory"
        stream = streams[part]
        if stream.query_positions is None:
            return run_stack(stream, self.embedding, self.body, memory=None, states=states, capture=capture)
        length = stream.tokens.shape[1]

        def place(x: Tensor, positions: Tensor) -> Tensor:
            """Add positions to the content tokens and to a query vector in place of each queried token."""
            queries = self.query.vector.to(x.dtype).expand(x.shape[0], x.shape[1] - length, -1)
            return self.body.add_positions(torch.cat([x[:, :length], queries], dim=1), positions)

        x, layout = self.embedding(append_queries(stream, stream.query_positions), 0, place, self.body.embedding)
        output: Output = self.body(x, layout, capture=capture, keys=token_layout(stream), tokens=stream.tokens)
        return output


@final
class QueryVector(nn.Module):
    """Learned vector that every query starts as."""

    roles: ClassVar[Mapping[str, Role]] = {"vector": "embedding"}

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(width))


def append_queries(stream: Stream, query_positions: Tensor) -> Stream:
    """Append queries to a stream, each just before its token in the order: (B, T), (B, N) -> (B, T + N)."""
    length = stream.tokens.shape[1]
    layout = stream._replace(positions=token_layout(stream).positions, query_positions=None)
    combined = Stream(*(None if vector is None else append_copies(vector, query_positions) for vector in layout))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
    if combined.order is None:
        return combined
    return combined._replace(order=torch.cat([combined.order[:, :length], combined.order[:, length:] - 1], dim=1))
