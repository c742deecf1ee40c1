"""Kimi delta attention (`kimi-delta`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import RECURRENCE_TRAITS, AtMost, Attention, AttentionTraits, Context, Cost, Load, Range, Shape, State
from paribus_attention.delta_heads import DeltaHeads
from paribus_attention.recurrence_gates import GatedNorm, SoftplusDecay, weights_of


@final
class KimiDelta(Attention):
    """Kimi delta attention, KDA, a delta rule with a decay for each channel, O(T) (Kimi Team 2025).

    "Kimi Linear: An Expressive, Efficient Attention Architecture". In each head
    S_t = diag(a_t) S_{t-1} + b_t k_t (v_t - S_{t-1}ᵀ diag(a_t) k_t)ᵀ and y_t = S_tᵀ q_t, with b_t = sigmoid(W x_t) and
    a decay for each channel of a key, log a_t = -A softplus(W' x_t + dt), by a map of rank K. Queries and keys have the
    length 1, after a short convolution and SiLU; outputs are divided by their root mean square and multiplied by the
    sigmoid of a map of rank V. The initial A and dt are in equal ratios, not random. Decoding keeps K x V numbers a
    head at any length.
    """

    traits: ClassVar[AttentionTraits] = RECURRENCE_TRAITS

    def __init__(
        self,
        shape: Shape,
        *,
        kernel: Annotated[
            int | None,
            "tokens in the window of the convolution of queries, keys and values; null: none",
            Range(2),
            AtMost("length", "a sequence has no more tokens"),
        ] = 4,
        value_width: Annotated[int | None, "width of the values of a head; null: head width", Range(1)] = None,
        negative_eigenvalues: Annotated[bool, "b is 2 sigmoid(W x), from 0 to 2, in place of 0 to 1"] = False,
    ) -> None:
        super().__init__()
        width = value_width or shape.head_width
        self.heads = DeltaHeads(shape, kernel=kernel, value_width=width, channel_decay=True)
        self.write = nn.Linear(shape.width, shape.heads, bias=False)
        self.largest = 2.0 if negative_eigenvalues else 1.0
        self.decay = SoftplusDecay(shape.width, shape.heads, channels=shape.head_width, rank=shape.head_width)
        self.norm = GatedNorm(shape, width, rank=width, activation="sigmoid")

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = self.heads(x, ctx)
        b = self.largest * self.write(x).sigmoid().transpose(1, 2).unsqueeze(-1)  # (B, H, T, 1)
        log_decay, _ = self.decay(x)
        y = self.heads.recurrence(q, k, v, ctx, log_decay=log_decay, step_size=b)
        return self.heads.merge(self.norm(y, x))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return self.heads.start(batch, like)

    def cost(self, load: Load) -> Cost:
        return self.heads.cost(load) + Cost(2 * load.queries * weights_of(self.write, self.decay, self.norm))
