"""Slot `position`: position information, given to the model through up to four hooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, Required

from torch import Tensor, nn

from paribus.parts.context import Pair
from paribus.parts.shape import Cost, Load, Shape
from paribus.slots.component import Component, Traits


class PositionTraits(Traits, total=False):
    """Traits of a position."""

    hooks: Required[list[str]]  # methods that it overrides: embed, rotate, bias, mix
    bias: Required[Literal["none", "positions", "content"]]  # inputs of its bias: `content` reads queries and keys
    owner: Required[Literal["stack", "layer"]]  # `stack`: layers share one instance
    distance_bias: bool  # the bias depends on the distance of two positions only
    score_terms: int  # number of score terms that share the scale, if options omit none (DeBERTa: 3); default: 1
    table: bool  # cannot represent positions beyond dims.length
    visibility: Literal["both", "past", "any"]  # positions that a token of the body must see; default: any


class Position(Component, nn.Module, ABC):
    """Position encoding. A variant overrides one or more of four hooks; every other hook is the identity.

    - `embed` adds to the embeddings before the first layer (sinusoidal, learned);
    - `rotate` rotates queries and keys by tables that are made once per forward pass (RoPE, xPos);
    - `bias` returns a term of the scaled scores, for any block of queries and keys (ALiBi, T5, disentangled);
    - `mix` returns a term of the output, computed from the attention weights (Shaw); eager kernel only.

    The trait `hooks` lists the overridden hooks, and `owner` says whether the layers of a stack share one instance. A
    shared position may have a module for each layer (`layer_part`), such as projections beside a shared table.
    Positions may be any integers: padding continues the numbering, so a table must clamp.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape",)
    traits: ClassVar[PositionTraits] = {"hooks": [], "bias": "none", "owner": "stack"}
    class_specific: ClassVar[bool] = True  # a table of positions is not one of distances

    def layer_part(self, shape: Shape) -> nn.Module | None:
        """Return the module that one layer of this shape has for itself, or None; hooks read it from the pair."""
        return None

    def score_terms(self) -> int:
        """Return the number of terms that a score is the sum of; the scale is divided by its square root."""
        return self.traits.get("score_terms", 1)

    def uses_mix(self) -> bool:
        """Return whether `mix` is called; an option may switch off what the trait declares."""
        return "mix" in self.traits["hooks"]

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return the embeddings plus positions: (B, T, E), (B|1, T) -> (B, T, E), with E = `shape.embedding_width`."""
        return x

    def tables(self, positions: Tensor, width: int) -> Any:
        """Return the tables that `rotate` reads for these positions; `width` is the number of columns to rotate."""
        return None

    def rotate(self, x: Tensor, tables: Any, side: Literal["query", "key"]) -> Tensor:
        """Return rotated queries or keys: (B, H, T, K) -> (B, H, T, K)."""
        return x

    def bias(self, pair: Pair) -> Tensor:
        """Return the score term, (B|1, H, T, S), for all pairs or one block of them.

        A bias that reads content receives all keys of its queries, and in `pair.visible` which of them each one sees.
        """
        raise NotImplementedError  # called only if the traits declare a bias

    def mix(self, weights: Tensor, pair: Pair) -> Tensor | None:
        """Return the term that is added to the output, (B, H, T, K), given the weights (B, H, T, S), or None."""
        return None

    def cost(self, load: Load) -> Cost:
        """Return the cost of `bias` and `mix` in one layer, or once for all layers if the bias reads positions only.

        Rotations and additions are not matrix products, and count as none.
        """
        return Cost()

    @abstractmethod
    def position_limit(self) -> int | None:
        """Return the first position that cannot be represented, or None if there is no limit."""
