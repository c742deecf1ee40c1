"""Small float64 model for conformance checks, with random tokens and noise as input."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final, final

import torch
from torch import Tensor

from paribus.assembly.build import build
from paribus.assembly.components import Classes, make
from paribus.assembly.initialise import initialise
from paribus.kernels import KERNELS
from paribus.parts.batch import Stream, TokenLayout
from paribus.parts.context import Context, Kernel, Memory, States
from paribus.parts.stack import Layer, Output, Stack
from paribus.random_keys import key32
from paribus.slots.initialisation import Initialisation
from paribus.slots.tokenizer import Vocabulary
from paribus.slots.topology import memory_of

_SPECIALS: Final = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
_SENTINELS: Final = 32
SIZE: Final = 64
VOCABULARY: Final = Vocabulary(
    SIZE,
    {name: index for index, name in enumerate(_SPECIALS)},
    tuple(range(len(_SPECIALS), len(_SPECIALS) + _SENTINELS)),
    frozenset(range(len(_SPECIALS) + _SENTINELS, SIZE, 2)),
)
MAX_TOKENS: Final = 1024  # of a sequence
TOLERANCE: Final = 1e-9


@final
class SmallModel:
    """Small float64 model; `perturbed` adds noise to its weights, because gains of 1 and biases of 0 hide errors."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        classes: Classes,
        *,
        kernels: Sequence[Kernel] = KERNELS,
        perturbed: bool = True,
        initialized: bool = True,
    ) -> None:
        assembled = build(spec, classes, VOCABULARY, kernels)
        self.topology = assembled.topology
        self.segment_kinds = spec["embedding"].get("segments", 0)  # number of segment kinds; 0: no segments
        self.children = assembled.children()
        if initialized:
            scheme = make(classes, "initialisation", spec["initialisation"], kind=Initialisation)
            self.parameter_info = initialise(self.children, scheme, spec["seed"])
        self.topology.double().eval()
        if initialized and perturbed:
            self.perturb()
        self.body = next(part for part in self.topology.parts if part.path == "body")

    def perturb(self) -> None:
        """Add noise to every parameter."""
        with torch.no_grad():
            for path, parameter in self.topology.named_parameters():
                parameter.add_(noise(path, *parameter.shape), alpha=0.3)

    def stack(self, path: str = "body") -> Stack:
        stack = self.topology.get_submodule(path)
        assert isinstance(stack, Stack)
        return stack

    @property
    def has_fixed_length(self) -> bool:
        """True if inputs have a fixed size, as images do."""
        return self.topology.embedding.values_per_example is not None

    def tokens(self, batch: int, length: int) -> Tensor:
        """Return (batch, length) token ids of text, or the fixed number of values of an image."""
        return tokens(batch, self.topology.embedding.values_per_example or length)

    def layers(self) -> list[Layer]:
        """Return the layers of the stacks in the body."""
        return [module for module in self.topology.stage("body").modules() if isinstance(module, Layer)]

    def hidden(self, body: Tensor | Stream, *, source: Tensor | Stream | None = None) -> Tensor:
        """(B, T) -> (B, T, D): hidden states of the body."""
        return self.output(body, source=source).hidden

    def output(self, body: Tensor | Stream, *, source: Tensor | Stream | None = None, capture: bool = False) -> Output:
        """(B, T) -> output of the body; cross-attention reads default tokens if no source is given."""
        stream = body if isinstance(body, Stream) else Stream(body)
        memory = self.memory(source if source is not None else tokens(stream.tokens.shape[0], 6, "source"))
        return self.topology.run({"body": stream}, "body", memory=memory, capture=capture)

    def scores(self, hidden: Tensor) -> Tensor:
        """(…, D) -> (…, V): scores by the embedding, projected to its width; `hidden` if it has no vocabulary."""
        if not self.topology.embedding.traits.get("unembeds", True):
            return hidden
        shape = self.topology.stage("body").shape
        narrow = noise("narrow", shape.width, shape.embedding_width) if shape.embedding_width != shape.width else None
        return self.topology.embedding.unembed(hidden if narrow is None else hidden @ narrow)

    def with_segments(self, token_ids: Tensor) -> Stream:
        """Return a stream of (B, T) with two segments, if the embedding supports them."""
        halves = (torch.arange(token_ids.shape[1]) >= token_ids.shape[1] // 2).long().expand(token_ids.shape[0], -1)
        return (
            Stream(token_ids)
            if self.has_fixed_length or self.segment_kinds == 1
            else Stream(token_ids, segments=halves)
        )

    def full_stream(self, token_ids: Tensor) -> Stream:
        """Return a stream of (B, T) that uses every parameter of the topology."""
        if "second-stream" not in self.topology.traits.get("provides", []):
            return Stream(token_ids)
        last_position = torch.tensor([[token_ids.shape[1] - 1]]).expand(token_ids.shape[0], -1)
        return Stream(
            token_ids,
            order=(torch.arange(token_ids.shape[1]) == last_position).long() * 2,
            query_positions=last_position,
        )

    def memory(self, source: Tensor | Stream) -> Memory | None:
        """Return the memory for cross-attention, or None if the body has none."""
        if self.body.cross is None:
            return None
        stream = source if isinstance(source, Stream) else Stream(source)
        return memory_of(self.topology.run({self.body.cross: stream}, self.body.cross))

    def auxiliary_stacks(self) -> list[str]:
        """Return the paths of stacks that do not feed the body; objectives read them directly."""
        parts = self.topology.parts
        return [
            part.path
            for part in parts
            if part is not self.body and part.path not in {other_part.cross for other_part in parts}
        ]

    def decode_chunks(self, body: Tensor | Stream, chunks: Sequence[int]) -> Tensor:
        """Hidden states of the body, decoded chunk by chunk."""
        stream = body if isinstance(body, Stream) else Stream(body)
        batch, outputs = stream.tokens.shape[0], list[Tensor]()
        states: States = self.topology.start(batch, sum(chunks))
        memory = self.memory(tokens(batch, 6, "source"))
        for end, size in zip(accumulate(chunks), chunks, strict=True):
            chunk = stream.span(end - size, end)
            outputs.append(self.topology.run({"body": chunk}, "body", memory=memory, states=states).hidden)
        return torch.cat(outputs, dim=1)


_DRAW_SEED: Final[ContextVar[int]] = ContextVar("conform_seed", default=0)


@contextmanager
def draw_seed(seed: int) -> Iterator[None]:
    """Draw other noise and tokens within the block; 0 is the default."""
    token = _DRAW_SEED.set(seed)
    try:
        yield
    finally:
        _DRAW_SEED.reset(token)


def _generator(*name: str | int) -> torch.Generator:
    seed = _DRAW_SEED.get()
    return torch.Generator().manual_seed(key32("conform", *([seed] if seed else []), *name))


def noise(name: str, *shape: int) -> Tensor:
    """Return standard normal noise that depends only on the name, the shape and the seed of draws."""
    return torch.randn(shape, generator=_generator(name), dtype=torch.float64)


def fed_apart(feedforward: Any, x: Tensor) -> tuple[Tensor, Any]:
    """Return the output of a feed-forward, and its auxiliary loss: of tokens that are a document each."""
    index = torch.arange(x.shape[1]).unsqueeze(0)
    layout = TokenLayout(torch.zeros_like(index), documents=index)
    context = (Context((), layout, layout),) if feedforward.mixes_tokens else ()
    output: tuple[Tensor, Any] = feedforward(x, *context)
    return output


def sampled_length(minimum: int, maximum: int) -> int:
    """Return a length that depends on the seed of draws only."""
    return int(torch.randint(minimum, maximum + 1, (), generator=_generator("length")))


def tokens(batch: int, length: int, name: str = "tokens") -> Tensor:
    """Return (batch, length) token ids of text; a shorter sequence is a prefix of a longer one."""
    assert length <= MAX_TOKENS, length
    return torch.stack([_sequence(name, index, _DRAW_SEED.get())[:length] for index in range(batch)])


@lru_cache(maxsize=64)
def _sequence(name: str, index: int, seed: int) -> Tensor:
    """Return the tokens of a sequence; `seed` is that of draws, which the cache depends on."""
    return torch.randint(len(_SPECIALS) + _SENTINELS, SIZE, (MAX_TOKENS,), generator=_generator(name, index))


def replace_tokens(tokens: Tensor) -> Tensor:
    """Replace each token by another text token."""
    start = len(_SPECIALS) + _SENTINELS
    return (tokens - start + 1) % (SIZE - start) + start


def relative_change(a: Tensor, b: Tensor) -> Tensor:
    """(…, D), (…, D) -> (…): maximum absolute difference, relative to the largest entry."""
    a, b = a.detach(), b.detach()
    return (a - b).abs().amax(-1) / max(1.0, float(a.abs().max()))


def max_difference(a: Tensor, b: Tensor) -> float:
    """Return the maximum relative difference of two outputs; infinite if it is NaN."""
    maximum = float(relative_change(a, b).max()) if a.numel() else 0.0
    return float("inf") if math.isnan(maximum) else maximum
