"""Incremental decoding: next-token scores of prompts and of generated tokens, with a cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from paribus.parts.batch import PADDING, Stream
from paribus.parts.context import Memory
from paribus.slots.attention import Attention
from paribus.slots.objective import Prompt
from paribus.slots.topology import Topology, memory_of


class Decoder(NamedTuple):
    """Topology and head of a model that generates."""

    topology: Topology
    head: Callable[[Tensor], Tensor]  # (N, D) -> (N, V)
    language: int | None = None  # of the generated tokens, if the model has languages
    source_language: int | None = None

    @property
    def source(self) -> str | None:
        """Path of the stack that the body attends to, or None."""
        return next(part.cross for part in self.topology.parts if part.path == "body")

    @property
    def device(self) -> torch.device:
        return next(self.topology.parameters()).device

    def stream(self, ids: Sequence[int], language: int | None) -> Stream:
        """Return one sequence of a language as a stream."""
        tokens = torch.tensor([list(ids)], device=self.device)
        return Stream(tokens, languages=_all(tokens, language))

    @property
    def can_mask_padding(self) -> bool:
        """Whether all attentions can mask padding, so that prompts of different lengths fit in one batch."""
        attentions = [module for module in self.topology.modules() if isinstance(module, Attention)]
        return all(attention.traits.get("documents") or attention.traits.get("padding") for attention in attentions)

    @property
    def has_cache(self) -> bool:
        """Whether all attentions of the body have a cache."""
        body = self.topology.get_submodule("body")
        return all(m.traits.get("decodes") for m in body.modules() if isinstance(m, Attention))


@final
class Reader:
    """Decoding state of a batch of prompts, padded on the left.

    With `cached`, keys and values are kept, so that a step computes one token, otherwise the whole sequence.
    """

    def __init__(
        self, decoder: Decoder, prompts: Sequence[Prompt], limits: Sequence[int], *, cached: bool = True
    ) -> None:
        self.decoder = decoder
        self.prompts, self.limits = tuple(prompts), tuple(limits)  # and the maximum number of new tokens of each
        self.length = max(len(prompt.body) for prompt in prompts)
        self.memory = self._memory()
        self.states = decoder.topology.start(len(prompts), self.length + max(limits) - 1) if cached else None
        if self.states is not None:
            self.states.memory = self.memory
        self.stream = self._prompt_stream()  # all tokens so far, or only the new ones if there is a cache
        self.read = 0
        self.peak_bytes = 0  # peak size of the cache between two steps

    def begin(self) -> Tensor:
        """Return the scores (B, V) of the first new tokens."""
        return self._scores()

    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens (B,), and return the scores (B, V) of the next ones."""
        shape = (len(tokens), 1)
        stream = self.stream

        def filled(vector: Tensor | None, value: int) -> Tensor | None:
            return None if vector is None else torch.full(shape, value, device=tokens.device)

        new_stream = Stream(
            tokens.unsqueeze(1),
            documents=filled(stream.documents, 0),
            positions=None if stream.positions is None else stream.positions[:, -1:] + 1,
            order=filled(stream.order, self.read),
            languages=filled(stream.languages, self.decoder.language or 0),
        )
        if self.states is None:
            pairs = zip(stream, new_stream, strict=True)
            new_stream = Stream(*(old if new is None else torch.cat([old, new], 1) for old, new in pairs))  # type: ignore[arg-type,list-item]  # a NamedTuple loses which field may be None
        self.stream = new_stream
        return self._scores()

    def take(self, index: Tensor) -> None:
        """Select sequences (B',) by index; an index may repeat."""
        self.stream = self.stream.apply(lambda vector: vector[index])
        if self.states is not None:
            self.states.take(index)
        elif self.memory is not None:
            memory_layout = self.memory.layout
            layout = type(memory_layout)(*(v if v is None or len(v) == 1 else v[index] for v in memory_layout))  # type: ignore[arg-type]  # as above
            extra = None if self.memory.extra is None else self.memory.extra[index]
            self.memory = Memory(self.memory.hidden[index], layout, extra)

    def _scores(self) -> Tensor:
        memory = self.memory if self.states is None else self.states.memory
        output = self.decoder.topology.run({"body": self.stream}, "body", memory=memory, states=self.states)
        new_tokens = self.stream.tokens.shape[1]
        self.read = new_tokens if self.states is None else self.read + new_tokens
        if self.states is not None:
            self.peak_bytes = max(self.peak_bytes, self.states.bytes)
        return self.decoder.head(output.hidden[:, -1])

    def _memory(self) -> Memory | None:
        """Encode the sources."""
        path = self.decoder.source
        if path is None:
            return None
        all_sources = [prompt.source for prompt in self.prompts]
        sources = [source for source in all_sources if source]
        assert len(sources) == len(all_sources), "every prompt of such a model has a source"
        tokens, documents = pad_ids(sources, self.decoder.device, on_left=False)
        stream = Stream(tokens, documents, languages=_all(tokens, self.decoder.source_language))
        return memory_of(self.decoder.topology.run({path: stream}, path))

    def _prompt_stream(self) -> Stream:
        """Return the prompts (B, T), padded on the left."""
        tokens, documents = pad_ids([prompt.body for prompt in self.prompts], self.decoder.device, on_left=True)
        batch, length = tokens.shape
        indices = torch.arange(length, device=tokens.device).expand(batch, -1)
        positions, order = None, None
        if documents is not None:
            positions = indices - (documents < 0).sum(1, keepdim=True)
        bidirectional = torch.tensor([[prompt.bidirectional] for prompt in self.prompts], device=tokens.device)
        if bidirectional.any():
            order = torch.where(bidirectional, length - 1, indices)
        return Stream(tokens, documents, positions, order, languages=_all(tokens, self.decoder.language))


def pad_ids(rows: Sequence[Sequence[int]], device: torch.device, *, on_left: bool) -> tuple[Tensor, Tensor | None]:
    """Return ids as (B, T), padded on the left or on the right, and their documents, or None without padding."""
    longest = max(map(len, rows))
    tokens, documents = (torch.zeros(len(rows), longest, dtype=torch.long) for _ in range(2))
    documents.fill_(PADDING)
    for index, row in enumerate(rows):
        text_slice = slice(longest - len(row), longest) if on_left else slice(0, len(row))
        tokens[index, text_slice] = torch.tensor(row, dtype=torch.long)
        documents[index, text_slice] = 0
    ragged = bool((documents < 0).any())
    return tokens.to(device), documents.to(device) if ragged else None


def _all(tokens: Tensor, language: int | None) -> Tensor | None:
    return None if language is None else torch.full_like(tokens, language)
