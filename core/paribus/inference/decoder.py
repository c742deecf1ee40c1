"""A model that reads prompts and what is written behind them, a row at a time, and says what may follow."""

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
    """What writes: a topology, and the head that scores its rows."""

    topology: Topology
    head: Callable[[Tensor], Tensor]  # (N, D) -> (N, V)
    language: int | None = None  # that its rows are of, where it tells languages apart
    source_language: int | None = None

    @property
    def source(self) -> str | None:
        """The path of what it attends to, if it attends to another stack."""
        return next(part.cross for part in self.topology.parts if part.path == "body")

    @property
    def device(self) -> torch.device:
        return next(self.topology.parameters()).device

    def stream(self, ids: Sequence[int], language: int | None) -> Stream:
        """One sequence, of a language."""
        tokens = torch.tensor([list(ids)], device=self.device)
        return Stream(tokens, languages=_all(tokens, language))

    @property
    def pads(self) -> bool:
        """Whether prompts of different lengths can be read at once: all attentions take rows for none."""
        found = [module for module in self.topology.modules() if isinstance(module, Attention)]
        return all(each.traits.get("documents") or each.traits.get("padding") for each in found)

    @property
    def steps(self) -> bool:
        """Whether all attentions of the body keep what they need of earlier rows."""
        body = self.topology.get_submodule("body")
        return all(m.traits.get("decodes") for m in body.modules() if isinstance(m, Attention))


@final
class Reader:
    """Some prompts, and behind each of them room for what is written. Shorter ones have padding before them.

    It keeps keys and values, so that a step reads one row; or, not `cached`, it reads all rows anew each time.
    """

    def __init__(self, voice: Decoder, prompts: Sequence[Prompt], most: Sequence[int], *, cached: bool = True) -> None:
        self.voice = voice
        self.prompts, self.most = tuple(prompts), tuple(most)  # and how many tokens may follow each
        self.length = max(len(prompt.body) for prompt in prompts)
        self.memory = self._memory()
        self.states = voice.topology.start(len(prompts), self.length + max(most) - 1) if cached else None
        if self.states is not None:
            self.states.memory = self.memory
        self.stream = self._asked()  # all rows so far, or the last ones where states remember the others
        self.read = 0
        self.most_bytes = 0  # what states took at most, between two steps

    def begin(self) -> Tensor:
        """(B, V): what may follow each prompt."""
        return self._scores()

    def step(self, tokens: Tensor) -> Tensor:
        """(B,) -> (B, V): what may follow these, each behind its own prompt."""
        shape = (len(tokens), 1)
        stream = self.stream

        def told(vector: Tensor | None, value: int) -> Tensor | None:
            return None if vector is None else torch.full(shape, value, device=tokens.device)

        fresh = Stream(
            tokens.unsqueeze(1),
            documents=told(stream.documents, 0),
            positions=None if stream.positions is None else stream.positions[:, -1:] + 1,
            order=told(stream.order, self.read),
            languages=told(stream.languages, self.voice.language or 0),
        )
        if self.states is None:
            pairs = zip(stream, fresh, strict=True)
            fresh = Stream(*(old if new is None else torch.cat([old, new], 1) for old, new in pairs))  # type: ignore[arg-type,list-item]  # a NamedTuple loses which field may be None
        self.stream = fresh
        return self._scores()

    def take(self, index: Tensor) -> None:
        """Goes on with the sequences (B',) of those that there are, each as often as it comes, in this order."""
        self.stream = Stream(*(None if vector is None else vector[index] for vector in self.stream))  # type: ignore[arg-type]  # as above
        if self.states is not None:
            self.states.take(index)
        elif self.memory is not None:
            rows = self.memory.layout
            taken = type(rows)(*(v if v is None or len(v) == 1 else v[index] for v in rows))  # type: ignore[arg-type]  # as above
            handed = None if self.memory.extra is None else self.memory.extra[index]
            self.memory = Memory(self.memory.hidden[index], taken, handed)

    def _scores(self) -> Tensor:
        memory = self.memory if self.states is None else self.states.memory
        output = self.voice.topology.run({"body": self.stream}, "body", memory=memory, states=self.states)
        fresh = self.stream.tokens.shape[1]
        self.read = fresh if self.states is None else self.read + fresh
        if self.states is not None:
            self.most_bytes = max(self.most_bytes, self.states.bytes)
        return self.voice.head(output.hidden[:, -1])

    def _memory(self) -> Memory | None:
        """The sources, read once."""
        path = self.voice.source
        if path is None:
            return None
        given = [prompt.source for prompt in self.prompts]
        sources = [source for source in given if source]
        assert len(sources) == len(given), "whoever asks what attends to a source gives it one"
        tokens, documents = pad_left_or_right(sources, self.voice.device, before=False)
        stream = Stream(tokens, documents, languages=_all(tokens, self.voice.source_language))
        return memory_of(self.voice.topology.run({path: stream}, path))

    def _asked(self) -> Stream:
        """(B, T): prompts that end together, so that what is written stands in one column."""
        tokens, documents = pad_left_or_right([prompt.body for prompt in self.prompts], self.voice.device, before=True)
        batch, length = tokens.shape
        columns = torch.arange(length, device=tokens.device).expand(batch, -1)
        positions, order = None, None
        if documents is not None:
            positions = columns - (documents < 0).sum(1, keepdim=True)
        both = torch.tensor([[prompt.bidirectional] for prompt in self.prompts], device=tokens.device)
        if both.any():
            order = torch.where(both, length - 1, columns)
        return Stream(tokens, documents, positions, order, languages=_all(tokens, self.voice.language))


def pad_left_or_right(
    rows: Sequence[Sequence[int]], device: torch.device, *, before: bool
) -> tuple[Tensor, Tensor | None]:
    """Rows of ids as (B, T), and their documents, (B, T), which are none where there is padding: before them or behind;
    None where all are as long."""
    longest = max(map(len, rows))
    tokens, documents = (torch.zeros(len(rows), longest, dtype=torch.long) for _ in range(2))
    documents.fill_(PADDING)
    for place, row in enumerate(rows):
        own = slice(longest - len(row), longest) if before else slice(0, len(row))
        tokens[place, own] = torch.tensor(row, dtype=torch.long)
        documents[place, own] = 0
    ragged = bool((documents < 0).any())
    return tokens.to(device), documents.to(device) if ragged else None


def _all(tokens: Tensor, language: int | None) -> Tensor | None:
    return None if language is None else torch.full_like(tokens, language)
