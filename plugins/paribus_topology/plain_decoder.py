"""Rows that see what came before, and nothing around what mixes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from paribus import Builder, Capture, Memory, Output, Part, States, Stream, Topology
from paribus_topology.passing import passed


@final
class PlainDecoder(Topology):
    """Layers of attention alone, each of which reads what the one before it gave: no residual stream, no norm and no
    feed-forward. With the attention `lstm` it is the language model of "Recurrent Neural Network Regularization"
    (Zaremba et al. 2014).

    Dropout is on the embedded tokens and behind each layer, as there. (B, T) -> (B, T, D).
    """

    parts: ClassVar[tuple[Part, ...]] = (Part("decoder", "body", causal=True),)
    reads: ClassVar[tuple[str, ...]] = ("embedding", "attention", "position")

    def __init__(self, build: Builder) -> None:
        super().__init__()
        self.embedding = build.embedding()
        self.body = build.stack("body")

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
        return passed(streams[part], self.embedding, self.body, memory=None, states=states, capture=capture)
