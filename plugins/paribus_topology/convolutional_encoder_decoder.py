"""Encoder-decoder without feed-forwards (`convolutional-encoder-decoder`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from paribus import Builder, Capture, Memory, Output, Part, States, Stream, Topology
from paribus_topology.run_stack import run_stack


@final
class ConvolutionalEncoderDecoder(Topology):
    """Encoder-decoder without feed-forwards, for convolutions (Kalchbrenner et al. 2016, Gehring et al. 2017).

    "Neural Machine Translation in Linear Time", "Convolutional Sequence to Sequence Learning". A layer has an
    attention and, in the decoder, a cross-attention; everything else is as in `encoder-decoder`. Any attention is
    valid. (B, T) -> (B, T, D), with the encoder's output (B, S, D) as memory.
    """

    parts: ClassVar[tuple[Part, ...]] = (
        Part("decoder", "body", causal=True, cross="encoder"),
        Part("encoder", "encoder", causal=False),
    )
    reads: ClassVar[tuple[str, ...]] = ("embedding", "attention", "position", "norm", "placement")

    def __init__(
        self,
        build: Builder,
        *,
        shared_embedding: Annotated[bool, "share one embedding table between source and target"] = True,
    ) -> None:
        super().__init__()
        self.embedding = build.embedding()
        self.source_embedding = None if shared_embedding else build.separate_embedding()
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
        if part == "body":
            return run_stack(streams[part], self.embedding, self.body, memory=memory, states=states, capture=capture)
        table = self.source_embedding or self.embedding
        return run_stack(streams[part], table, self.encoder, memory=None, states=states, capture=capture)
