"""Readout of a recurrent decoder: from state and context to the vectors that are scored."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn


@final
class Readout(nn.Module):
    """Readout from a state, its context and, if the state has not read it yet, the current token.

    maxout: the larger of each two ("Maxout Networks", Goodfellow et al. 2013), as in Bahdanau et al. 2015. tanh: W[c;
    h] of Luong et al. 2015, with W in two parts. (…, K), (…, M), (…, E) -> (…, R).
    """

    def __init__(self, kind: Literal["maxout", "tanh"], width: int, *, state: int, context: int, token: int) -> None:
        super().__init__()
        self.pairs = kind == "maxout"
        inner = 2 * width if self.pairs else width
        self.sizes = state + context + token, inner
        self.state = nn.Linear(state, inner)
        self.context = nn.Linear(context, inner, bias=False)
        self.token = nn.Linear(token, inner, bias=False) if token else None

    def forward(self, state: Tensor, context: Tensor, token: Tensor) -> Tensor:
        """(…, K), (…, M), (…, E) -> (…, R)."""
        total: Tensor = self.state(state) + self.context(context)
        if self.token is not None:
            total = total + self.token(token)
        return total.unflatten(-1, (-1, 2)).amax(-1) if self.pairs else torch.tanh(total)

    def flops(self, tokens: int) -> int:
        input_width, inner = self.sizes
        return 2 * tokens * input_width * inner
