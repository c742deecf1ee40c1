"""The attention `block-sparse`."""

from __future__ import annotations

import random
from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import (
    SOFTMAX_TRAITS,
    AtMost,
    Attend,
    Attention,
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
    Traits,
    empty_cache,
    key32,
    softmax_cost,
    visibility_of,
)


@final
class BlockSparse(Attention):
    """Blocks of rows see their neighbours, the first blocks, and some drawn at random: "Big Bird" (Zaheer et al. 2020).

    The variant ITC, whose paper has blocks of 64: those next to a block's own, 2 that see all and are seen by all, and
    3 drawn once for each layer from all others; causal, from those before. `transformers` differs in that it has the
    first and the last block global where here it is the first `first`, and in that it draws for each head.
    """

    traits: ClassVar[Traits] = {**SOFTMAX_TRAITS, "cross": False}

    def __init__(
        self,
        shape: Shape,
        *,
        size: Annotated[int, "rows of a block", Range(1), AtMost("length", "that equals full attention"), Example(2)],
        near: Annotated[int, "neighbours that a block sees to each side", Range(0)] = 1,
        first: Annotated[int, "so many first blocks see all, and all see them", Range(0)] = 2,
        drawn: Annotated[int, "other blocks that each sees", Range(0)] = 3,
        seed: Annotated[int, "another seed draws other blocks", Range(0)] = 0,
        kv_heads: Annotated[
            int | None, "key/value heads; null: one for each query head", Range(1), Divides("heads")
        ] = None,
        scores: ScoreOptions = ScoreOptions(),
    ) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=kv_heads or shape.heads, bias=scores.bias)
        count, key = -(-shape.length // size), _key(shape, seed)
        others = draw(count, drawn, near=near, first=first, causal=shape.causal, key=key)
        sight = visibility_of(shape)._replace(first=first * size, blocks=BlockPattern(size, near, others))
        self.attend = Attend(shape, sight, scores)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, self.heads.kv_heads, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.sight, load)


def draw(count: int, most: int, *, near: int, first: int, causal: bool, key: int) -> tuple[tuple[int, ...], ...]:
    """For each of `count` blocks up to `most` others, none of which it sees already; the first see all as it is."""
    numbers = random.Random(key)  # nothing here is a secret, and its floats are the same in every Python
    drawn: list[tuple[int, ...]] = []
    for block in range(count):
        end = block if causal else count
        unseen = [] if block < first else [other for other in range(first, end) if abs(other - block) > near]
        taken = [unseen.pop(int(numbers.random() * len(unseen))) for _ in range(min(most, len(unseen)))]
        drawn.append(tuple(sorted(taken)))
    return tuple(drawn)


def _key(shape: Shape, seed: int) -> int:
    """Layers that share their parameters share what is drawn."""
    return key32(seed, "blocks", "shared" if shape.layer is None else shape.layer, shape.length)
