# attention random-features | mistake: the random projection is drawn again in every forward pass, from torch's global generator | property: a forward pass is deterministic and reads no global generator (evaluation is noisy)
"""Random-feature attention, for encoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import Attention, AttentionTraits, Context, Cost, Heads, Load, Range, Shape, State, hookimpl


@final
class RandomFeatures(Attention):
    """Softmax attention, approximated by positive random features: "Rethinking Attention with Performers"
    (Choromanski et al. 2021).
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": False,
        "cross": False,
        "documents": False,
        "padding": True,
        "order": False,
        "residual": True,
        "weights": False,
        "decodes": False,
    }

    def __init__(self, shape: Shape, *, features: Annotated[int, "random features", Range(1)] = 32) -> None:
        super().__init__()
        self.shape, self.features = shape, features
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        v = self.heads.values(x)
        directions = torch.randn(self.shape.head_width, self.features, dtype=v.dtype, device=v.device)
        q, k = self.phi(self.heads.queries(x), directions), self.phi(self.heads.keys(x), directions)
        if ctx.layout.documents is not None:
            k = k * (ctx.layout.documents >= 0)[:, None, :, None]
        total = q @ k.sum(-2).unsqueeze(-1)  # (B, H, T, 1)
        return self.heads.merge(q @ (k.transpose(-1, -2) @ v) / (total + 1e-6))

    def phi(self, x: Tensor, directions: Tensor) -> Tensor:
        """(B, H, T, K), (K, F) -> (B, H, T, F)."""
        x = x * self.shape.head_width**-0.25
        return torch.exp(x @ directions - x.square().sum(-1, keepdim=True) / 2) * self.features**-0.5

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        inner = self.shape.heads * self.shape.head_width
        projections = 8 * load.queries * self.shape.width * inner
        products = 8 * load.queries * inner * self.features  # two maps, sums of keys and values, their readout
        return Cost(projections + products + 2 * load.queries * self.shape.heads * self.features)


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"random-features": RandomFeatures}
