"""Rows that see what came before, and all of another stack's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from paribus import Builder, Capture, Memory, Output, Part, States, Stream, Topology, Traits
from paribus_topology.passing import passed


@final
class EncoderDecoder(Topology):
    """A decoder that attends to an encoder, over one embedding: "Attention Is All You Need" (Vaswani et al. 2017).

    The decoder is the body, so that its tensors keep their paths when a decoder takes its place.
    (B, T) -> (B, T, D), with the encoder's (B, S, D) as its memory.
    """

    parts: ClassVar[tuple[Part, ...]] = (
        Part("decoder", "body", causal=True, cross="encoder"),
        Part("encoder", "encoder", causal=False),
    )
    traits: ClassVar[Traits] = {"provides": ["last-layer"]}

    def __init__(self, build: Builder) -> None:
        super().__init__()
        self.embedding = build.embedding()
        self.body = build.stack("body")
        self.encoder = build.stack("encoder")

    def run(
        self,
        streams: Mapping[str, Stream],
        part: str,
        *,
        memory: Memory | None = None,
        states: States | None = None,
        capture: Capture | bool = False,
    ) -> Output:
        assert part in ("body", "encoder"), "the rules let an objective ask for no other part"
        assert (memory is None) == (part == "encoder"), "the decoder attends to the encoder's output, and it alone"
        stack = self.body if part == "body" else self.encoder
        return passed(streams[part], self.embedding, stack, memory=memory, states=states, capture=capture)
