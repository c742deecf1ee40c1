"""One small model that a component is tried in, and the ways to feed it rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast, final

import torch
from torch import Tensor

from paribus.assembly.build import build
from paribus.assembly.components import Classes, make
from paribus.assembly.initialise import initialise
from paribus.kernels import KERNELS
from paribus.keyed import key32
from paribus.parts.batch import Stream
from paribus.parts.context import Kernel, Memory, States
from paribus.parts.layer import Layer
from paribus.parts.stack import Output, Stack
from paribus.slots.initialisation import Initialisation
from paribus.slots.tokenizer import Vocabulary
from paribus.slots.topology import memory_of

_SPECIALS: Final = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
_SENTINELS: Final = 32
SIZE: Final = 64
VOCABULARY: Final = Vocabulary(
    SIZE,
    {name: at for at, name in enumerate(_SPECIALS)},
    tuple(range(len(_SPECIALS), len(_SPECIALS) + _SENTINELS)),
    frozenset(range(len(_SPECIALS) + _SENTINELS, SIZE, 2)),
)
MOST: Final = 256  # tokens of a row
TOLERANCE: Final = 1e-9


@final
class Specimen:
    """A model in float64. `shaken`: moved off where it starts, as gains of 1 and biases of 0 hide mistakes."""

    def __init__(
        self,
        spec: Mapping[str, Any],
        classes: Classes,
        *,
        kernels: Sequence[Kernel] = KERNELS,
        shaken: bool = True,
        real: bool = True,
    ) -> None:
        assembled = build(spec, classes, VOCABULARY, kernels)
        self.topology = assembled.topology
        self.kinds = spec["embedding"].get("segments", 0)  # of segments; 0: it tells none apart
        self.children = assembled.children()
        if real:
            scheme = make(classes, "initialisation", spec["initialisation"], kind=Initialisation)
            self.about = initialise(self.children, scheme, spec["seed"])
        self.topology.double().eval()
        if real and shaken:
            self.shake()
        self.body = next(part for part in self.topology.parts if part.path == "body")

    def shake(self) -> None:
        """Moves every parameter off where it starts."""
        with torch.no_grad():
            for path, parameter in self.topology.named_parameters():
                parameter.add_(noise(path, *parameter.shape), alpha=0.3)

    def stack(self, path: str = "body") -> Stack:
        stack = self.topology.get_submodule(path)
        assert isinstance(stack, Stack)
        return stack

    @property
    def whole(self) -> bool:
        """Whether what it reads comes whole, as an image does, and not in as many tokens as one likes."""
        return self.topology.embedding.values_per_example is not None

    def tokens(self, batch: int, length: int) -> Tensor:
        """(batch, length) ids of text, or as many values as it always reads."""
        return tokens(batch, self.topology.embedding.values_per_example or length)

    def layers(self) -> list[Layer]:
        """Those of the body, if that is a stack."""
        body = self.topology.stage("body")
        return cast("list[Layer]", list(body.layers)) if isinstance(body, Stack) else []

    def hidden(self, body: Tensor | Stream, *, source: Tensor | Stream | None = None) -> Tensor:
        """(B, T) -> (B, T, D): the body's rows."""
        return self.output(body, source=source).hidden

    def output(self, body: Tensor | Stream, *, source: Tensor | Stream | None = None, capture: bool = False) -> Output:
        """(B, T) -> the body's output; it reads a source of its own where none is given."""
        stream = body if isinstance(body, Stream) else Stream(body)
        memory = self.memory(source if source is not None else tokens(stream.tokens.shape[0], 6, "source"))
        return self.topology.run({"body": stream}, "body", memory=memory, capture=capture)

    def scores(self, hidden: Tensor) -> Tensor:
        """(…, D) -> (…, V): by the embedding, of rows brought to its width as a head would bring them; the rows
        themselves where it has no vocabulary."""
        if not self.topology.embedding.traits.get("unembeds", True):
            return hidden
        shape = self.topology.stage("body").shape
        narrow = noise("narrow", shape.width, shape.embedding_width) if shape.embedding_width != shape.width else None
        return self.topology.embedding.unembed(hidden if narrow is None else hidden @ narrow)

    def told(self, rows: Tensor) -> Stream:
        """(B, T) as two segments, unless that is more than the embedding can tell."""
        halves = (torch.arange(rows.shape[1]) >= rows.shape[1] // 2).long().expand(rows.shape[0], -1)
        return Stream(rows) if self.whole or self.kinds == 1 else Stream(rows, segments=halves)

    def asking(self, rows: Tensor) -> Stream:
        """(B, T) as a stream that puts to use all that the topology has."""
        if "second-stream" not in self.topology.traits.get("provides", []):
            return Stream(rows)
        last = torch.tensor([[rows.shape[1] - 1]]).expand(rows.shape[0], -1)
        return Stream(rows, order=(torch.arange(rows.shape[1]) == last).long() * 2, query_positions=last)

    def memory(self, source: Tensor | Stream) -> Memory | None:
        """What the body attends to, if it attends to another stack."""
        if self.body.cross is None:
            return None
        stream = source if isinstance(source, Stream) else Stream(source)
        return memory_of(self.topology.run({self.body.cross: stream}, self.body.cross))

    def beside(self) -> list[str]:
        """The paths of the stacks that the body's rows do not come from: what an objective reads besides."""
        parts = self.topology.parts
        return [
            part.path for part in parts if part is not self.body and part.path not in {each.cross for each in parts}
        ]

    def decoded(self, body: Tensor, chunks: Sequence[int]) -> Tensor:
        """The same as `hidden`, a chunk of rows at a time."""
        states: States = self.topology.start(body.shape[0], sum(chunks))
        memory = self.memory(tokens(body.shape[0], 6, "source"))
        made = [
            self.topology.run({"body": Stream(chunk)}, "body", memory=memory, states=states).hidden
            for chunk in body.split(list(chunks), dim=1)
        ]
        return torch.cat(made, dim=1)


def noise(name: str, *shape: int) -> Tensor:
    """Standard normal draws that are the same whenever they are asked for under the same name."""
    generator = torch.Generator().manual_seed(key32("conform", name))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def tokens(batch: int, length: int, name: str = "tokens") -> Tensor:
    """(batch, length) ids of text; a longer one begins as a shorter one does."""
    assert length <= MOST, length
    return torch.stack([_row(name, row)[:length] for row in range(batch)])


@lru_cache(maxsize=64)
def _row(name: str, row: int) -> Tensor:
    generator = torch.Generator().manual_seed(key32("conform", name, row))
    return torch.randint(len(_SPECIALS) + _SENTINELS, SIZE, (MOST,), generator=generator)


def other(tokens: Tensor) -> Tensor:
    """Another id of text for each."""
    first = len(_SPECIALS) + _SENTINELS
    return (tokens - first + 1) % (SIZE - first) + first


def moved(one: Tensor, two: Tensor) -> Tensor:
    """(…, D), (…, D) -> (…): by how much rows differ, as a share of how large the largest entry is."""
    one, two = one.detach(), two.detach()
    return (one - two).abs().amax(-1) / max(1.0, float(one.abs().max()))


def differ(one: Tensor, two: Tensor) -> float:
    """By how much two outputs differ at most; infinite where one of them is not finite."""
    most = float(moved(one, two).max()) if one.numel() else 0.0
    return float("inf") if math.isnan(most) else most
