"""The norm within attentions: of heads, of what they give, of latents.

The options that every softmax attention shares, as one group.

The four projections of an attention: one set of parameter paths for every variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Protocol, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus.parts.shape import Role, Shape
from paribus.parts.weight_conversion import ConvertedTensor, WeightConverter
from paribus.schema import Range


@final
class RootMeanSquare(nn.Module):
    """(…, K) -> (…, K): divided by its root mean square, then given a gain; always of the dtype of what it is given."""

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain"}

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        # Under autocast rows are narrower than the gain, and torch is fast where both are of one type.
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


@dataclass(frozen=True)
class ScoreOptions:
    """How queries are scored against keys, whatever the heads are."""

    bias: Annotated[bool, "whether the four projections have a bias"] = True
    scaled: Annotated[bool, "whether scores are divided by the root of the head width (T5: no)"] = True
    qk_norm: Annotated[
        bool, "whether each head's queries and keys are normalised by their root mean square (Qwen 3)"
    ] = False
    sinks: Annotated[bool, "whether each head learns a score for attending to nothing (gpt-oss)"] = False
    value_residual: Annotated[bool, "whether values are mixed with those of the first layer (ResFormer)"] = False
    soft_cap: Annotated[float | None, "scores are squashed into ± this (Gemma 2)", Range(above=0)] = None


class ContentProjection(Protocol):
    """What positions whose bias reads content ask of the heads of a layer."""

    def project(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """A table as queries and as keys, both with all heads."""
        ...


class Projections(ContentProjection, Protocol):
    """What an `Attend` reads: `Heads`, or an attention that does something to what its heads project."""

    def queries(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, K)."""
        ...

    def keys(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, G, S, K)."""
        ...

    def values(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (B, G, S, K)."""
        ...


@final
class Heads(nn.Module, WeightConverter):
    """Queries for `heads` heads, keys and values for `kv_heads` of them, and the way back to the width.

    Query head h reads key/value head h // (heads / kv_heads), as in "GQA" (Ainslie et al. 2023). Of a memory that is
    read raw, values are its own columns, a stretch for each key/value head, and no way leads back: what they come to is
    as wide as the memory, and of the query heads that share a stretch it is the mean.
    """

    roles: ClassVar[Mapping[str, Role]] = {
        "q.weight": "query",
        "k.weight": "key",
        "v.weight": "value",
        "o.weight": "residual",
    }

    def __init__(self, shape: Shape, *, kv_heads: int, bias: bool, key_bias: bool = True) -> None:
        super().__init__()
        source = shape.memory_width or shape.width
        self.heads = shape.heads
        self.kv_heads = kv_heads
        self.head_width = shape.head_width
        self.q = nn.Linear(shape.width, shape.heads * shape.head_width, bias=bias)
        self.k = nn.Linear(source, kv_heads * shape.head_width, bias=bias and key_bias)
        self.raw_memory = shape.raw_memory
        if shape.raw_memory:
            validate_memory_columns(source, kv_heads)
            return
        self.v = nn.Linear(source, kv_heads * shape.head_width, bias=bias)
        self.o = nn.Linear(shape.heads * shape.head_width, shape.width, bias=bias)

    def queries(self, x: Tensor) -> Tensor:
        return self.split(self.q(x), self.heads)

    def keys(self, x: Tensor) -> Tensor:
        return self.split(self.k(x), self.kv_heads)

    def values(self, x: Tensor) -> Tensor:
        return split_memory_columns(x, self.kv_heads) if self.raw_memory else self.split(self.v(x), self.kv_heads)

    def split(self, x: Tensor, heads: int) -> Tensor:
        headed = x.view(*x.shape[:-1], heads, self.head_width)  # (B, T, H*K) -> (B, T, H, K)
        return headed.transpose(-3, -2)

    def merge(self, x: Tensor) -> Tensor:
        if self.raw_memory:
            return merge_memory_columns(x, self.kv_heads)
        merged: Tensor = self.o(x.transpose(-3, -2).flatten(-2))  # (B, H, T, K) -> (B, T, H*K) -> (B, T, D)
        return merged

    def project(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """`table` as queries and as keys, both with all heads: for biases that read content."""
        return self.queries(table), repeat_heads(self.keys(table), self.heads)

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        """Keys and values of another number of heads, for as many query heads of the same width."""
        if not isinstance(other, Heads) or (other.heads, other.head_width) != (self.heads, self.head_width):
            return {}
        sides = {"k": (self.k, other.k)} if other.kv_heads != self.kv_heads else {}
        if sides and not (self.raw_memory or other.raw_memory):
            sides["v"] = self.v, other.v
        return {
            f"{name}.{kind}": convert_kv_heads(theirs, own, self.heads, (other.kv_heads, self.kv_heads))
            for name, (ours, before) in sides.items()
            for kind, own, theirs in (("weight", ours.weight, before.weight), ("bias", ours.bias, before.bias))
            if own is not None and theirs is not None and own.shape[1:] == theirs.shape[1:]
        }


def convert_kv_heads(theirs: Tensor, own: Tensor, heads: int, kv_heads: tuple[int, int]) -> ConvertedTensor:
    """(G'*K, …) -> (G*K, …): fewer heads are means of groups ("GQA", section 2.1), more of them repetitions.

    Where neither number divides the other, each head is the mean of those that its query heads read.
    """
    before, after = kv_heads
    headed = theirs.detach().unflatten(0, (before, -1))  # (G', K, …)
    if after % before == 0:
        made, how = headed.repeat_interleave(after // before, 0), f"{before} heads repeated to {after}"
    elif before % after == 0:
        made, how = _means(headed, after), f"{before} heads averaged in groups of {before // after}"
    else:
        made = _means(headed.repeat_interleave(heads // before, 0), after)
        how = f"{before} heads averaged into {after} by the query heads that read them"
    return ConvertedTensor(made.flatten(0, 1).view_as(own), how)


def _means(headed: Tensor, groups: int) -> Tensor:
    grouped: Tensor = headed.unflatten(0, (groups, -1))  # mypy takes what `unflatten` gives for anything
    return grouped.mean(1)


def validate_memory_columns(width: int, heads: int) -> None:
    """Refuses a memory whose columns its heads cannot share evenly."""
    if width % heads:
        raise ValueError(f"{heads} heads share the {width} columns of the memory, which is no multiple of {heads}")


def split_memory_columns(x: Tensor, heads: int) -> Tensor:
    """(B, S, M) -> (B, G, S, M/G): a stretch of columns for each head."""
    headed: Tensor = x.unflatten(-1, (heads, -1))
    return headed.transpose(-3, -2)


def merge_memory_columns(x: Tensor, heads: int) -> Tensor:
    """(B, H, T, M/G) -> (B, T, M): the other way, the mean of the query heads that share a stretch."""
    if x.shape[1] != heads:
        x = x.unflatten(1, (heads, -1)).mean(2)
    return x.transpose(-3, -2).flatten(-2)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """(B, G, S, K) -> (B, H, S, K): each key/value head repeated for the query heads that read it."""
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], dim=-3)
