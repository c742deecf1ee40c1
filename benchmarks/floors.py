"""Three hand-written models with no replaceable parts, with which assembled models are compared.

Each implements its paper's equations in plain PyTorch, with the same mathematics as the assembled model: separate
projections for queries, keys and values, the same norms, and the same head on the same tokens. Weights are copied, so
the two losses must be equal; otherwise a ratio of times would mean nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus.parts.batch import Batch

IGNORED = -100


@final
class EncoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); rotary positions (Su et al. 2021)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_attention, self.norm_feedforward = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.norm_attention(x)
        q = rotated(split(self.q(h), self.heads), cos, sin)
        k = rotated(split(self.k(h), self.heads), cos, sin)
        v = split(self.v(h), self.heads)
        x = x + self.o(merge(functional.scaled_dot_product_attention(q, k, v)))
        h = self.norm_feedforward(x)
        fed: Tensor = self.outer(functional.gelu(self.inner(h)))
        return x + fed


@final
class Encoder(nn.Module):
    """A pre-norm encoder that predicts masked tokens, only at their positions: "BERT" (Devlin et al. 2019)."""

    def __init__(self, width: int, layers: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.dense = nn.Linear(width, width)
        self.dense_norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        cos, sin = rotary(length, width // heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        tokens, targets = batch.streams["body"].tokens, batch.targets["mlm"]
        x = self.tokens(tokens) * self.scale
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        x = self.norm(x)
        pick = targets["pick"].unsqueeze(-1).expand(-1, -1, x.shape[-1])
        h = self.dense_norm(functional.gelu(self.dense(x.gather(1, pick))))
        logits = functional.linear(h, self.tokens.weight, self.bias)
        return functional.cross_entropy(logits.flatten(0, 1), targets["labels"].flatten(), ignore_index=IGNORED)


@final
class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); causal."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_attention, self.norm_feedforward = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm_attention(x)
        q, k, v = (split(project(h), self.heads) for project in (self.q, self.k, self.v))
        x = x + self.o(merge(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
        h = self.norm_feedforward(x)
        fed: Tensor = self.outer(functional.gelu(self.inner(h), approximate="tanh"))
        return x + fed


@final
class Decoder(nn.Module):
    """GPT-2: "Language Models are Unsupervised Multitask Learners" (Radford et al. 2019)."""

    def __init__(self, width: int, layers: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, batch: Batch) -> Tensor:
        tokens = batch.streams["body"].tokens
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        logits, labels = functional.linear(self.norm(x), self.tokens.weight), batch.targets["clm"]["labels"]
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


@final
class CrossLayer(nn.Module):
    """Self-attention, optional cross-attention, and a ReLU network, with an RMS norm before each."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.norm_attention, self.norm_feedforward = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        if causal:
            self.cross_q, self.cross_k, self.cross_v, self.cross_o = (nn.Linear(width, width) for _ in range(4))
            self.norm_cross = nn.RMSNorm(width, 1e-6)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        h = self.norm_attention(x)
        q, k, v = (split(project(h), self.heads) for project in (self.q, self.k, self.v))
        x = x + self.o(merge(functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)))
        if memory is not None:
            q = split(self.cross_q(self.norm_cross(x)), self.heads)
            k, v = split(self.cross_k(memory), self.heads), split(self.cross_v(memory), self.heads)
            x = x + self.cross_o(merge(functional.scaled_dot_product_attention(q, k, v)))
        fed: Tensor = self.outer(functional.relu(self.inner(self.norm_feedforward(x))))
        return x + fed


@final
class EncoderDecoder(nn.Module):
    """The first Transformer (Vaswani et al. 2017) in pre-norm, on T5's span corruption."""

    def __init__(self, width: int, layers: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(CrossLayer(width, heads, causal=False) for _ in range(layers))
        self.encoder_norm = nn.RMSNorm(width, 1e-6)
        self.layers = nn.ModuleList(CrossLayer(width, heads, causal=True) for _ in range(layers))
        self.norm = nn.RMSNorm(width, 1e-6)
        self.waves: Tensor
        self.register_buffer("waves", sinusoids(length, width), persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        memory = self.embed(batch.streams["encoder"].tokens)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.encoder_norm(memory)
        x = self.embed(batch.streams["body"].tokens)
        for layer in self.layers:
            x = layer(x, memory)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        labels = batch.targets["span-corruption"]["labels"]
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)

    def embed(self, tokens: Tensor) -> Tensor:
        rows: Tensor = self.tokens(tokens) + self.waves[: tokens.shape[1]]
        return rows


def every_position(batch: Batch) -> Tensor:
    """Return the labels of masked-token prediction at every position: (B, T)."""
    targets = batch.targets["mlm"]
    return torch.full_like(batch.streams["body"].tokens, IGNORED).scatter(1, targets["pick"], targets["labels"])


def split(x: Tensor, heads: int) -> Tensor:
    """(B, T, D) -> (B, H, T, K)."""
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """(B, H, T, K) -> (B, T, D)."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, H, T, K) -> (B, H, T, K)."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def rotary(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines of all angles, (T, K) each; columns at a distance of K/2 are rotated together."""
    rates = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
    cos, sin = angles.cos().float(), angles.sin().float()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def sinusoids(length: int, width: int) -> Tensor:
    """(T, D): sines in the even columns, cosines in the odd ones."""
    rates = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2).float()


_NAMES = (  # patterns in names of the assembled model's tensors, and replacements
    (r"^embedding\.", ""),
    (r"^body\.position\.0\.table\.", "positions."),
    (r"^body\.", ""),
    (r"^encoder\.layers\.", "encoder."),
    (r"^encoder\.norm\.", "encoder_norm."),
    (r"\.placement\.norms\.", ".norm_"),
    (r"\.attention\.heads\.", "."),
    (r"\.cross\.heads\.", ".cross_"),
    (r"\.feedforward\.", "."),
    (r"^objectives\.mlm\.norm\.", "dense_norm."),
    (r"^objectives\.mlm\.", ""),
)


def copy_weights(tensors: Mapping[str, Tensor], floor: nn.Module) -> dict[str, str]:
    """Copy all weights of an assembled model to a floor, and return the names of its tensors."""
    names = {name: renamed(name) for name in tensors}
    floor.load_state_dict({names[name]: tensor for name, tensor in tensors.items()}, strict=True)
    return names


def renamed(name: str) -> str:
    for pattern, new in _NAMES:
        name = re.sub(pattern, new, name)
    return name
