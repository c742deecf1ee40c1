"""Forget gates of softmax attention: a bias of scores that sums over the tokens between query and key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus.parts.batch import PADDING, TokenLayout
from paribus.parts.chunked_loss import at_least_float32
from paribus.parts.context import Context, State
from paribus.parts.shape import Cost, Load, Role, Shape


@final
class ForgetGates(nn.Module):
    """Forget gates, a sigmoid of the layer's input for each head: "Forgetting Transformer" (Lin et al. 2025).

    To the score of a query and a key, the logarithms of the gates of the tokens from after the key to the query are
    added. In bidirectional stacks keys ahead are forgotten like keys behind.
    """

    roles: ClassVar[Mapping[str, Role]] = {"score.weight": "weight"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.score = nn.Linear(shape.width, shape.heads)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """Return the bias of each query and key, at least in float32: (B, T, D) -> (B, H, T, S)."""
        gates = functional.logsigmoid(at_least_float32(self.score(x))).transpose(1, 2)  # (B, H, T)
        end = ctx.key_layout.positions.shape[-1]
        of_keys, extra = gates.split([end - ctx.past, x.shape[1] - end + ctx.past], dim=-1)
        if ctx.state is not None:
            ctx.state["log_forget"][:, :, ctx.past : end] = of_keys
            of_keys = ctx.state["log_forget"][:, :, :end]
        sums, extra_sums = sums_in_order(of_keys, extra, ctx.key_layout, ctx.layout)
        own = torch.cat([sums[..., ctx.past :], extra_sums], dim=-1) if extra.shape[-1] else sums[..., ctx.past :]
        return (own.unsqueeze(-1) - sums.unsqueeze(-2)).abs().neg()

    def start(self, batch: int, length: int, like: Tensor) -> State:
        """Return the decoding state for `length` positions."""
        return {"log_forget": at_least_float32(like.new_zeros(batch, self.heads, length))}

    def cost(self, load: Load) -> Cost:
        """Return the cost of the gates of one sequence."""
        return Cost(2 * load.queries * self.score.weight.numel(), state=self.heads * load.keys)


def sums_in_order(gates: Tensor, extra: Tensor, keys: TokenLayout, queries: TokenLayout) -> tuple[Tensor, Tensor]:
    """Return sums up to each key, and for queries after the last key: (B, H, S), (B, H, E) -> the same.

    The difference of two tokens of a document is the sum between them, without padding. The sum of an extra query has
    its own value in place of that of the key with which it shares its place, which it may not see.
    """
    if keys.documents is not None:
        gates = gates.masked_fill((keys.documents == PADDING).unsqueeze(1), 0.0)
    count = extra.shape[-1]
    if queries.order is None and not count:
        return running_sums(gates), extra
    first = queries.positions.shape[-1] - count
    # Extra queries come first, so that a stable sort has them before the key of the same place.
    index = _join(_places(queries)[:, first:], _places(keys)).argsort(dim=-1, stable=True)
    if keys.documents is not None:
        assert queries.documents is not None, "expected documents of queries and keys"
        documents = _join(queries.documents[:, first:], keys.documents)
        index = index.expand(max(len(index), len(documents)), -1)
        documents = documents.expand(len(index), -1).gather(-1, index)
        index = index.gather(-1, documents.argsort(dim=-1, stable=True))
    index = index.unsqueeze(1)  # (B|1, 1, E + S)
    values = torch.cat([torch.zeros_like(extra), gates], dim=-1)
    sums = running_sums(values.gather(-1, index.expand_as(values)))
    sums = sums.gather(-1, index.argsort(dim=-1).expand_as(sums))
    return sums[..., count:], sums[..., :count] + extra


def _places(layout: TokenLayout) -> Tensor:
    """Return a number for each token that grows in the order of its document: (B|1, T)."""
    return layout.positions if layout.order is None else layout.order


def _join(first: Tensor, second: Tensor) -> Tensor:
    batch = max(len(first), len(second))
    return torch.cat([first.expand(batch, -1), second.expand(batch, -1)], dim=1)


def running_sums(x: Tensor) -> Tensor:
    """Return the sums of the first one, two … values of each row: (…, S) -> (…, S).

    On CUDA, `cumsum` is an error where only deterministic operations are allowed; there, sums are doubled in length.
    """
    if x.device.type == "cpu" or not torch.are_deterministic_algorithms_enabled():
        return x.cumsum(-1)
    return doubled_sums(x)


def doubled_sums(x: Tensor) -> Tensor:
    """Return the same as `running_sums`, in as many steps as the logarithm of the length."""
    size = 1
    while size < x.shape[-1]:
        x = x + functional.pad(x, (size, 0))[..., : x.shape[-1]]
        size *= 2
    return x
