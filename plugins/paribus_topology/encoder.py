"""Encoder-only topology (`encoder`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from paribus import Builder, Capture, Memory, Output, Part, States, Stream, Topology, TopologyTraits
from paribus_topology.run_stack import run_stack


@final
class Encoder(Topology):
    """Encoder-only topology, one bidirectional stack (Devlin et al. 2019).

    "BERT: Pre-training of Deep Bidirectional Transformers". (B, T) -> (B, T, D).
    """

    parts: ClassVar[tuple[Part, ...]] = (Part("encoder", "body", causal=False),)
    traits: ClassVar[TopologyTraits] = {"provides": ["last-layer"]}

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
        assert part == "body", "validated: an objective runs existing parts only"
        assert memory is None, "no part of this topology attends to a memory"
        return run_stack(streams[part], self.embedding, self.body, memory=None, states=states, capture=capture)
