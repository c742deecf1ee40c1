"""Query, key, value and output projections of attention, with RMS norm of heads and score options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Protocol, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus.parts.shape import Role, Shape
from paribus.parts.weight_conversion import ConvertedTensor, WeightConverter
from paribus.schema import Range


@final
class RootMeanSquare(nn.Module):
    """RMS norm of heads or latents: (…, K) -> (…, K), x divided by its root mean square times a gain, in the dtype of
    x.
    """

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain"}

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return normalized vectors: (…, K) -> (…, K)."""
        # Under autocast x has a narrower dtype than the gain; torch is fast if both are equal.
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


@dataclass(frozen=True)
class ScoreOptions:
    """Options of softmax attention: of its scores, its values and its output."""

    bias: Annotated[bool, "add a bias to the four projections"] = True
    scaled: Annotated[bool, "divide scores by the root of the head width (T5: no)"] = True
    qk_norm: Annotated[bool, "normalise the queries and keys of each head by their root mean square (Qwen 3)"] = False
    sinks: Annotated[bool, "learn a score for attending to nothing, one for each head (gpt-oss)"] = False
    value_residual: Annotated[bool, "mix values with those of the first layer (ResFormer)"] = False
    soft_cap: Annotated[float | None, "limit of scores, by a tanh (Gemma 2: 50)", Range(above=0)] = None
    exclusive: Annotated[
        bool, "subtract from each output its part along the position's own value; self-attention only (XSA)"
    ] = False
    forget: Annotated[
        bool,
        "add to each score the logarithms of gates of the tokens from after the key to the query, a sigmoid of the "
        "layer's input for each head; self-attention only (FoX)",
    ] = False
    gate: Annotated[
        Literal["headwise", "elementwise"] | None,
        "multiply outputs, before their projection, by sigmoids of the layer's input: one for each head, or for each "
        "channel (Qwen 3 Next: elementwise)",
    ] = None
    kernel: Annotated[
        int | None,
        "tokens in the window of a convolution that is added to queries, keys and values; self-attention only (Canon "
        "B: 4); null: none",
        Range(2, 1024),
    ] = None
    value_embedding: Annotated[
        bool, "mix values with those of a table, looked up by token id; self-attention only (modded-nanogpt)"
    ] = False


class ContentProjection(Protocol):
    """Projection that positions with a content bias call on the heads of a layer."""

    def project(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Return a table as queries and as keys, both with all heads."""
        ...


class Projections(ContentProjection, Protocol):
    """Projections that an `Attend` calls: `Heads`, or an attention that changes what its heads project."""

    def queries(self, x: Tensor) -> Tensor:
        """Return queries: (B, T, D) -> (B, H, T, K)."""
        ...

    def keys(self, x: Tensor) -> Tensor:
        """Return keys: (B, S, D) -> (B, G, S, K)."""
        ...

    def values(self, x: Tensor) -> Tensor:
        """Return values: (B, S, D) -> (B, G, S, K)."""
        ...


@final
class Heads(nn.Module, WeightConverter):
    """Projections of attention: queries for `heads` heads, keys and values for `kv_heads`, and the output projection.

    The modules are `q`, `k`, `v` and `o`; `heads`, `kv_heads` and `head_width` are the numbers H, G and K. Query head h
    reads key/value head h // (H / G), as in "GQA" (Ainslie et al. 2023). With `raw_memory`,
    values are columns of the memory, one range for each key/value head, and there is no output projection: the output
    is as wide as the memory, and query heads with the same range are averaged.
    """

    roles: ClassVar[Mapping[str, Role]] = {
        "q.weight": "query",
        "k.weight": "key",
        "v.weight": "value",
        "o.weight": "residual",
    }

    def __init__(
        self,
        shape: Shape,
        *,
        kv_heads: int,
        bias: bool,
        qkv_bias: bool = True,
        key_bias: bool = True,
        output_bias: bool = True,
        own_keys: bool = True,
    ) -> None:
        """Build the projections. Without `own_keys`, the layer has no `k` and `v`, and reads those of another one."""
        super().__init__()
        source = shape.memory_width or shape.width
        self.heads = shape.heads
        self.kv_heads = kv_heads
        self.head_width = shape.head_width
        self.q = nn.Linear(shape.width, shape.heads * shape.head_width, bias=bias and qkv_bias)
        self.own_keys = own_keys
        if own_keys:
            self.k = nn.Linear(source, kv_heads * shape.head_width, bias=bias and qkv_bias and key_bias)
        self.raw_memory = shape.raw_memory
        if shape.raw_memory:
            validate_memory_columns(source, kv_heads)
            return
        if own_keys:
            self.v = nn.Linear(source, kv_heads * shape.head_width, bias=bias and qkv_bias)
        self.o = nn.Linear(shape.heads * shape.head_width, shape.width, bias=bias and output_bias)

    def queries(self, x: Tensor) -> Tensor:
        """Return queries: (B, T, D) -> (B, H, T, K)."""
        return self.split(self.q(x), self.heads)

    def keys(self, x: Tensor) -> Tensor:
        """Return keys: (B, S, D) -> (B, G, S, K)."""
        return self.split(self.k(x), self.kv_heads)

    def values(self, x: Tensor) -> Tensor:
        """Return values: (B, S, D) -> (B, G, S, K)."""
        return split_memory_columns(x, self.kv_heads) if self.raw_memory else self.split(self.v(x), self.kv_heads)

    def split(self, x: Tensor, heads: int) -> Tensor:
        """Return columns split into heads: (B, T, H*K) -> (B, H, T, K)."""
        headed = x.view(*x.shape[:-1], heads, self.head_width)  # (B, T, H*K) -> (B, T, H, K)
        return headed.transpose(-3, -2)

    def merge(self, x: Tensor) -> Tensor:
        """Return the output projection of all heads: (B, H, T, K) -> (B, T, D)."""
        if self.raw_memory:
            return merge_memory_columns(x, self.kv_heads)
        merged: Tensor = self.o(x.transpose(-3, -2).flatten(-2))  # (B, H, T, K) -> (B, T, H*K) -> (B, T, D)
        return merged

    def project(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Return a table as queries and as keys, both with all heads, for biases that read content."""
        if not self.own_keys:
            raise ValueError(
                "expected share_kv to be null with a position that projects its table to keys in each layer"
            )
        return self.queries(table), repeat_heads(self.keys(table), self.heads)

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        """Convert keys and values of another number of key/value heads, for equal query heads."""
        if not isinstance(other, Heads) or (other.heads, other.head_width) != (self.heads, self.head_width):
            return {}
        has_both = self.own_keys and other.own_keys
        projections = {"k": (self.k, other.k)} if has_both and other.kv_heads != self.kv_heads else {}
        if projections and not (self.raw_memory or other.raw_memory):
            projections["v"] = self.v, other.v
        return {
            f"{name}.{kind}": convert_kv_heads(source, target, self.heads, (other.kv_heads, self.kv_heads))
            for name, (module, other_module) in projections.items()
            for kind, target, source in (
                ("weight", module.weight, other_module.weight),
                ("bias", module.bias, other_module.bias),
            )
            if target is not None and source is not None and target.shape[1:] == source.shape[1:]
        }


def convert_kv_heads(source: Tensor, target: Tensor, heads: int, kv_heads: tuple[int, int]) -> ConvertedTensor:
    """Return key/value weights for another number of heads, (G'*K, …) -> (G*K, …): means of groups ("GQA", section
    2.1), or repetitions.

    If neither number divides the other, each head is the mean of the heads that its query heads read.
    """
    old_heads, new_heads = kv_heads
    headed = source.detach().unflatten(0, (old_heads, -1))  # (G', K, …)
    if new_heads % old_heads == 0:
        value, method = (
            headed.repeat_interleave(new_heads // old_heads, 0),
            f"{old_heads} heads repeated to {new_heads}",
        )
    elif old_heads % new_heads == 0:
        value, method = _means(headed, new_heads), f"{old_heads} heads averaged in groups of {old_heads // new_heads}"
    else:
        value = _means(headed.repeat_interleave(heads // old_heads, 0), new_heads)
        method = f"{old_heads} heads averaged into {new_heads} by the query heads that read them"
    return ConvertedTensor(value.flatten(0, 1).view_as(target), method)


def _means(headed: Tensor, groups: int) -> Tensor:
    grouped: Tensor = headed.unflatten(0, (groups, -1))  # mypy takes what `unflatten` gives for anything
    return grouped.mean(1)


def validate_memory_columns(width: int, heads: int) -> None:
    """Raise a ValueError if the heads cannot share the columns of the memory evenly."""
    if width % heads:
        raise ValueError(f"expected a memory width divisible by {heads} heads, got {width}")


def split_memory_columns(x: Tensor, heads: int) -> Tensor:
    """Return a range of columns for each head: (B, S, M) -> (B, G, S, M/G)."""
    headed: Tensor = x.unflatten(-1, (heads, -1))
    return headed.transpose(-3, -2)


def merge_memory_columns(x: Tensor, heads: int) -> Tensor:
    """Concatenate the ranges of columns, averaged over query heads with the same range: (B, H, T, M/G) -> (B, T, M)."""
    if x.shape[1] != heads:
        x = x.unflatten(1, (heads, -1)).mean(2)
    return x.transpose(-3, -2).flatten(-2)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat each key/value head for the query heads that read it: (B, G, S, K) -> (B, H, S, K)."""
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], dim=-3)
