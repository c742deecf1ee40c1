"""Projections of multi-head latent attention: down to latents, and from latents to heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

from torch import Tensor, nn

from paribus import Cost, Role, RootMeanSquare, Shape


@final
class LatentHeads(nn.Module):
    """Projections of multi-head latent attention.

    The projections from a latent to heads have no bias, so that decoding can move them to the other side of a product.
    C is the width of the latents, R the number of rotary channels.
    """

    roles: ClassVar[Mapping[str, Role]] = {
        "q.weight": "query",
        "q_down.weight": "weight",
        "kv_down.weight": "weight",
        "k.weight": "key",
        "v.weight": "value",
        "turned.weight": "key",
        "o.weight": "residual",
    }

    def __init__(self, shape: Shape, kv_rank: int, q_rank: int | None, rotary_width: int, *, bias: bool) -> None:
        super().__init__()
        source, heads, width = shape.memory_width or shape.width, shape.heads, shape.head_width
        self.shape = shape
        self.rotary_width = rotary_width
        self.q_rank, self.kv_rank = q_rank, kv_rank
        if q_rank is not None:
            self.q_down = nn.Linear(shape.width, q_rank, bias=bias)
            self.q_norm = RootMeanSquare(q_rank)
        self.q = nn.Linear(q_rank or shape.width, heads * (width + rotary_width), bias=bias and q_rank is None)
        self.kv_down = nn.Linear(source, kv_rank, bias=bias)
        self.kv_norm = RootMeanSquare(kv_rank)
        self.k = nn.Linear(kv_rank, heads * width, bias=False)
        self.v = nn.Linear(kv_rank, heads * width, bias=False)
        self.turned = nn.Linear(source, rotary_width, bias=bias)
        self.o = nn.Linear(heads * width, shape.width, bias=bias)

    def queries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project queries: (B, T, D) -> (B, H, T, K), and (B, H, T, R) before rotation."""
        latent = x if self.q_rank is None else self.q_norm(self.q_down(x))
        q = self.split(self.q(latent))
        return q[..., : self.shape.head_width], q[..., self.shape.head_width :]

    def latents(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Project latents: (B, S, D) -> (B, S, C), and rotary keys (B, 1, S, R) before rotation."""
        return self.kv_norm(self.kv_down(source)), self.turned(source).unsqueeze(1)

    def keys(self, latents: Tensor) -> Tensor:
        """(B, S, C) -> (B, H, S, K)."""
        return self.split(self.k(latents))

    def values(self, latents: Tensor) -> Tensor:
        """(B, S, C) -> (B, H, S, K)."""
        return self.split(self.v(latents))

    def absorb_key_projection(self, q: Tensor) -> Tensor:
        """Map queries to the latent space, where they score latents instead of keys: (B, H, 1, K) -> (B, H, 1, C)."""
        return q @ self.k.weight.view(self.shape.heads, -1, self.kv_rank)

    def expand_values(self, mixed: Tensor) -> Tensor:
        """Map weighted latents to values: (B, H, 1, C) -> (B, H, 1, K)."""
        return mixed @ self.v.weight.view(self.shape.heads, -1, self.kv_rank).transpose(1, 2)

    def merge(self, x: Tensor) -> Tensor:
        """(B, H, T, K) -> (B, T, D)."""
        merged: Tensor = self.o(x.transpose(1, 2).flatten(-2))
        return merged

    def project(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """Project a table as queries and keys, without rotary channels, for biases that depend on content."""
        return self.queries(table)[0], self.keys(self.kv_norm(self.kv_down(table)))

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H*W) -> (B, H, T, W)."""
        headed = x.view(*x.shape[:-1], self.shape.heads, -1)
        return headed.transpose(-3, -2)

    def cost(self, queries: int, fresh: int) -> Cost:
        """Return the cost of all projections but those from latents to heads; `fresh` tokens become latents."""
        shape = self.shape
        query_width = shape.heads * (shape.head_width + self.rotary_width)
        down_flops = 2 * queries * shape.width * self.q_rank if self.q_rank is not None else 0
        query_flops = down_flops + 2 * queries * (self.q_rank or shape.width) * query_width
        latent_flops = 2 * fresh * (shape.memory_width or shape.width) * (self.kv_rank + self.rotary_width)
        return Cost(flops=query_flops + latent_flops + 2 * queries * shape.heads * shape.head_width * shape.width)
