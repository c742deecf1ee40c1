"""The slot `position`: where a row is, told to the model in up to four moments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from paribus.parts.context import Pair
from paribus.parts.shape import Shape
from paribus.slots.component import Component, Cost, Load, Traits


class PositionTraits(Traits, total=False):
    """Traits of a position. `hooks`, `bias` and `owner` are always given."""

    hooks: list[str]  # methods that it overrides: embed, rotate, bias, mix
    bias: Literal["none", "positions", "content"]  # inputs of its bias: `content` reads queries and keys
    owner: Literal["stack", "layer"]  # `stack`: layers share one instance
    distance_bias: bool  # the bias depends on the distance of two positions only
    score_terms: int  # number of score terms that share the scale, if options omit none (DeBERTa: 3); default: 1
    table: bool  # cannot represent positions beyond dims.length
    visibility: Literal["both", "past", "any"]  # positions that a token of the body must see; default: any


class Position(Component, nn.Module, ABC):
    """Tells rows apart by where they are. Each moment is the identity unless overridden; `traits` say which are:

    - `embed` adds to the rows before the first layer (sinusoidal, learned);
    - `rotate` turns queries and keys by tables that are made once a forward pass (RoPE, xPos);
    - `bias` is added to the scaled scores, valid on any block of rows (ALiBi, T5, disentangled);
    - `mix` changes what the weights are applied to (Shaw), on the eager kernel only.

    A position belongs to the stack, and is shared by its layers, or to each layer, as `owner` declares. One of the
    stack's may have a part in each layer besides (`own`): a table that all share, and projections that none does.
    Positions may be any integers: padding continues the ramp, so a table clamps and never fails on them.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape",)
    traits: ClassVar[PositionTraits] = {"hooks": [], "bias": "none", "owner": "stack"}
    class_specific: ClassVar[bool] = True  # a table of places is none of distances, though both be called `table`

    def layer_part(self, shape: Shape) -> nn.Module | None:
        """What a layer of this shape has of it for itself, if anything; `bias` and `mix` find it as `pair.own`."""
        return None

    def score_terms(self) -> int:
        """How many terms a score is the sum of: its scale shrinks by their root, as options may decide."""
        return self.traits.get("score_terms", 1)

    def uses_mix(self) -> bool:
        """Whether `mix` is to be asked: an option may leave out what the trait says that there can be."""
        return "mix" in self.traits["hooks"]

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """(B, T, E), (B|1, T) -> (B, T, E): rows as the embedding has them, of width `shape.embedded`."""
        return x

    def tables(self, positions: Tensor, width: int) -> Any:
        """What `rotate` reads, for rows at these positions; `width` is what will be rotated."""
        return None

    def rotate(self, x: Tensor, tables: Any, side: Literal["query", "key"]) -> Tensor:
        """(B, H, T, K) -> (B, H, T, K)."""
        return x

    def bias(self, pair: Pair) -> Tensor:
        """(B|1, H, T, S), for one block of rows or for all."""
        raise NotImplementedError  # only called where traits say that there is one

    def mix(self, weights: Tensor, pair: Pair) -> Tensor | None:
        """What is added to the output, (B, H, T, K), given the weights (B, H, T, S)."""
        return None

    def cost(self, load: Load) -> Cost:
        """What its bias and its mix do in one layer, or once for all, where the bias depends on positions alone.

        What turns or adds is no product, and counts as none.
        """
        return Cost()

    @abstractmethod
    def position_limit(self) -> int | None:
        """The first position that it cannot express; None where there is no such."""
