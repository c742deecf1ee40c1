"""What a decoder says of its state and of what it read: the rows that are scored."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn


@final
class Readout(nn.Module):
    """Rows from a state, what it read of the memory and, where the state has not read it yet, the row's own token.

    The largest of each two ("Maxout Networks", Goodfellow et al. 2013), as in Bahdanau et al. 2015; or tanh, which is
    W[c; h] in Luong et al. 2015, with W in two. (…, K), (…, M), (…, E) -> (…, R).
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
        summed: Tensor = self.state(state) + self.context(context)
        if self.token is not None:
            summed = summed + self.token(token)
        return summed.unflatten(-1, (-1, 2)).amax(-1) if self.pairs else torch.tanh(summed)

    def flops(self, rows: int) -> int:
        entering, inner = self.sizes
        return 2 * rows * entering * inner
