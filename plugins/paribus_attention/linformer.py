"""The attention `linformer`."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    AtMost,
    Attention,
    Context,
    Cost,
    DataError,
    Example,
    Heads,
    Load,
    Problem,
    Range,
    Shape,
    State,
    Traits,
)
from paribus_attention.documents import awake, front


@final
class Linformer(Attention):
    """Keys and values of all rows are projected to `rank` of each, which every query sees: "Linformer: Self-Attention
    with Linear Complexity" (Wang et al. 2020).

    softmax(q (E k)' / sqrt(K)) (F v), with E and F (rank, length) learned for each place, and the same for all heads.
    A row's place is its number among those that are no padding. Each of the `rank` is a sum over all rows: it can hide
    neither the future nor other documents.
    """

    traits: ClassVar[Traits] = {
        "consumes": [],
        "causal": False,
        "cross": False,
        "documents": False,
        "padding": True,
        "order": False,
        "residual": True,
        "weights": False,
        "decodes": False,
        "table": True,
    }

    def __init__(
        self,
        shape: Shape,
        *,
        rank: Annotated[
            int, "to how many keys and values the rows are projected", Range(1), AtMost("length", "rows"), Example(8)
        ],
        shared: Annotated[bool, "whether keys and values are projected alike"] = False,
        bias: Annotated[bool, "whether the four projections of the heads have a bias"] = True,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.rank = rank
        self.heads = Heads(shape, kv_heads=shape.heads, bias=bias)
        self.keys = nn.Linear(shape.length, rank, bias=False)
        self.values = None if shared else nn.Linear(shape.length, rank, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        self._within(x.shape[1])
        q, k, v = self.heads.queries(x), self.heads.keys(x), self.heads.values(x)
        documents = ctx.rows.documents
        if documents is not None:
            documents = documents.expand(x.shape[0], -1)
            k, v = (_in_front(side, documents) for side in (k, v))
        dropout = self.shape.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            q, _projected(self.keys, k), _projected(self.values or self.keys, v), dropout_p=dropout
        )
        return self.heads.merge(mixed)

    def _within(self, rows: int) -> None:
        length = self.shape.length
        if rows > length:
            raise DataError(
                Problem(
                    code="past-the-table",
                    path="dims.length",
                    what=f"{rows} rows are more than `linformer` projects, which is `dims.length` ({length})",
                    valid=f"up to {length} rows, or a `dims.length` of at least {rows}",
                )
            )

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        heads_width = self.shape.heads * self.shape.head_width
        heads = 8 * load.queries * self.shape.width * heads_width
        return Cost(heads + 8 * self.rank * load.queries * heads_width)


def _projected(over: nn.Linear, x: Tensor) -> Tensor:
    """(B, H, S, K) -> (B, H, rank, K), by the columns of as many places as there are rows."""
    return over.weight[:, : x.shape[2]] @ x


def _in_front(x: Tensor, documents: Tensor) -> Tensor:
    """(B, H, S, K), (B, S) -> (B, H, S, K): rows of padding are 0, and behind all others."""
    empty = x * awake(documents)[:, None, :, None]
    return empty.gather(2, front(documents)[:, None, :, None].expand_as(x))
