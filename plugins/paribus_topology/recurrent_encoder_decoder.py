"""A recurrent decoder that reads a recurrent encoder's rows at every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor

from paribus import Builder, Capture, Memory, Output, Part, Range, States, StepInputFunction, Stream, Topology, Traits
from paribus_topology.cells import Kind
from paribus_topology.recurrent_decoder import Manner, RecurrentDecoder
from paribus_topology.recurrent_encoder import RecurrentEncoder


@final
class RecurrentEncoderDecoder(Topology):
    """A recurrent decoder that looks back at all states of a recurrent encoder: "Neural Machine Translation by Jointly
    Learning to Align and Translate" (Bahdanau et al. 2015), "Effective Approaches to Attention-based Neural Machine
    Translation" (Luong et al. 2015).

    The slot `attention` is what reads those states, as they stand: nothing but their scores is projected, so that
    another attention leaves every other tensor as it is. `dims.width` is that of a state, K, and of one direction; the
    memory is 2 K wide where the encoder reads both ways. (B, T) -> (B, T, R), with the encoder's (B, S, M) as memory.
    """

    parts: ClassVar[tuple[Part, ...]] = (
        Part("decoder", "body", causal=True, cross="encoder", recurrent=True),
        Part("encoder", "encoder", causal=False, recurrent=True),
    )
    reads: ClassVar[tuple[str, ...]] = ("embedding", "attention")
    traits: ClassVar[Traits] = {"provides": ["feedback"]}

    def __init__(
        self,
        build: Builder,
        *,
        cell: Annotated[
            Kind, "gru: the reset gate before the product (RNNsearch); gru-after: behind it, as in cuDNN; lstm (Luong)"
        ] = "gru",
        bidirectional: Annotated[bool, "whether the source is read both ways (Luong: no)"] = True,
        query: Annotated[
            Literal["previous", "current"], "which state asks: that before a step, or that behind it (Luong)"
        ] = "previous",
        feeding: Annotated[bool, "whether what was read, or was said of it, goes into the next step"] = True,
        readout: Annotated[Literal["maxout", "tanh"], "what makes rows of state and context (Luong: tanh)"] = "maxout",
        embedded: Annotated[
            int | None, "width of embedded tokens; null: that of a state (RNNsearch: 620)", Range(1)
        ] = None,
        scored: Annotated[
            int | None, "width of the rows that are scored; null: that of embedded tokens (RNNsearch: 500)", Range(1)
        ] = None,
        shared: Annotated[bool, "whether source and target share a table of tokens"] = True,
    ) -> None:
        super().__init__()
        self.embedding = build.embedding(width=embedded, scored=scored)
        place, source = build.place("body"), build.place("encoder")
        if place.layers != source.layers:
            raise ValueError(
                f"layers of the decoder begin where those of the encoder ended, but they are {place.layers} and "
                f"{source.layers}; valid: as many"
            )
        reads, ways = embedded or place.width, 2 if bidirectional else 1
        width = ways * place.width
        said = replace(place, width=scored or reads, table_width=self.embedding.width)
        self.body = RecurrentDecoder(
            place,
            said,
            build.owned("body"),
            build.crossing("body", width),
            Manner(cell, query == "previous", feeding, readout, back=bidirectional),
            reads=reads,
            memory_width=width,
        )
        table = None if shared else build.table()
        self.encoder = RecurrentEncoder(source, build.owned("encoder"), table, kind=cell, reads=reads, ways=ways)

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
        if part == "encoder":
            assert memory is None, "the decoder attends to the encoder's output, and it alone"
            x, rows = (self.encoder.table or self.embedding)(streams[part], 0, unplaced, self.encoder.embedding)
            encoded: Output = self.encoder(x, rows)
            return encoded
        assert memory is not None, "the decoder attends to the encoder's output, and it alone"
        past = states.past if states is not None else 0
        x, rows = self.embedding(streams[part], past, unplaced, self.body.embedding)
        output: Output = self.body(x, rows, memory, states, capture)
        return output

    def led(self, streams: Mapping[str, Stream], feed: StepInputFunction, memory: Memory | None) -> Output:
        assert memory is not None, "the decoder attends to the encoder's output, and it alone"
        stream = streams["body"]
        x, rows = self.embedding(stream, 0, unplaced, self.body.embedding)
        table: list[Tensor] = []  # (V, E), made once, where what is fed is more than a token

        def read(t: int, said: Tensor) -> Tensor | None:
            fed = feed(t, said)
            if fed is None:
                return None
            row = self._embedded(_place(stream, t, fed.tokens), t)[:, 0]
            if fed.rest is None:
                return row
            if not table:
                every = torch.arange(fed.rest.shape[-1], device=x.device).unsqueeze(0)
                table.append(self._embedded(Stream(every), 0)[0])
            return row + fed.rest @ table[0]

        return self.body.led(x, rows, memory, read)

    def _embedded(self, stream: Stream, past: int) -> Tensor:
        x: Tensor = self.embedding(stream, past, unplaced, self.body.embedding)[0]
        return x


def _place(stream: Stream, t: int, tokens: Tensor) -> Stream:
    """One place of a stream, with other tokens there, (B,)."""
    here = Stream(*(None if vector is None else vector[:, t : t + 1] for vector in stream))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
    return here._replace(tokens=tokens.unsqueeze(1))


def unplaced(x: Tensor, positions: Tensor) -> Tensor:
    """A recurrence knows where it is."""
    return x
