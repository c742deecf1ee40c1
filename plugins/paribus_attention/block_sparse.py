"""Block-sparse attention (`block-sparse`), BigBird's."""

from __future__ import annotations

import random
from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    AtMost,
    Attend,
    Attention,
    AttentionTraits,
    BlockPattern,
    Context,
    Cost,
    Divides,
    Example,
    Heads,
    Load,
    Range,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    key32,
    softmax_cost,
    visibility_of,
)


@final
class BlockSparse(Attention):
    """Block-sparse attention with neighbouring, global and random blocks (Zaheer et al. 2020).

    "Big Bird: Transformers for Longer Sequences", variant ITC. The paper uses blocks of 64 tokens, the adjacent blocks,
    2 global blocks and 3 random blocks, drawn once for each layer. In causal stacks, random blocks are drawn from
    earlier blocks only. Differences from `transformers`: its global blocks are the first and the last, here they are
    the first `global_blocks`; and it draws random blocks for each head.
    """

    traits: ClassVar[AttentionTraits] = {**SOFTMAX_TRAITS, "cross": False}

    def __init__(
        self,
        shape: Shape,
        *,
        block_size: Annotated[
            int, "tokens in a block", Range(1), AtMost("length", "one block of that size is full attention"), Example(2)
        ],
        neighbours: Annotated[int, "adjacent blocks that a block sees on each side", Range(0)] = 1,
        global_blocks: Annotated[int, "leading blocks that see all tokens and are seen by all", Range(0)] = 2,
        random_blocks: Annotated[int, "random blocks that each block sees in addition", Range(0)] = 3,
        seed: Annotated[int, "seed of the random blocks", Range(0)] = 0,
        kv_heads: Annotated[
            int | None, "key/value heads; null: one for each query head", Range(1), Divides("heads")
        ] = None,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=kv_heads or shape.heads, bias=scores.bias)
        count, key = -(-shape.length // block_size), _draw_key(shape, seed)
        drawn_blocks = draw_blocks(
            count, random_blocks, neighbours=neighbours, global_blocks=global_blocks, causal=shape.causal, key=key
        )
        visibility = visibility_of(shape)._replace(
            global_tokens=global_blocks * block_size, blocks=BlockPattern(block_size, neighbours, drawn_blocks)
        )
        self.attend = Attend(shape, visibility, scores, kv_heads=self.heads.kv_heads)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load)


def draw_blocks(
    count: int, limit: int, *, neighbours: int, global_blocks: int, causal: bool, key: int
) -> tuple[tuple[int, ...], ...]:
    """Draw up to `limit` random blocks for each of `count` blocks, without those that the block sees already."""
    rng = random.Random(key)  # not for cryptography; its floats are the same in every Python version
    blocks: list[tuple[int, ...]] = []
    for block in range(count):
        end = block if causal else count
        candidates = (
            []
            if block < global_blocks
            else [candidate for candidate in range(global_blocks, end) if abs(candidate - block) > neighbours]
        )
        chosen = [candidates.pop(int(rng.random() * len(candidates))) for _ in range(min(limit, len(candidates)))]
        blocks.append(tuple(sorted(chosen)))
    return tuple(blocks)


def _draw_key(shape: Shape, seed: int) -> int:
    """Return the key of the random blocks. Layers that share their parameters share the blocks."""
    return key32(seed, "blocks", "shared" if shape.layer is None else shape.layer, shape.length)
