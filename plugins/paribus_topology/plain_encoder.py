"""Encoder of attention layers only (`plain-encoder`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from paribus import Builder, Capture, Memory, Output, Part, States, Stream, Topology
from paribus_topology.run_stack import run_stack


@final
class PlainEncoder(Topology):
    """Encoder of attention layers only: no residual stream, norm or feed-forward (Huang et al. 2015).

    With the attention `lstm` it is the BiLSTM of "Bidirectional LSTM-CRF Models for Sequence Tagging", without the CRF:
    each layer reads both directions of the layer below. Dropout is applied to embedded tokens and after each layer. The
    slot `norm` is for embeddings and heads only. (B, T) -> (B, T, D).
    """

    parts: ClassVar[tuple[Part, ...]] = (Part("encoder", "body", causal=False),)
    reads: ClassVar[tuple[str, ...]] = ("embedding", "attention", "position", "norm")

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
