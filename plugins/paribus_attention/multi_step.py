"""Multi-step attention (`multi-step`), ConvS2S's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple, final

import torch
from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Load,
    Role,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    softmax_cost,
    visibility_of,
)

HALF: Final = math.sqrt(0.5)  # keeps the variance of a sum of two


@final
class MultiStep(Attention):
    """Multi-step attention, which reads embedded tokens beside hidden states (Gehring et al. 2017).

    "Convolutional Sequence to Sequence Learning", section 3.3. The query of h is √½ (W h + b + g), with g the embedded
    token at its position; keys are the memory's hidden states z, unprojected, and values √½ (z + e), with e their
    embedded tokens. The result is multiplied by the root of the number of visible keys (section 3.5), and there is no
    output projection. Head i reads the i-th slice of the channels; the paper has one head, and scores without a scale
    (`scores.scaled: false`). In self-attention, keys and values are those of the own tokens.

    The factors √½ are those of the authors' code, which also projects the result.
    """

    traits: ClassVar[AttentionTraits] = {
        **SOFTMAX_TRAITS,
        "position_hooks": ["rotate", "bias", "mix"],
        "extra_queries": False,
        "raw_memory": False,
        "separate_inputs": False,
        "needs": ["inputs"],
    }
    roles: ClassVar[Mapping[str, Role]] = {"q.weight": "query"}

    def __init__(self, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
        super().__init__()
        self.shape = shape
        widths = (shape.width, shape.memory_width or shape.width)
        if set(widths) != {shape.heads * shape.head_width}:
            raise ValueError(
                "nothing but queries is projected, so queries and memory must be as wide as heads * head_width = "
                f"{shape.heads * shape.head_width}, got {widths[0]} and {widths[1]}"
            )
        self.q = nn.Linear(shape.width, shape.width, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        own = ctx.inputs
        other = own if ctx.memory is None else ctx.memory_inputs
        if own is None or other is None:
            raise ValueError("expected the embedded tokens in the context, as a `Stack` gives them")
        y = self.attend(_Projections(self, own, other), x, ctx)
        merged: Tensor = y.transpose(-3, -2).flatten(-2)
        return merged * self._root_of_keys(ctx, y.dtype)

    def _root_of_keys(self, ctx: Context, dtype: torch.dtype) -> Tensor | float:
        """Return the root of the number of keys that each query sees, (B|1, T, 1)."""
        visible = ctx.mask(self.attend.visibility)  # (B|1, 1, T|1, S)
        if visible is None:
            return math.sqrt(ctx.key_layout.positions.shape[-1])
        return visible.sum(-1, dtype=dtype).sqrt().transpose(1, 2)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.shape.heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        shape = self.shape
        plain = softmax_cost(shape, shape.heads, self.attend.visibility, load)
        fresh = min(load.queries, load.keys) if shape.memory_width is None else load.memory
        saved = (4 * fresh + 2 * load.queries) * shape.width**2  # keys, values and outputs are not projected
        return plain._replace(flops=plain.flops - saved)


class _Projections(NamedTuple):
    """Queries, keys and values of one pass."""

    attention: MultiStep
    inputs: Tensor  # (B, T, D): embedded tokens of the queries
    source_inputs: Tensor  # (B, S, D): embedded tokens of the keys

    def queries(self, x: Tensor) -> Tensor:
        return self._split(HALF * (self.attention.q(x) + self.inputs))

    def keys(self, x: Tensor) -> Tensor:
        return self._split(x)

    def values(self, x: Tensor) -> Tensor:
        return self._split(HALF * (x + self.source_inputs))

    def project(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Return a table as queries and as keys, for positions that read content; the traits exclude these."""
        return self._split(self.attention.q(table)), self._split(table)

    def _split(self, x: Tensor) -> Tensor:
        """(B, T, H*K) -> (B, H, T, K)."""
        shape = self.attention.shape
        headed: Tensor = x.unflatten(-1, (shape.heads, shape.head_width))
        return headed.transpose(-3, -2)
