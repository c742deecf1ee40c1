"""Two causal stacks that read a text in opposite directions, and an encoder over their layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, final

import torch
from torch import Tensor

from paribus import (
    Builder,
    Capture,
    ComponentCost,
    Load,
    Output,
    Shape,
    Stack,
    Stage,
    States,
    TokenLayout,
)
from paribus_topology.layer_mix import LayerMix
from paribus_topology.recurrent_encoder import RecurrentEncoder

_Captured = tuple[dict[str, Tensor], ...]


class Task(NamedTuple):
    """Modules above the two stacks."""

    mix: LayerMix
    encoder: RecurrentEncoder | None  # None: the mix is the output


@final
class OppositeStacks(Stage):
    """Two causal stacks over the same embedded tokens: one reads them forwards, the other backwards.

    No layer of one stack reads the other, so the first half of an output depends on the token and those before it, and
    the second half on the token and those after it. With a `task`, the output is a mix of all layers, read by an
    encoder. (B, T, K) -> (B, T, 2 K), or (B, T, R) with an encoder.
    """

    def __init__(self, stacks: tuple[Stack, Stack], shape: Shape, task: Task | None = None) -> None:
        super().__init__()
        self.forwards, self.backwards = stacks
        self.embedding = self.forwards.embedding  # tokens are embedded once, for both
        self.forwards.embedding = self.backwards.embedding = None
        self.shape = shape
        self.mix = None if task is None else task.mix
        self.task = None if task is None else task.encoder

    @property
    def input_shape(self) -> Shape:
        return self.forwards.shape

    def forward(
        self, x: Tensor, layout: TokenLayout, capture: Capture | bool = False, tokens: Tensor | None = None
    ) -> Output:
        """(B, T, K) -> (B, T, 2 K), or (B, T, R) with an encoder."""
        assert layout.order is None, "an order of tokens has no opposite direction"
        captures_weights = capture.weights if isinstance(capture, Capture) else capture
        layers = range(len(self.forwards.layers) + 1) if self.mix is not None else ()
        request = Capture(weights=captures_weights, hidden=tuple(layers))
        ahead = self.forwards(x, layout, capture=request, tokens=tokens)
        index = _reversed_index(layout)
        ids = None if tokens is None else _reverse(tokens, index)
        behind = self.backwards(_reverse(x, index), _reverse_layout(layout, index), capture=request, tokens=ids)
        hidden = torch.cat([ahead.hidden, _reverse(behind.hidden, index)], dim=-1)
        if self.mix is not None:
            hidden = self.mix(_layer_states(ahead, behind, index))
        if self.task is not None:
            hidden = self.task(hidden, layout).hidden
        captured = _weights(ahead.captured, behind.captured, index) if captures_weights else ()
        return Output(hidden, layout, captured=captured)

    def start(self, batch: int, length: int) -> States:
        raise NotImplementedError("a stack that reads backwards is not decoded step by step")

    def kernels(self, device: str = "cpu", queries: int = 0) -> tuple[str, ...]:
        task = () if self.task is None else self.task.kernels(device, queries)
        return (*self.forwards.kernels(device, queries), *self.backwards.kernels(device, queries), *task)

    def costs(self, trains: Load, decodes: Load | None) -> Iterator[ComponentCost]:
        for name, stage in (("forwards", self.forwards), ("backwards", self.backwards), ("task", self.task)):
            for share in () if stage is None else stage.costs(trains, None):
                yield share._replace(name=f"{name}.{share.name}")
        if self.mix is not None:
            yield ComponentCost("mix", (self.mix,))


def opposite_stacks(build: Builder) -> tuple[Stack, Stack]:
    """Build a stack in each direction, with the options of the body."""
    return build.stack("body", causal=True), build.stack("body", placed="body", causal=True)


def both_halves(shape: Shape, embedding_width: int | None) -> Shape:
    """Return the shape of two stacks of this shape, side by side."""
    return replace(shape, width=2 * shape.width, table_width=embedding_width or shape.width)


def _reversed_index(layout: TokenLayout) -> Tensor | None:
    """(B, T): the token at each position of the reversed text, whose padding stays at the end; None without padding."""
    if layout.documents is None:
        return None
    length = layout.documents.shape[1]
    padding = (layout.documents < 0).long().flip(1).cumprod(1).sum(1, keepdim=True)  # tokens at the end
    index = torch.arange(length, device=padding.device).expand(len(padding), -1)
    return torch.where(index < length - padding, length - padding - 1 - index, index)


def _reverse(vector: Tensor, index: Tensor | None, dim: int = 1) -> Tensor:
    """Return the tokens along a dimension in the opposite order."""
    if index is None:
        return vector.flip(dim)
    rows = max(len(vector), len(index))
    shape = [1] * vector.dim()
    shape[0], shape[dim] = len(index), index.shape[1]
    vector = vector.expand(rows, *vector.shape[1:])
    return vector.gather(dim, index.view(shape).expand(rows, *vector.shape[1:]))


def _reverse_layout(layout: TokenLayout, index: Tensor | None) -> TokenLayout:
    """Return the layout of the reversed tokens, whose positions ascend as well."""
    reversed_layout = layout.apply(lambda vector: _reverse(vector, index))
    if layout.index_positions is not None:  # a reversed index that ascends is the index
        return reversed_layout._replace(positions=layout.positions, index_positions=layout.index_positions)
    positions = layout.positions
    last = positions if layout.documents is None else positions.masked_fill(layout.documents < 0, 0)
    return reversed_layout._replace(positions=last.amax(dim=1, keepdim=True) - reversed_layout.positions)


def _layer_states(ahead: Output, behind: Output, index: Tensor | None) -> list[Tensor]:
    """Return the hidden states of the embedding and of each layer, (B, T, 2 K)."""
    states = []
    for forward_states, backward_states in zip(_hidden(ahead), _hidden(behind), strict=True):
        states.append(torch.cat([forward_states, _reverse(backward_states, index)], dim=-1))
    return states


def _hidden(output: Output) -> list[Tensor]:
    """Return the hidden states of the embedding and of each layer; the last behind the final norm of the stack."""
    inner = [layer["hidden"] for layer in output.captured[:-1]]
    return [output.captured[0]["input"], *inner, output.hidden]


def _weights(ahead: _Captured, behind: _Captured, index: Tensor | None) -> _Captured:
    """Return the weights of the forward layers, then those of the backward layers in the order of the text."""
    return (
        *({"weights": layer["weights"]} for layer in ahead),
        *({"weights": _reverse(_reverse(layer["weights"], index, 2), index, 3)} for layer in behind),
    )
