"""Mixture of block attention (`moba`): each query chooses blocks of keys by their means."""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from paribus import (
    SOFTMAX_TRAITS,
    AtMost,
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Divides,
    Example,
    Heads,
    Load,
    Range,
    ScoreFunctions,
    ScoreOptions,
    Shape,
    State,
    Visibility,
    at_least_float32,
    empty_cache,
    softmax_cost,
    visibility_of,
)
from paribus_attention.documents import number_documents

DOCUMENT = 1 << 32  # more than the number of blocks of a document


@final
class MixtureOfBlockAttention(Attention):
    """Mixture of block attention, MoBA, with keys in blocks that each query chooses (Lu et al. 2025).

    "MoBA: Mixture of Block Attention for Long-Context LLMs". A query reads its own block and the `top` other blocks
    with the largest products of the query and the mean of the block's keys, in causal stacks of those before its own.
    The paper counts the own block as one of its k. Blocks start with the document. The choice has no parameters and no
    gradient, and differs between heads. All scores are computed here; the cost counts those of the chosen blocks and
    the means, which a kernel of blocks needs.
    """

    traits: ClassVar[AttentionTraits] = {
        **SOFTMAX_TRAITS,
        "cross": False,
        "order": False,
        "extra_queries": False,
        "raw_memory": False,
    }

    def __init__(
        self,
        shape: Shape,
        *,
        block_size: Annotated[
            int, "tokens in a block", Range(1), AtMost("length", "one block of that size is full attention"), Example(2)
        ],
        top: Annotated[int, "blocks that each query reads beside its own", Range(1)] = 2,
        kv_heads: Annotated[
            int | None, "key/value heads; null: one for each query head", Range(1), Divides("heads")
        ] = None,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.block_size = block_size
        self.top = top
        self.heads = Heads(shape, kv_heads=kv_heads or shape.heads, bias=scores.bias)
        visibility = visibility_of(shape)._replace(chosen=(top + 1) * block_size)
        self.attend = Attend(shape, visibility, scores, scored=True, kv_heads=self.heads.kv_heads)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        blocks = blocks_of(ctx, self.attend.visibility.causal, self.block_size)
        is_read = torch.empty(0)

        def compare(q: Tensor, k: Tensor, scale: float) -> Tensor:
            nonlocal is_read
            is_read = choose(q, k, blocks, self.top)
            return q @ k.transpose(-1, -2) * scale

        def hide(scores: Tensor) -> Tensor:  # after biases and the soft cap, which would change a hidden score
            return scores.masked_fill(~is_read, torch.finfo(scores.dtype).min)

        return self.heads.merge(self.attend(self.heads, x, ctx, ScoreFunctions(compare, hide)))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        blocks = -(-load.keys // self.block_size)
        means = Cost(2 * load.queries * blocks * self.shape.heads * self.shape.head_width)
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load) + means


class Blocks(NamedTuple):
    """Blocks of keys, numbered from 0 to N - 1; some numbers may be unused."""

    of_keys: Tensor  # (B|1, S): number of each key's block
    members: Tensor  # (B|1, S, N) bool
    is_own: Tensor  # (B|1, T, N) bool: blocks of the queries
    is_complete: Tensor  # (B|1, T|1, N) bool: blocks of which a query sees all keys


def blocks_of(ctx: Context, causal: bool, size: int) -> Blocks:
    """Return the blocks of the keys, each in one document. Without documents, a block is a range of indices."""
    layout = ctx.key_layout
    length = layout.positions.shape[-1]
    if layout.documents is None:
        of_keys, count = (torch.arange(length, device=layout.positions.device) // size).unsqueeze(0), -(-length // size)
    else:
        in_document = torch.div(layout.positions, size, rounding_mode="floor")
        _, of_keys = number_documents(None, layout.documents * DOCUMENT + in_document)
        count = length + 1
    members = functional.one_hot(of_keys, count).bool()
    visible = ctx.mask(Visibility(causal=causal))
    hidden = torch.zeros_like(members[:, :1]) if visible is None else hidden_members(~visible.squeeze(1), members)
    return Blocks(of_keys, members, members[:, ctx.past :], members.any(1, keepdim=True) & ~hidden)


def hidden_members(hidden: Tensor, members: Tensor) -> Tensor:
    """Return which blocks have a key that a query does not see: (B|1, T, S), (B|1, S, N) -> (B|1, T, N)."""
    return hidden.float() @ members.float() > 0


@torch.no_grad()
def choose(q: Tensor, k: Tensor, blocks: Blocks, top: int) -> Tensor:
    """Return the keys that each query reads: (B, H, T, K), (B, H, S, K) -> (B, H, T, S) bool."""
    wide = at_least_float32(k)
    members = blocks.members.to(wide.dtype)
    shares = (members / members.sum(1, keepdim=True).clamp(min=1)).mT.unsqueeze(1)  # (B|1, 1, N, S)
    scores = at_least_float32(q) @ (shares @ wide).mT  # (B, H, T, N)
    is_open = (blocks.is_complete & ~blocks.is_own).unsqueeze(1)
    best = scores.masked_fill(~is_open, float("-inf")).topk(min(top, scores.shape[-1]), sorted=False).indices
    is_chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, value=True) & is_open
    is_chosen = is_chosen | blocks.is_own.unsqueeze(1)
    return is_chosen.gather(-1, blocks.of_keys[:, None, None].expand(*scores.shape[:3], -1))
