"""Grouped-query attention (`gqa`)."""

from __future__ import annotations

from typing import Annotated, final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    AtMost,
    Attend,
    Attention,
    Context,
    Cost,
    Divides,
    Heads,
    Load,
    Range,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    softmax_cost,
    visibility_of,
)


@final
class GroupedQuery(Attention):
    """Grouped-query attention (Ainslie et al. 2023).

    "GQA: Training Generalized Multi-Query Transformer Models". Each key/value head serves a group of query heads. With
    `share_kv`, layers share keys and values as well: "Reducing Transformer Key-Value Cache Size with Cross-Layer
    Attention" (CLA, Brandon et al. 2024).
    """

    traits = SOFTMAX_TRAITS

    def __init__(
        self,
        shape: Shape,
        *,
        kv_heads: Annotated[int, "key/value heads", Range(1), Divides("heads")] = 2,
        output_bias: Annotated[bool, "add a bias to the output if `scores.bias` is true (Qwen 2: no)"] = True,
        share_kv: Annotated[
            int | None,
            "successive layers that read the keys and values of the first of them, without `scores.kernel`, "
            "`scores.value_residual` and `scores.value_embedding` (CLA: 2); null: each has its own",
            Range(2),
            AtMost("layers", "no more layers can share"),
        ] = None,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        _validate_sharing(share_kv, shape, scores)
        self.shape = shape
        self.share_kv = share_kv
        self.first = None if share_kv is None or shape.layer is None else shape.layer // share_kv * share_kv
        own_keys = self.first in (None, shape.layer)
        self.heads = Heads(shape, kv_heads=kv_heads, bias=scores.bias, output_bias=output_bias, own_keys=own_keys)
        self.attend = Attend(shape, visibility_of(shape), scores, kv_heads=self.heads.kv_heads)
        if self.attend.normed and not own_keys:
            del self.attend.k_norm  # keys are normalized where they are made

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        if self.share_kv is None:
            return self.heads.merge(self.attend(self.heads, x, ctx))
        k, v = self._shared_keys_and_values(x, ctx)
        q, bias = self.attend.queries(self.heads, x, ctx), self.attend.forget_bias(x, ctx)
        mixed = self.attend.weigh_values(q, k, v, self.heads, ctx, bias=bias)
        return self.heads.merge(self.attend.apply_gate(self.attend.exclude_own_values(mixed, v, ctx), x))

    def _shared_keys_and_values(self, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return keys and values, made here or by the first layer of the group: (B, G, S, K) each."""
        assert ctx.carry is not None, "expected a dictionary for values of early layers"
        rotation = self.attend.plan if "rotate" in self.attend.position.traits["hooks"] else "none"
        origin = f"{self.heads.kv_heads} heads of layer {self.first}, rotation {rotation}"
        key, value = f"keys, {origin}", f"values, {origin}"
        if self.heads.own_keys:
            ctx.carry[key], ctx.carry[value] = self.attend.keys_and_values(self.heads, x, ctx)
        if key not in ctx.carry:
            raise ValueError(
                f"layer {self.shape.layer} (from 0) reads the keys and values of layer {self.first}; expected there "
                f"attention `gqa` with share_kv={self.share_kv}, as many kv_heads, and the same position"
            )
        return ctx.carry[key], ctx.carry[value]

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like) if self.heads.own_keys else {}

    def cost(self, load: Load) -> Cost:
        projected = self.heads.kv_heads if self.heads.own_keys else 0
        return softmax_cost(self.shape, projected, self.attend.visibility, load)


def _validate_sharing(share_kv: int | None, shape: Shape, scores: ScoreOptions) -> None:
    """Reject what layers without keys and values of their own cannot have."""
    if share_kv is None:
        return
    if shape.layer is None or shape.raw_memory:
        reason = (
            "of layers that share all parameters (dims.groups, dims.loops)"
            if shape.layer is None
            else "of a raw memory"
        )
        raise ValueError(f"expected share_kv to be null in an attention {reason}, got {share_kv}")
    for name in ("kernel", "value_residual", "value_embedding"):
        if getattr(scores, name):
            raise ValueError(f"expected share_kv to be null with scores.{name}, got {share_kv}")
