"""Two decoders of attention layers that read in opposite directions (`bidirectional-decoder`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from paribus import Builder, Capture, Memory, Output, Part, States, Stream, Topology, TopologyTraits
from paribus_topology.opposite_stacks import OppositeStacks, both_halves, opposite_stacks


@final
class BidirectionalDecoder(Topology):
    """Two decoders of attention layers that read in opposite directions (Peters et al. 2018).

    With the attention `lstm` it is the biLM of "Deep Contextualized Word Representations" (ELMo), without its residual
    connection and projections. Both decoders share the token embedding. No layer of one reads the other: the first half
    of an output depends on the token and those before it, the second half on the token and those after it. `dims.width`
    is the width of one direction, K. Layers have no residual stream, norm or feed-forward; the slot `norm` is for
    embeddings and heads only. (B, T) -> (B, T, 2 K).
    """

    parts: ClassVar[tuple[Part, ...]] = (Part("decoders", "body", causal=False, opposite=True),)
    reads: ClassVar[tuple[str, ...]] = ("embedding", "attention", "position", "norm")
    traits: ClassVar[TopologyTraits] = {"provides": ["separate-directions"]}

    def __init__(self, build: Builder) -> None:
        super().__init__()
        self.embedding = build.embedding()
        stacks = opposite_stacks(build)
        self.body = OppositeStacks(stacks, both_halves(stacks[0].shape, self.embedding.width))

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
        x, layout = self.embedding(streams[part], 0, self.body.forwards.add_positions, self.body.embedding)
        output: Output = self.body(x, layout, capture, streams[part].tokens)
        return output
