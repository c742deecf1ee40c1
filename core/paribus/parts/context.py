"""What a stack remembers between decoding steps.

What travels beside the rows through a stack: plans, memory, decoding state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from paribus.parts.batch import TokenLayout
from paribus.parts.visibility import Visibility

State = dict[str, Tensor]
"""One sublayer's own decoding state, batch first; it is updated in place of being returned."""


class KernelRequest(NamedTuple):
    """What an attention and a position declare of themselves: all that a kernel is chosen by."""

    visibility: Visibility
    bias: str = "none"  # none | positions | content: what the bias added to the scores depends on
    soft_cap: bool = False
    has_mix: bool = False  # the position changes what the weights are applied to
    has_sinks: bool = False  # a query may weigh nothing at all: each head has a score for that
    has_score_functions: bool = False  # the attention has a say of its own in scores or weights
    needs_weights: bool = False  # somebody asked for the attention weights
    has_order: bool = False  # the rows come with an order of their own
    window_by_index: bool = True  # what is near can be told from the rows' own index, not from their positions alone
    aligned: bool = True  # the queries are the keys' own rows: no cache, no memory, no second stream
    has_hidden_keys: bool = False  # some keys may be padding, or of other documents
    distance_bias: bool = (
        False  # the bias depends on nothing but how far apart rows are, and positions are the rows' own
    )
    has_dropout: bool = False  # weights are dropped
    float64: bool = False  # rows are of 64 bits
    queries: int = 0  # how many queries; 0: not known yet
    device: str = "cpu"


class Pair(NamedTuple):
    """Queries against keys, whole or one block of them: the same call to a position's bias either way."""

    q: Tensor | None  # (B, H, T, K); None where the bias depends on positions alone
    k: Tensor | None  # (B, H, S, K): always as many heads as queries
    q_positions: Tensor  # (B|1, T)
    k_positions: Tensor  # (B|1, S)
    scale: float
    heads: int
    project: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None  # the layer's own query and key projections
    dtype: torch.dtype = torch.float32  # that of the scores
    position_part: nn.Module | None = None  # what the layer has of the position for itself
    q_segments: Tensor | None = None  # (B, T), where a bias reads content; None: all rows are of one
    k_segments: Tensor | None = None  # (B, S)


def scaled_dot_product(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """(B, H, T, K), (B, H, S, K) -> (B, H, T, S): how attention compares, unless it says otherwise."""
    return q @ k.transpose(-1, -2) * scale


class ScoreFunctions(NamedTuple):
    """An attention's own say in its scores and weights, all (B, H, T, S)."""

    compare: Callable[[Tensor, Tensor, float], Tensor] = (
        scaled_dot_product  # queries and keys, both with all heads, and the scale
    )
    map_scores: Callable[[Tensor], Tensor] | None = None  # scores, before the softmax
    map_weights: Callable[[Tensor], Tensor] | None = None  # weights, behind it


class LayerScoring(NamedTuple):
    """What is a layer's own in how its queries weigh its keys, and so in no plan."""

    bias: Callable[[Pair], Tensor] | None  # None where the bias depends on positions alone, or there is none
    project: Callable[[Tensor], tuple[Tensor, Tensor]]
    mix: Callable[[Tensor, Pair], Tensor | None] | None = None
    sinks: Tensor | None = None  # (H,)
    functions: ScoreFunctions | None = None
    position_part: nn.Module | None = None  # the layer's part of a position that is the stack's


class AttentionPlan(NamedTuple):
    """What the layers of one sight and one position share, made once a forward pass."""

    kernel: Kernel
    request: KernelRequest
    scale: float
    soft_cap: float | None
    q: TokenLayout  # with their order filled in
    k: TokenLayout
    q_tables: Any  # whatever the position's rotation reads
    k_tables: Any
    kernel_data: Any  # whatever the kernel made of rows and bias: a mask, blocks of one


class Kernel(Protocol):
    """A way to compute attention. All agree with `eager`; which one runs follows from a `KernelRequest` alone."""

    name: str

    def serves(self, demand: KernelRequest) -> bool:
        """Whether this kernel computes exactly what is asked."""
        ...

    def prepare(self, plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor) -> Any:
        """What depends on rows and positions alone; `bias` is the position's, where it depends on those."""
        ...

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        """(B, H, T, K), (B, G, S, K), (B, G, S, K) -> (B, H, T, K)."""
        ...


class Memory(NamedTuple):
    """What a cross-attention attends to: another stack's output."""

    hidden: Tensor  # (B, S, D)
    layout: TokenLayout
    extra: Tensor | None = None  # (B, S, …): what each row leaves to whom reads it besides, where it leaves anything


class Capture(NamedTuple):
    """What is wanted of a pass besides what it gives: nothing is computed or kept that nobody asked for.

    Layers are counted from 1, and back from -1, which is the last.
    """

    weights: bool = False  # how much rows weigh each other, in every layer: forces the eager kernel
    heads: tuple[int, ...] = ()  # layers whose attention's `q`, `k` and `v` are kept
    hidden: tuple[int, ...] = ()  # layers whose `rows` are kept, before any final norm; 0: what the first one read
    last_layer_input: bool = False  # what the last layer read, and all that it takes to ask it again

    def resolve(self, layers: int) -> Capture:
        """The same of a stack of so many layers, each counted from 1; one that is not there is an error."""
        return self._replace(
            heads=tuple(layer_number(layer, layers) for layer in self.heads),
            hidden=tuple(layer_number(layer, layers, least=0) for layer in self.hidden),
        )


def layer_number(layer: int, layers: int, *, least: int = 1) -> int:
    """Which layer of so many that is, counted from 1."""
    found = layer if layer >= 0 else layer + layers + 1
    if not least <= found <= layers or (layer < 0 and not found):
        raise ValueError(f"there is no layer {layer}; valid: {least} to {layers}, or -1 to {-layers}")
    return found


def merge_captures(captures: Iterable[Capture]) -> Capture:
    """All that any of them wants."""
    asked = list(captures)
    heads = sorted({layer for each in asked for layer in each.heads})
    rows = sorted({layer for each in asked for layer in each.hidden})
    return Capture(
        any(each.weights for each in asked), tuple(heads), tuple(rows), any(each.last_layer_input for each in asked)
    )


class Context(NamedTuple):
    """All that a sublayer is given besides its rows."""

    plans: tuple[AttentionPlan, ...]
    layout: TokenLayout  # what each row is
    key_layout: TokenLayout  # what each row is that may be attended to: those of the memory, or all so far
    memory: Tensor | None = None  # keys come from here
    state: State | None = None
    past: int = 0  # rows that the state holds already
    carry: dict[str, Tensor] | None = None  # what an early layer leaves for later ones; new in each forward pass
    captured: dict[str, Tensor] | None = None  # asked for: weights; forces the eager kernel
    captured_heads: dict[str, Tensor] | None = (
        None  # asked for: q, k and v, as they meet; of rows among their own alone
    )


@dataclass
class States:
    """What a stack remembers between decoding steps: what its keys are, and each sublayer's own state."""

    layers: list[dict[str, State]]
    past: int = 0
    layout: TokenLayout | None = None
    memory: Memory | None = None
    capacity: int | None = None  # for how many rows there is room; None: nobody said

    def extend(self, fresh: TokenLayout) -> TokenLayout:
        """All rows so far, after `fresh` ones came in."""
        if self.capacity is not None and self.past + fresh.positions.shape[-1] > self.capacity:
            came = f"{self.past} came already, and now {fresh.positions.shape[-1]} more"
            raise ValueError(
                f"these states have room for {self.capacity} rows: {came}; start(batch, length) says how many"
            )
        if self.layout is None:
            self.layout = fresh
        else:
            sides = (
                self.layout._replace(index_positions=None),
                fresh._replace(index_positions=None),
            )  # of no use to rows against a cache
            self.layout = TokenLayout(*(_joined(old, new) for old, new in zip(*sides, strict=True)))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
        return self.layout

    def take(self, index: Tensor) -> None:
        """Goes on with the sequences (B',) of those that there are, each as often as it comes, in this order."""
        for layer in self.layers:
            for state in layer.values():
                state.update({name: tensor.index_select(0, index) for name, tensor in state.items()})
        self.layout = None if self.layout is None else _taken(self.layout, index)
        if self.memory is not None:
            handed = None if self.memory.extra is None else self.memory.extra.index_select(0, index)
            hidden = self.memory.hidden.index_select(0, index)
            self.memory = Memory(hidden, _taken(self.memory.layout, index), handed)

    @property
    def bytes(self) -> int:
        """What its layers keep, and the memory that they read."""
        held = [tensor for layer in self.layers for state in layer.values() for tensor in state.values()]
        if self.memory is not None:
            held += [tensor for tensor in (self.memory.hidden, self.memory.extra) if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


def _taken(rows: TokenLayout, index: Tensor) -> TokenLayout:
    """Of what is said of each sequence by itself, that of some."""
    return TokenLayout(*(vector if vector is None or len(vector) == 1 else vector[index] for vector in rows))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None


def _joined(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    if old is None and new is None:
        return None
    assert old is not None, "rows that come later say no more than the first ones did"
    assert new is not None, "rows that come later say no less than the first ones did"
    batch = max(old.shape[0], new.shape[0])
    return torch.cat([old.expand(batch, -1), new.expand(batch, -1)], dim=1)
