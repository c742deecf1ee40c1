"""Encoder over a learned mix of the layers of two opposite decoders (`scalar-mix`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, final

import torch

from paribus import (
    Builder,
    Capture,
    Memory,
    Output,
    Part,
    Range,
    States,
    Stream,
    Topology,
    TopologyTraits,
)
from paribus_topology.cells import LSTM
from paribus_topology.layer_mix import LayerMix
from paribus_topology.opposite_stacks import OppositeStacks, Task, both_halves, opposite_stacks
from paribus_topology.recurrent_encoder import RecurrentEncoder


@final
class ScalarMix(Topology):
    """Encoder over a learned mix of the layers of two opposite decoders, ELMo's features (Peters et al. 2018).

    "Deep Contextualized Word Representations". The decoders are those of `bidirectional-decoder`, with the same tensors
    at the same paths, so that `from:` copies them. Their layers and the embedded token are mixed by gamma sum_j
    softmax(w)_j h_j, and a BiLSTM reads the mix. The paper trains only what is new: the mix at `body.mix`, the BiLSTM
    at `body.task`, and the head. The slot `norm` is for embeddings and heads only. (B, T) -> (B, T, 2 R), R: its width.
    """

    parts: ClassVar[tuple[Part, ...]] = (Part("decoders", "body", causal=False, opposite=True),)
    reads: ClassVar[tuple[str, ...]] = ("embedding", "attention", "position", "norm")
    traits: ClassVar[TopologyTraits] = {"waits": True}  # for the ends of documents

    def __init__(
        self,
        build: Builder,
        *,
        task_layers: Annotated[int, "layers of the BiLSTM; 0: the mix is the output", Range(0)] = 1,
        task_width: Annotated[int | None, "width of one direction of the BiLSTM; null: dims.width", Range(1)] = None,
    ) -> None:
        super().__init__()
        self.embedding = build.embedding()
        stacks = opposite_stacks(build)
        place = stacks[0].shape
        shape = both_halves(place, self.embedding.width)
        encoder = None
        if task_layers:
            task_place = replace(place, width=task_width or place.width, layers=task_layers, causal=False)
            both_ways = (2,) * task_layers
            encoder = RecurrentEncoder(
                task_place, None, None, kind="lstm", input_width=shape.width, directions=both_ways
            )
            shape = replace(shape, width=encoder.shape.width)
        self.body = OppositeStacks(stacks, shape, Task(LayerMix(place.layers + 1), encoder))

    def float32_reason(self, device: torch.device, dtype: torch.dtype) -> str:
        reason = "" if self.body.task is None else LSTM.float32_reason(device, dtype)
        return f"{reason}; only its task layers do, for batches without padding" if reason else ""

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
