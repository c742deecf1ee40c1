"""Rows that see both ways, and others behind them that ask what a row is without seeing it."""

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
    Traits,
    append_copies,
    token_layout,
)
from paribus_topology.passing import passed


@final
class TwoStream(Topology):
    """One stack that holds what rows say, and behind it rows that ask what stands where: "XLNet" (Yang et al. 2019).

    What is asked comes with the stream (`asked`), and who sees whom with its order: a row of order 2 r is seen by those
    of 2 r and above, and who asks for it, with 2 r - 1, sees all before it and not the row. One that asks begins as a
    learned vector, in place of token and segment, with what is placed there; parameters are those of the rows. Where
    nothing is asked it is the encoder. (B, T) -> (B, T + N, D), the rows that ask last.
    """

    parts: ClassVar[tuple[Part, ...]] = (Part("encoder", "body", causal=False),)
    traits: ClassVar[Traits] = {"provides": ["last-layer", "second-stream"], "needs": ["second-stream"]}

    def __init__(self, build: Builder) -> None:
        super().__init__()
        self.embedding = build.embedding()
        self.body = build.stack("body")
        self.query = Query(self.body.shape.embedded)

    def run(
        self,
        streams: Mapping[str, Stream],
        part: str,
        *,
        memory: Memory | None = None,
        states: States | None = None,
        capture: Capture | bool = False,
    ) -> Output:
        assert part == "body", "the rules let an objective ask for no other part"
        assert memory is None, "there is nothing here that attends to a memory"
        stream = streams[part]
        if stream.asked is None:
            return passed(stream, self.embedding, self.body, memory=None, states=states, capture=capture)
        length = stream.tokens.shape[1]

        def place(x: Tensor, positions: Tensor) -> Tensor:
            """In place of what the tokens that are asked for say, before anything else is made of it."""
            asking = self.query.vector.to(x.dtype).expand(x.shape[0], x.shape[1] - length, -1)
            return self.body.place(torch.cat([x[:, :length], asking], dim=1), positions)

        x, rows = self.embedding(behind(stream, stream.asked), 0, place, self.body.embedding)
        output: Output = self.body(x, rows, capture=capture, keys=token_layout(stream))
        return output


@final
class Query(nn.Module):
    """What every row begins as that asks."""

    roles: ClassVar[Mapping[str, Role]] = {"vector": "embedding"}

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(width))


def behind(stream: Stream, asked: Tensor) -> Stream:
    """(B, T), (B, N) -> (B, T + N): where those that are asked for stand, once more, and before them in the order."""
    length = stream.tokens.shape[1]
    whole = stream._replace(positions=token_layout(stream).positions, asked=None)
    both = Stream(*(None if vector is None else append_copies(vector, asked) for vector in whole))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
    if both.order is None:
        return both
    return both._replace(order=torch.cat([both.order[:, :length], both.order[:, length:] - 1], dim=1))
