"""Encoder-decoder topology (`encoder-decoder`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from paribus import Builder, Capture, Memory, Output, Part, States, Stream, Topology, TopologyTraits
from paribus_topology.run_stack import run_stack


@final
class EncoderDecoder(Topology):
    """Encoder-decoder topology with a shared embedding (Vaswani et al. 2017).

    "Attention Is All You Need". The decoder is the body, so its tensors have the same paths as in `decoder`. (B, T) ->
    (B, T, D), with the encoder's output (B, S, D) as memory.
    """

    parts: ClassVar[tuple[Part, ...]] = (
        Part("decoder", "body", causal=True, cross="encoder"),
        Part("encoder", "encoder", causal=False),
    )
    traits: ClassVar[TopologyTraits] = {"provides": ["last-layer"]}

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
        assert part in ("body", "encoder"), "validated: an objective runs existing parts only"
        assert (memory is None) == (part == "encoder"), (
            "the decoder needs the encoder's output as memory, the encoder takes none"
        )
        stack = self.body if part == "body" else self.encoder
        return run_stack(streams[part], self.embedding, stack, memory=memory, states=states, capture=capture)
