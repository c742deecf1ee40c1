"""Minimal components to build topologies from."""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, final

import pytest
import torch
from torch import Tensor, nn

import paribus
from paribus import (
    PADDING,
    Attention,
    AttentionTraits,
    Builder,
    Context,
    Cost,
    CrossAttention,
    Embedding,
    FeedForward,
    Load,
    Output,
    Part,
    Position,
    PositionTraits,
    Shape,
    Stack,
    State,
    Stream,
    Topology,
    memory_of,
)
from paribus.models.lightning_module import Model
from paribus.parts.stack import Layer
from paribus_embedding.token_table import TokenTable
from paribus_feedforward.multi_layer_perceptron import MultiLayerPerceptron
from paribus_norm.layer_norm import LayerNorm
from paribus_placement.pre_norm import PreNorm

WIDTH = 4


@final
class Mean(Attention):
    """Mean of the visible tokens, or of the memory."""

    traits: ClassVar[AttentionTraits] = {"weights": True}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.causal = shape.causal
        self.mix = torch.nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        if ctx.memory is not None:
            return self.mix_channels(ctx.memory.mean(1, keepdim=True).expand_as(x))
        if not self.causal:
            return self.mix_channels(x.mean(1, keepdim=True).expand_as(x))
        past_sum = 0 if ctx.state is None else ctx.state["sum"]
        summed = past_sum + x.cumsum(1)
        if ctx.state is not None:
            ctx.state["sum"] = summed[:, -1:]
        count = torch.arange(ctx.past + 1, ctx.past + x.shape[1] + 1).view(1, -1, 1)
        return self.mix_channels(summed / count)

    def mix_channels(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.mix(x)
        return mixed

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {"sum": like.new_zeros(batch, 1, WIDTH)}

    def cost(self, load: Load) -> Cost:
        return Cost()


@final
class Ramp(Position):
    """Adds the position times the channel's index; a norm would remove a constant."""

    traits: ClassVar[PositionTraits] = {"hooks": ["embed"], "bias": "none", "owner": "stack"}

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + positions.unsqueeze(-1) * torch.arange(WIDTH)

    def position_limit(self) -> int | None:
        return None


@final
class PartsBuilder:
    """Builder of two layers for each declared part."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = {part.path: part for part in parts}
        self.embeddings = 0

    def shape(self, path: str) -> Shape:
        part = self.parts[path]
        sublayers = ("attention", "cross", "feedforward") if part.cross else ("attention", "feedforward")
        return Shape(WIDTH, 2, 2, 8, 11, 2, stack=path, causal=part.causal, sublayers=sublayers)

    def embedding(self, *, width: int | None = None, scored: int | None = None) -> Embedding:
        self.embeddings += 1
        return TokenTable(self.shape("body"), lambda width=None: LayerNorm(width or WIDTH))

    def stack(self, path: str, *, placed: str | None = None, causal: bool | None = None) -> Stack:
        shape, ramp = self.shape(path), Ramp()
        shape = shape if causal is None else replace(shape, causal=causal)
        layers = [self.layer(shape) for _ in range(shape.layers)]
        across = Ramp() if "cross" in shape.sublayers else None
        return Stack(shape, layers, [ramp], [(ramp, across)] * shape.layers, LayerNorm(WIDTH), ())

    def separate_embedding(self) -> Embedding:
        raise NotImplementedError

    def shape_of(self, path: str) -> Shape:
        raise NotImplementedError

    def embedding_part(self, path: str) -> nn.ModuleDict | None:
        raise NotImplementedError

    def cross_attention(self, path: str, memory_width: int) -> tuple[Attention, CrossAttention]:
        raise NotImplementedError

    def layer(self, shape: Shape) -> Layer:
        feedforward: FeedForward = MultiLayerPerceptron(shape)
        return Layer(
            attention=Mean(shape),
            cross=Mean(shape) if "cross" in shape.sublayers else None,
            feedforward=feedforward,
            placement=PreNorm(shape, lambda: LayerNorm(WIDTH)),
            dropout=0.0,
        )


@pytest.fixture
def build() -> Callable[[type[Topology]], Topology]:
    """Build a topology with random parameters, in float64."""

    def build(topology: type[Topology]) -> Topology:
        torch.manual_seed(9)
        builder: Builder = PartsBuilder(topology.parts)
        return topology(builder).double()

    return build


@pytest.fixture(scope="session")
def recurrent() -> Callable[..., Model]:
    """Build a small model in float64, with perturbed parameters."""

    def assembled(preset: str, *overrides: str) -> Model:
        sizes = ("dims.width=5", "dims.layers=1", "dims.length=16", "dims.vocabulary=300", "dropout=0.0")
        model = paribus.assemble(paribus.spec(preset, *sizes, *overrides)).double().eval()
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.4)
        return model

    return assembled


@pytest.fixture(scope="session")
def padded_stream() -> Callable[..., Stream]:
    """Build a stream of sequences, padded with ids of text."""

    def padded_stream(sequences: list[list[int]], side: str = "right") -> Stream:
        length = max(map(len, sequences))
        starts = [length - len(row) if side == "left" else 0 for row in sequences]
        tokens, documents = torch.full((len(sequences), length), 77), torch.full((len(sequences), length), PADDING)
        for index, (row, start) in enumerate(zip(sequences, starts, strict=True)):
            tokens[index, start : start + len(row)] = torch.tensor(row)
            documents[index, start : start + len(row)] = 0
        return Stream(tokens, documents)

    return padded_stream


@pytest.fixture(scope="session")
def run_both() -> Callable[..., Output]:
    """Run the encoder, and the decoder with its memory."""

    def run_both(model: Model, source: Stream, target: Stream, *, capture: bool = False) -> Output:
        memory = memory_of(model.topology.run({"encoder": source}, "encoder"))
        return model.topology.run({"body": target}, "body", memory=memory, capture=capture)

    return run_both
