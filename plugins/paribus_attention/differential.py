"""Differential attention (`differential`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Divides,
    Heads,
    Load,
    Range,
    Role,
    RootMeanSquare,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    softmax_cost,
    visibility_of,
)


@final
class Differential(Attention):
    """Differential attention, the difference of two softmaxes (Ye et al. 2024).

    "Differential Transformer". Heads come in pairs, h and h + H/2, whose values have double width, so that the number
    of parameters equals that of multi-head attention. A pair computes (softmax(q1 k1) - lambda softmax(q2 k2)) [v1;
    v2], divides it by its root mean square and multiplies it by 1 - lambda_init.

    lambda = exp(lq1 lk1) - exp(lq2 lk2) + lambda_init, with lambda_init = 0.8 - 0.6 exp(-0.3 l) in layer l, counted
    from 0. The vectors lq and lk are initialised like any matrix; the paper draws them from N(0, 0.1²). The reported
    attention weights are those of the H/2 pairs, softmax - lambda softmax; the weights of a query sum to 1 - lambda.
    """

    traits: ClassVar[AttentionTraits] = {
        **SOFTMAX_TRAITS,
        "position_hooks": ["rotate", "bias", "read"],
        "raw_memory": False,
        "normalized": False,
        "needs": ["layer"],
    }
    roles: ClassVar[Mapping[str, Role]] = {"lambda_q": "weight", "lambda_k": "weight"}

    def __init__(
        self,
        shape: Shape,
        *,
        kv_heads: Annotated[
            int | None, "key/value heads, an even number; null: one for each query head", Range(2), Divides("heads")
        ] = None,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        groups = kv_heads or shape.heads
        if shape.heads % 2 or groups % 2:
            raise ValueError(f"expected even numbers of heads and kv_heads, got {shape.heads} and {groups}")
        assert shape.layer is not None, "validation rejects layers that share parameters"
        self.shape = shape
        self.heads = Heads(shape, kv_heads=groups, bias=scores.bias)
        self.attend = Attend(shape, visibility_of(shape), scores, kv_heads=self.heads.kv_heads)
        self.lambda_q, self.lambda_k = (nn.Parameter(torch.empty(2, shape.head_width)) for _ in "qk")
        self.norm = RootMeanSquare(2 * shape.head_width, eps=1e-5)
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * shape.layer)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q = self.attend.queries(self.heads, x, ctx)
        k, v = self.attend.keys_and_values(self.heads, x, ctx)  # (B, G, S, K)
        bias = self.attend.forget_bias(x, ctx)
        # One call for each half of the values: fused kernels need values as wide as keys.
        halves = [
            self.attend.weigh_values(q, k, half.repeat(1, 2, 1, 1), self.heads, ctx, bias=bias)
            for half in v.chunk(2, dim=1)
        ]
        first_mix, second_mix = torch.cat(halves, dim=-1).chunk(2, dim=1)  # (B, H/2, T, 2K)
        factor = self.lambda_value()
        if ctx.captured is not None:
            first_weights, second_weights = ctx.captured["weights"].chunk(2, dim=1)
            ctx.captured["weights"] = first_weights - factor * second_weights  # (B, H/2, T, S)
        if ctx.captured_heads is not None:
            ctx.captured_heads["v"] = v  # both halves
        if self.attend.exclusive:  # before the difference, whose rounding errors the norm would enlarge
            both_values = torch.cat(v.chunk(2, dim=1), dim=-1)  # (B, G/2, S, 2K)
            first_mix, second_mix = (
                self.attend.exclude_own_values(mix, both_values, ctx) for mix in (first_mix, second_mix)
            )
        pairs = self.norm(first_mix - factor * second_mix) * (1 - self.lambda_init)
        return self.heads.merge(self.attend.apply_gate(pairs, x))

    def lambda_value(self) -> Tensor:
        """Return lambda, the factor of the second softmax."""
        powers = (self.lambda_q * self.lambda_k).sum(-1).exp()  # (2,)
        return powers[0] - powers[1] + self.lambda_init

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        keys = load.keys if self.shape.memory_width is None else load.memory
        second_value_flops = 4 * load.queries * keys * self.shape.heads * self.shape.head_width
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load) + Cost(
            flops=second_value_flops
        )
