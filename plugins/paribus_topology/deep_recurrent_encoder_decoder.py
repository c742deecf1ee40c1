"""Deep recurrent encoder-decoder with attention (`deep-recurrent-encoder-decoder`), GNMT's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import torch

from paribus import Builder, Capture, Memory, Output, Part, Range, States, Stream, Topology, TopologyTraits
from paribus_topology.cells import LSTM, CellKind
from paribus_topology.deep_recurrent_decoder import DeepDecoderOptions, DeepRecurrentDecoder
from paribus_topology.recurrent_encoder import RecurrentEncoder
from paribus_topology.recurrent_encoder_decoder import without_positions


@final
class DeepRecurrentEncoderDecoder(Topology):
    """Deep recurrent encoder-decoder with attention and residual connections, GNMT's (Wu et al. 2016).

    "Google's Neural Machine Translation System". The first layer of the encoder reads both ways, the others forwards.
    The state of the decoder's first layer before a token attends to the encoder's output, and every layer of the
    decoder reads the context. The slot `attention` reads the encoder's output without projecting values, so another
    attention changes no other tensor. The encoder's second layer has no residual connection, since its input is wider.
    (B, T) -> (B, T, K), with the encoder's output (B, S, K) as memory, or (B, S, 2 K) of a single layer.
    """

    parts: ClassVar[tuple[Part, ...]] = (
        Part("decoder", "body", causal=True, cross="encoder", recurrent=True),
        Part("encoder", "encoder", causal=False, recurrent=True),
    )
    reads: ClassVar[tuple[str, ...]] = ("embedding", "attention")
    traits: ClassVar[TopologyTraits] = {"waits": True}  # for the ends of documents

    def __init__(
        self,
        build: Builder,
        *,
        cell: Annotated[
            CellKind, "lstm; gru: reset gate before the product; gru-after: after it, as in cuDNN"
        ] = "lstm",
        residual_from: Annotated[
            int | None,
            "first layer whose input is added to its output, counted from 1 (GNMT: 3); null: none",
            Range(2, 3),
        ] = None,
        initial_state: Annotated[
            Literal["encoder", "learned"], "first state of the decoder: from the encoder's last, or a learned parameter"
        ] = "encoder",
        shared_embedding: Annotated[bool, "share one embedding table between source and target"] = True,
    ) -> None:
        super().__init__()
        self.cell = cell
        self.embedding = build.embedding()
        shape, encoder_shape = build.shape_of("body"), build.shape_of("encoder")
        if initial_state == "encoder" and shape.layers != encoder_shape.layers:
            raise ValueError(
                "encoder and decoder need the same number of layers, because states are copied layer by layer; got "
                f"{encoder_shape.layers} and {shape.layers}; with initial_state=learned, they may differ"
            )
        directions = (2, *(1,) * (encoder_shape.layers - 1))
        memory_width = directions[-1] * shape.width
        first_residual = shape.layers + 1 if residual_from is None else residual_from
        self.body = DeepRecurrentDecoder(
            shape,
            build.embedding_part("body"),
            build.cross_attention("body", memory_width),
            DeepDecoderOptions(
                cell, first_residual, learned_start=initial_state == "learned", backwards=min(directions) == 2
            ),
            memory_width=memory_width,
        )
        self.encoder = RecurrentEncoder(
            encoder_shape,
            build.embedding_part("encoder"),
            None if shared_embedding else build.separate_embedding(),
            kind=cell,
            input_width=shape.width,
            directions=directions,
            residual_from=None if residual_from is None else max(3, residual_from),
        )

    def float32_reason(self, device: torch.device, dtype: torch.dtype) -> str:
        reason = LSTM.float32_reason(device, dtype) if self.cell == "lstm" else ""
        return f"{reason}; only its encoder does, for batches without padding" if reason else ""

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
        if part == "encoder":
            assert memory is None, "the encoder takes no memory"
            table = self.encoder.table or self.embedding
            x, layout = table(streams[part], 0, without_positions, self.encoder.embedding)
            encoded: Output = self.encoder(x, layout)
            return encoded
        assert memory is not None, "the decoder needs the encoder's output as memory"
        past = states.past if states is not None else 0
        x, layout = self.embedding(streams[part], past, without_positions, self.body.embedding)
        output: Output = self.body(x, layout, memory, states, capture)
        return output
