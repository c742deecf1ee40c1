"""Rows that see both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from paribus import Builder, Capture, Memory, Output, Part, States, Stream, Topology, Traits
from paribus_topology.passing import passed


@final
class Encoder(Topology):
    """One stack in which every row sees every other: "BERT" (Devlin et al. 2019).

    (B, T) -> (B, T, D).
    """

    parts: ClassVar[tuple[Part, ...]] = (Part("encoder", "body", causal=False),)
    traits: ClassVar[Traits] = {"provides": ["last-layer"]}

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
