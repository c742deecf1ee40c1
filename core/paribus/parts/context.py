"""Inputs of attention besides hidden states: kernel requests, plans, memory, captures, decoding state.

`AttentionSublayer` and `PositionHooks` are the methods of an attention and of a position that a stack calls; the full
contracts are `Attention` and `Position` in `paribus.slots`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from paribus.parts.batch import Stream, TokenLayout
from paribus.parts.shape import Cost, Load
from paribus.parts.visibility import Visibility, visibility_mask, with_order

State = dict[str, Tensor]
"""Decoding state of one sublayer, batch first; updated in place."""


class KernelRequest(NamedTuple):
    """Declarations of an attention and a position: everything that decides which kernel runs."""

    visibility: Visibility
    bias: str = "none"  # inputs of the score bias: none | positions | content
    soft_cap: bool = False
    has_mix: bool = False  # the position adds a term to the output
    has_sinks: bool = False  # each head has a score for attending to nothing
    has_score_functions: bool = False  # the attention replaces the score or the softmax, or changes scores or weights
    needs_weights: bool = False  # attention weights are captured
    has_order: bool = False  # the layout has an explicit order
    window_by_index: bool = True  # windows may be measured on indices instead of positions
    aligned: bool = True  # queries and keys are the same tokens: no cache, no memory, no second stream
    has_hidden_keys: bool = False  # some keys may be padding, or of other documents (hidden)
    distance_bias: bool = False  # the bias depends on distances only, and positions equal indices
    has_dropout: bool = False  # dropout of attention weights
    float64: bool = False  # hidden states are float64
    queries: int = 0  # number of queries; 0: unknown
    device: str = "cpu"


class Pair(NamedTuple):
    """Queries and keys, all of them or one block: the input of a position's bias."""

    q: Tensor | None  # (B, H, T, K); None if the bias reads positions only
    k: Tensor | None  # (B, H, S, K): with the heads of the queries
    q_positions: Tensor  # (B|1, T): positions of the queries; any integers
    k_positions: Tensor  # (B|1, S): positions of the keys
    scale: float  # factor of the dot products
    heads: int  # number of query heads, H
    project: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None  # query and key projections of the layer
    dtype: torch.dtype = torch.float32  # dtype of the scores
    position_part: nn.Module | None = None  # what the layer has of the position for itself
    q_segments: Tensor | None = None  # (B, T), if the bias reads content; None: one segment
    k_segments: Tensor | None = None  # (B, S), of the keys
    visible: Tensor | None = (
        None  # (B|1, 1, T, S) bool, keys that each query sees, if the bias reads content; None: all
    )


def scaled_dot_product(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Return scaled dot products: (B, H, T, K), (B, H, S, K) -> (B, H, T, S)."""
    return q @ k.transpose(-1, -2) * scale


def softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Return the softmax over the keys: (B, H, T, S) -> (B, H, T, S)."""
    return scores.softmax(-1)


class ScoreFunctions(NamedTuple):
    """Functions that replace steps of attention, in the order of the steps; each returns (B, H, T, S).

    `normalize` turns scores into weights, by default with a softmax. It receives the scores and the keys that each
    query sees, (B|1, 1, T|1, S) bool, and needs no mask of its own: a hidden key has the lowest finite score, and its
    weight is set to 0 afterwards. `visible.sum(-1, keepdim=True, dtype=scores.dtype)` is the number of visible keys,
    never 0: the weights of a query that sees no key are computed as if it saw all keys, and then set to 0. With the
    option `sinks`, the last column is the score of attending to nothing.

    Sigmoid attention is `ScoreFunctions(normalize=lambda scores, visible: scores.sigmoid())`.
    """

    compare: Callable[[Tensor, Tensor, float], Tensor] = (
        scaled_dot_product  # scores of queries and keys with all heads, and the scale
    )
    map_scores: Callable[[Tensor], Tensor] | None = None  # applied to scores, after biases and the soft cap
    normalize: Callable[[Tensor, Tensor], Tensor] = softmax  # weights of scores and visible keys
    map_weights: Callable[[Tensor], Tensor] | None = None  # applied to weights, before dropout


class LayerScoring(NamedTuple):
    """Inputs of scoring that belong to one layer, and so to no shared plan."""

    bias: Callable[[Pair], Tensor] | None  # None if there is no bias, or it reads positions only
    project: Callable[[Tensor], tuple[Tensor, Tensor]]
    mix: Callable[[Tensor, Pair], Tensor | None] | None = None
    sinks: Tensor | None = None  # (H,)
    functions: ScoreFunctions | None = None
    position_part: nn.Module | None = None  # the layer's part of the stack's position


class AttentionPlan(NamedTuple):
    """Plan of attentions with the same visibility and position, made once per forward pass."""

    kernel: Kernel  # chosen for the request
    request: KernelRequest  # declarations of the attention and the position
    scale: float  # factor of the dot products
    soft_cap: float | None  # limit of scores
    q: TokenLayout  # layout of the queries, with an order
    k: TokenLayout  # layout of the keys, with an order
    q_tables: Any  # tables of the position's rotation, for queries
    k_tables: Any  # the same for keys
    kernel_data: Any  # data of the kernel from layouts and bias: a mask, blocks


class Kernel(Protocol):
    """Implementation of attention. All kernels agree with `eager`; a `KernelRequest` decides which one runs."""

    name: str

    def serves(self, request: KernelRequest) -> bool:
        """Return whether this kernel computes the request exactly."""
        ...

    def prepare(self, plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor) -> Any:
        """Return data that depends on layouts only; `bias` is the position's, if it reads positions only."""
        ...

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        """Return the output of attention: (B, H, T, K), (B, G, S, K), (B, G, S, K) -> (B, H, T, K)."""
        ...


class PositionHooks(Protocol):
    """Methods of a position that attentions and their plans call."""

    @property
    def traits(self) -> Mapping[str, Any]: ...
    def score_terms(self) -> int: ...
    def uses_mix(self) -> bool: ...
    def embed(self, x: Tensor, positions: Tensor) -> Tensor: ...
    def tables(self, positions: Tensor, width: int) -> Any: ...
    def rotate(self, x: Tensor, tables: Any, side: Literal["query", "key"]) -> Tensor: ...
    def bias(self, pair: Pair) -> Tensor: ...
    def mix(self, weights: Tensor, pair: Pair) -> Tensor | None: ...
    def cost(self, load: Load) -> Cost: ...


class AttentionSublayer(Protocol):
    """Methods of an attention that layers and stacks call."""

    @property
    def traits(self) -> Mapping[str, Any]: ...
    def __call__(self, x: Tensor, ctx: Context) -> Tensor: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def start(self, batch: int, length: int, like: Tensor) -> State: ...
    def cost(self, load: Load) -> Cost: ...


class Memory(NamedTuple):
    """Output of another stack, for cross-attention."""

    hidden: Tensor  # (B, S, D): hidden states
    layout: TokenLayout  # layout of their tokens
    extra: Tensor | None = None  # (B, S, …): further output of the stack, such as its decoding state


class Capture(NamedTuple):
    """Values to capture in a forward pass; nothing else is computed or stored.

    Layers count from 1, or back from -1, the last.
    """

    weights: bool = False  # attention weights of every layer; forces the eager kernel
    heads: tuple[int, ...] = ()  # layers whose `q`, `k` and `v` are captured
    hidden: tuple[int, ...] = ()  # layers whose output is captured, before the final norm; 0: input of the first
    last_layer_input: bool = False  # input of the last layer, for further passes through it

    def resolve(self, layers: int) -> Capture:
        """Return the same capture with layers numbered from 1; a layer that does not exist is an error."""
        if not self.heads and not self.hidden:
            return self
        return self._replace(
            heads=tuple(layer_number(layer, layers) for layer in self.heads),
            hidden=tuple(layer_number(layer, layers, minimum=0) for layer in self.hidden),
        )


NO_CAPTURE: Final = Capture()


def layer_number(layer: int, layers: int, *, minimum: int = 1) -> int:
    """Return the number of a layer, counted from 1."""
    number = layer if layer >= 0 else layer + layers + 1
    if not minimum <= number <= layers or (layer < 0 and not number):
        raise ValueError(f"unknown layer {layer}; valid: {minimum} to {layers}, or -1 to {-layers}")
    return number


def merge_captures(captures: Iterable[Capture]) -> Capture:
    """Return a capture of everything that any of the captures contains."""
    requests = [capture for capture in captures if capture != NO_CAPTURE]
    if not requests:
        return NO_CAPTURE
    heads = sorted({layer for request in requests for layer in request.heads})
    hidden = sorted({layer for request in requests for layer in request.hidden})
    return Capture(
        any(request.weights for request in requests),
        tuple(heads),
        tuple(hidden),
        any(request.last_layer_input for request in requests),
    )


class Context(NamedTuple):
    """Inputs of an attention besides hidden states."""

    plans: tuple[AttentionPlan, ...]  # for `Attend`
    layout: TokenLayout  # layout of the queries
    key_layout: TokenLayout  # layout of the keys: of the memory, or of all tokens so far
    memory: Tensor | None = None  # (B, S, M): source of keys and values in cross-attention; None: self-attention
    state: State | None = None  # decoding state that `start` made; None: one pass over the whole sequence
    past: int = 0  # number of tokens in the state
    carry: dict[str, Tensor] | None = None  # values of early layers for later ones; new in each forward pass
    captured: dict[str, Tensor] | None = None  # receives the attention weights; forces the eager kernel
    captured_heads: dict[str, Tensor] | None = None  # receives q, k and v
    inputs: Tensor | None = None  # (B, T, D): embedded tokens of the queries, for attentions that need `inputs`
    memory_inputs: Tensor | None = None  # (B, S, M): embedded tokens of the memory, for the same attentions
    key_input: Tensor | None = None  # (B, T, D): source of keys, if it is not that of the queries
    value_input: Tensor | None = None  # (B, T, D): source of values, if it is not that of the keys
    tokens: Tensor | None = None  # (B, T): ids of the tokens that become keys now; None: inputs have no ids

    def mask(self, visibility: Visibility) -> Tensor | None:
        """Return which keys each query sees, (B or 1, 1, T, S) bool, for an attention without `Attend`.

        None if all queries see all keys. A padding query may see no key.
        """
        queries = self.layout
        if queries.order is not None and self.memory is None:
            visibility = visibility._replace(causal=True)  # an explicit order is causal
        by_index = queries.documents is None or queries.index_positions is not None
        keys = with_order(self.key_layout)
        return visibility_mask(visibility, with_order(queries, self.past), keys, window_by_index=by_index)


@dataclass
class States:
    """Decoding state of a stack: layout of the keys so far, and the state of each sublayer."""

    layers: list[dict[str, State]]  # state of each sublayer of each layer
    past: int = 0  # number of tokens so far
    layout: TokenLayout | None = None  # layout of the tokens so far
    memory: Memory | None = None  # memory of cross-attention
    capacity: int | None = None  # number of tokens that fit; None: unlimited
    recent: Stream | None = None  # last tokens, if the embedding of a token depends on those before it

    def extend(self, fresh: TokenLayout) -> TokenLayout:
        """Append the layout of new tokens and return the whole layout."""
        if self.capacity is not None and self.past + fresh.positions.shape[-1] > self.capacity:
            total = f"{self.past} + {fresh.positions.shape[-1]}"
            raise ValueError(
                f"expected at most {self.capacity} tokens, got {total}; start(batch, length) sets the limit"
            )
        if self.layout is None:
            self.layout = fresh
        else:
            layouts = (layout._replace(index_positions=None) for layout in (self.layout, fresh))
            vectors = (_concatenate(past, new) for past, new in zip(*layouts, strict=True))
            self.layout = TokenLayout(*vectors)  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
        return self.layout

    def with_recent(self, fresh: Stream, count: int) -> Stream:
        """Return new tokens after the last `count` ones before them, or after all in another order or with padding."""
        fresh = fresh._replace(special=None, query_positions=None, sentences=None)
        if self.recent is not None:
            fresh = Stream(*map(_concatenate, self.recent, fresh))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
        length = fresh.tokens.shape[1]
        is_plain = fresh.documents is None and fresh.positions is None and fresh.order is None
        self.recent = fresh.span(max(0, length - count) if is_plain else 0, length)
        return fresh

    def take(self, index: Tensor) -> None:
        """Select the sequences `index`, (B',), of the batch, in this order; an index may repeat."""
        for layer in self.layers:
            for state in layer.values():
                state.update({name: tensor.index_select(0, index) for name, tensor in state.items()})
        self.layout = None if self.layout is None else _select(self.layout, index)
        batch = 0 if self.recent is None else len(self.recent.tokens)
        self.recent = None if self.recent is None else self.recent.apply(lambda vector: vector.expand(batch, -1)[index])
        if self.memory is not None:
            handed = None if self.memory.extra is None else self.memory.extra.index_select(0, index)
            hidden = self.memory.hidden.index_select(0, index)
            self.memory = Memory(hidden, _select(self.memory.layout, index), handed)

    @property
    def bytes(self) -> int:
        """Size of the stored tensors, the memory included."""
        tensors = [tensor for layer in self.layers for state in layer.values() for tensor in state.values()]
        if self.memory is not None:
            tensors += [tensor for tensor in (self.memory.hidden, self.memory.extra) if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _select(layout: TokenLayout, index: Tensor) -> TokenLayout:
    """Return the layout of some sequences of the batch."""
    return TokenLayout(*(vector if vector is None or len(vector) == 1 else vector[index] for vector in layout))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None


def _concatenate(past: Tensor | None, fresh: Tensor | None) -> Tensor | None:
    if past is None and fresh is None:
        return None
    assert past is not None, "expected the same vectors as in the first layout"
    assert fresh is not None, "expected the same vectors as in the first layout"
    batch = max(past.shape[0], fresh.shape[0])
    return torch.cat([past.expand(batch, -1), fresh.expand(batch, -1)], dim=1)
