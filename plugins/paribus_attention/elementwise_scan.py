"""Elementwise linear recurrence over tokens, for `qrnn`.

c_t = a_t c_{t-1} + b_t in every channel. Chunks of 64 tokens are solved together by doubling (Hillis & Steele 1986), in
six products of whole tensors instead of 64 steps; the state is then carried from chunk to chunk. Nothing is divided, so
a factor of 0 is exact.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

CHUNK: Final = 64


def scan(factors: Tensor, terms: Tensor, initial: Tensor) -> Tensor:
    """Return all states from the factors a, the terms b and the state before them: 2 x (B, T, K), (B, K) -> (B, T, K).

    They are computed in float32 or wider.
    """
    wide = torch.promote_types(terms.dtype, torch.float32)
    state, states = initial.to(wide), list[Tensor]()
    for chunk_factors, chunk_terms in zip(
        factors.to(wide).split(CHUNK, 1), terms.to(wide).split(CHUNK, 1), strict=True
    ):
        products, sums = _double(chunk_factors, chunk_terms)
        chunk_states = sums + products * state.unsqueeze(1)
        states.append(chunk_states)
        state = chunk_states[:, -1]
    return torch.cat(states, dim=1)


def _double(factors: Tensor, terms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the products of the factors up to each token, and the states from a state of 0."""
    length, step = factors.shape[1], 1
    while step < length:
        terms = terms + factors * functional.pad(terms, (0, 0, step, 0))[:, :length]
        factors = factors * functional.pad(factors, (0, 0, step, 0), value=1.0)[:, :length]
        step *= 2
    return factors, terms
