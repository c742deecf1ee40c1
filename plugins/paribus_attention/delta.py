"""DeltaNet (`delta`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import (
    RECURRENCE_TRAITS,
    AtMost,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Load,
    Range,
    RootMeanSquare,
    Shape,
    State,
)
from paribus_attention.delta_heads import DeltaHeads
from paribus_attention.recurrence_gates import GatedNorm, weights_of


@final
class Delta(Attention):
    """DeltaNet, a linear recurrence that replaces the value of a key, O(T) (Yang et al. 2024).

    "Parallelizing Linear Transformers with the Delta Rule over Sequence Length". In each head
    S_t = S_{t-1} + b_t k_t (v_t - S_{t-1}ᵀ k_t)ᵀ and y_t = S_tᵀ q_t: the state forgets a share b_t = sigmoid(W x_t) of
    what it stores for k_t, and stores as much of v_t. Queries and keys have the length 1, after a short convolution and
    SiLU; outputs are divided by their root mean square. The state maps k_t to (1 - b_t) k_t, so a b_t of up to 2 lets
    it change signs, for state tracking (Grazzi et al. 2024). Decoding keeps K x V numbers a head at any length.
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
        gate: Annotated[bool, "multiply outputs by SiLU of a map of the input"] = False,
    ) -> None:
        super().__init__()
        width = value_width or shape.head_width
        self.heads = DeltaHeads(shape, kernel=kernel, value_width=width)
        self.write = nn.Linear(shape.width, shape.heads, bias=False)
        self.largest = 2.0 if negative_eigenvalues else 1.0
        self.norm = GatedNorm(shape, width) if gate else RootMeanSquare(width)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = self.heads(x, ctx)
        b = self.largest * self.write(x).sigmoid().transpose(1, 2).unsqueeze(-1)  # (B, H, T, 1)
        y = self.heads.recurrence(q, k, v, ctx, step_size=b)
        return self.heads.merge(self.norm(y, x) if isinstance(self.norm, GatedNorm) else self.norm(y))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return self.heads.start(batch, like)

    def cost(self, load: Load) -> Cost:
        return self.heads.cost(load) + Cost(2 * load.queries * weights_of(self.write, self.norm))
