"""DeltaProduct (`delta-product`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import RECURRENCE_TRAITS, AtMost, Attention, AttentionTraits, Context, Cost, Load, Range, Shape, State
from paribus_attention.delta_heads import DeltaHeads
from paribus_attention.recurrence_gates import GatedNorm, SoftplusDecay, weights_of


@final
class DeltaProduct(Attention):
    """DeltaProduct, several steps of a delta rule for each token, O(T) (Siems et al. 2025).

    "DeltaProduct: Improving State-Tracking in Linear RNNs via Householder Products". A token has `writes` keys, values
    and step sizes, and writes them one after another as DeltaNet does; y_t = S_tᵀ q_t reads the state after the last.
    The state is multiplied by a product of generalised Householder matrices, a richer class than one of them. With
    `decay`, the state decays before the first write, as in Gated DeltaNet. All else is as in Gated DeltaNet; one write
    and a decay are Gated DeltaNet. Decoding keeps K x V numbers a head at any length.
    """

    traits: ClassVar[AttentionTraits] = RECURRENCE_TRAITS

    def __init__(
        self,
        shape: Shape,
        *,
        writes: Annotated[int, "steps of the delta rule for each token", Range(1)] = 2,
        kernel: Annotated[
            int | None,
            "tokens in the window of the convolution of queries, keys and values; null: none",
            Range(2),
            AtMost("length", "a sequence has no more tokens"),
        ] = 4,
        negative_eigenvalues: Annotated[bool, "step sizes are 2 sigmoid(W x), from 0 to 2, in place of 0 to 1"] = True,
        decay: Annotated[bool, "multiply the state by a decay before the first write of a token"] = False,
    ) -> None:
        super().__init__()
        self.writes = writes
        self.heads = DeltaHeads(shape, kernel=kernel, value_width=shape.head_width, writes=writes)
        self.write = nn.Linear(shape.width, writes * shape.heads, bias=False)
        self.largest = 2.0 if negative_eigenvalues else 1.0
        self.decay = SoftplusDecay(shape.width, shape.heads) if decay else None
        self.norm = GatedNorm(shape, shape.head_width)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = self.heads(x, ctx)
        b = self.largest * self.write(x).sigmoid().unflatten(-1, (self.writes, -1)).flatten(1, 2)
        log_decay = None if self.decay is None else self.decay(x)[0]
        b = b.transpose(1, 2).unsqueeze(-1)  # (B, H, T * W, 1)
        y = self.heads.recurrence(q, k, v, ctx, log_decay=log_decay, step_size=b)
        return self.heads.merge(self.norm(y, x))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return self.heads.start(batch, like)

    def cost(self, load: Load) -> Cost:
        gates = [self.write, self.norm] if self.decay is None else [self.write, self.norm, self.decay]
        return self.heads.cost(load) + Cost(2 * load.queries * weights_of(*gates))
