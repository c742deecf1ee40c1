"""Recurrent encoder-decoder with attention (`recurrent-encoder-decoder`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor

from paribus import (
    Builder,
    Capture,
    Memory,
    Output,
    Part,
    Range,
    States,
    StepInputFunction,
    Stream,
    Topology,
    TopologyTraits,
)
from paribus_topology.cells import LSTM, CellKind
from paribus_topology.recurrent_decoder import DecoderOptions, RecurrentDecoder
from paribus_topology.recurrent_encoder import RecurrentEncoder


@final
class RecurrentEncoderDecoder(Topology):
    """Recurrent encoder-decoder with attention (Bahdanau et al. 2015, Luong et al. 2015).

    "Neural Machine Translation by Jointly Learning to Align and Translate", "Effective Approaches to Attention-based
    Neural Machine Translation". The slot `attention` reads the encoder's states without projecting values, so another
    attention changes no other tensor. `dims.width` is the width of a state, K, in one direction; the memory is 2 K wide
    if the encoder is bidirectional. (B, T) -> (B, T, R), with the encoder's output (B, S, M) as memory.
    """

    parts: ClassVar[tuple[Part, ...]] = (
        Part("decoder", "body", causal=True, cross="encoder", recurrent=True),
        Part("encoder", "encoder", causal=False, recurrent=True),
    )
    reads: ClassVar[tuple[str, ...]] = ("embedding", "attention")
    traits: ClassVar[TopologyTraits] = {"provides": ["feedback"], "waits": True}  # for the ends of documents

    def __init__(
        self,
        build: Builder,
        *,
        cell: Annotated[
            CellKind,
            "gru: reset gate before the product (RNNsearch); gru-after: after it, as in cuDNN; lstm (Luong)",
        ] = "gru",
        bidirectional: Annotated[bool, "read the source in both directions (Luong: no)"] = True,
        query: Annotated[
            Literal["previous", "current"], "state that attends: the one before a step, or the one after it (Luong)"
        ] = "previous",
        input_feeding: Annotated[bool, "feed the context, or the output from it, into the next step"] = True,
        readout: Annotated[Literal["maxout", "tanh"], "function of state and context (Luong: tanh)"] = "maxout",
        embedding_width: Annotated[
            int | None, "width of embedded tokens; null: that of a state (RNNsearch: 620)", Range(1)
        ] = None,
        readout_width: Annotated[
            int | None, "width of scored vectors; null: that of embedded tokens (RNNsearch: 500)", Range(1)
        ] = None,
        shared_embedding: Annotated[bool, "share one embedding table between source and target"] = True,
        initial_state: Annotated[
            Literal["encoder", "learned"], "first state of the decoder: from the encoder's last, or a learned parameter"
        ] = "encoder",
    ) -> None:
        super().__init__()
        self.cell = cell
        self.embedding = build.embedding(width=embedding_width, scored=readout_width)
        shape, encoder_shape = build.shape_of("body"), build.shape_of("encoder")
        if initial_state == "encoder" and shape.layers != encoder_shape.layers:
            raise ValueError(
                "encoder and decoder need the same number of layers, because states are copied layer by layer; got "
                f"{encoder_shape.layers} and {shape.layers}; with initial_state=learned, they may differ"
            )
        input_width, directions = embedding_width or shape.width, 2 if bidirectional else 1
        width = directions * shape.width
        output_shape = replace(shape, width=readout_width or input_width, table_width=self.embedding.width)
        self.body = RecurrentDecoder(
            shape,
            output_shape,
            build.embedding_part("body"),
            build.cross_attention("body", width),
            DecoderOptions(
                cell,
                query == "previous",
                input_feeding,
                readout,
                backwards=bidirectional,
                learned_start=initial_state == "learned",
            ),
            input_width=input_width,
            memory_width=width,
        )
        table = None if shared_embedding else build.separate_embedding()
        self.encoder = RecurrentEncoder(
            encoder_shape,
            build.embedding_part("encoder"),
            table,
            kind=cell,
            input_width=input_width,
            directions=(directions,) * encoder_shape.layers,
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
            x, layout = (self.encoder.table or self.embedding)(
                streams[part], 0, without_positions, self.encoder.embedding
            )
            encoded: Output = self.encoder(x, layout)
            return encoded
        assert memory is not None, "the decoder needs the encoder's output as memory"
        past = states.past if states is not None else 0
        x, layout = self.embedding(streams[part], past, without_positions, self.body.embedding)
        output: Output = self.body(x, layout, memory, states, capture)
        return output

    def run_with_feedback(
        self, streams: Mapping[str, Stream], feed: StepInputFunction, memory: Memory | None
    ) -> Output:
        assert memory is not None, "the decoder needs the encoder's output as memory"
        stream = streams["body"]
        x, layout = self.embedding(stream, 0, without_positions, self.body.embedding)
        table: list[Tensor] = []  # (V, E), computed once, for inputs that mix tokens

        def read(t: int, output: Tensor) -> Tensor | None:
            step_input = feed(t, output)
            if step_input is None:
                return None
            embedded = self._embedded(_replace_tokens(stream, t, step_input.tokens), t)[:, 0]
            if step_input.token_weights is None:
                return embedded
            if not table:
                vocabulary = torch.arange(step_input.token_weights.shape[-1], device=x.device).unsqueeze(0)
                table.append(self._embedded(Stream(vocabulary), 0)[0])
            return embedded + step_input.token_weights @ table[0]

        return self.body.run_with_feedback(x, layout, memory, read)

    def _embedded(self, stream: Stream, past: int) -> Tensor:
        x: Tensor = self.embedding(stream, past, without_positions, self.body.embedding)[0]
        return x


def _replace_tokens(stream: Stream, t: int, tokens: Tensor) -> Stream:
    """Return position `t` of a stream with other tokens, (B,)."""
    position = Stream(*(None if vector is None else vector[:, t : t + 1] for vector in stream))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
    return position._replace(tokens=tokens.unsqueeze(1))


def without_positions(x: Tensor, positions: Tensor) -> Tensor:
    """Return `x`; a recurrence needs no positions."""
    return x
