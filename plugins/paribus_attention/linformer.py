"""Linformer attention (`linformer`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    AtMost,
    Attention,
    AttentionTraits,
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
    is_content,
)
from paribus_attention.documents import content_first


@final
class Linformer(Attention):
    """Linformer attention, keys and values projected along the sequence to `rank` vectors (Wang et al. 2020).

    "Linformer: Self-Attention with Linear Complexity". softmax(q (E k)' / sqrt(K)) (F v), with learned E and F of shape
    (rank, length), shared by all heads. Padding is skipped when positions are counted. Each of the `rank` vectors sums
    over all tokens, so it can mask neither the future nor other documents.
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
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
            int, "projected keys and values", Range(1), AtMost("length", "a sequence has no more tokens"), Example(8)
        ],
        shared: Annotated[bool, "use one projection for keys and values"] = False,
        bias: Annotated[bool, "add a bias to the query, key, value and output projections"] = True,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.rank = rank
        self.heads = Heads(shape, kv_heads=shape.heads, bias=bias)
        self.keys = nn.Linear(shape.length, rank, bias=False)
        self.values = None if shared else nn.Linear(shape.length, rank, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        self._check_length(x.shape[1])
        q, k, v = self.heads.queries(x), self.heads.keys(x), self.heads.values(x)
        documents = ctx.layout.documents
        if documents is not None:
            documents = documents.expand(x.shape[0], -1)
            k, v = (_move_padding_last(side, documents) for side in (k, v))
        dropout = self.shape.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            q, _project_positions(self.keys, k), _project_positions(self.values or self.keys, v), dropout_p=dropout
        )
        return self.heads.merge(mixed)

    def _check_length(self, tokens: int) -> None:
        length = self.shape.length
        if tokens > length:
            raise DataError(
                Problem(
                    code="position-out-of-range",
                    path="dims.length",
                    message=f"`linformer` projects at most `dims.length` ({length}) tokens, got {tokens}",
                    valid=f"at most {length} tokens, or a `dims.length` of at least {tokens}",
                )
            )

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        heads_width = self.shape.heads * self.shape.head_width
        heads = 8 * load.queries * self.shape.width * heads_width
        return Cost(heads + 8 * self.rank * load.queries * heads_width)


def _project_positions(projection: nn.Linear, x: Tensor) -> Tensor:
    """Project along the sequence, with the columns of the first S positions: (B, H, S, K) -> (B, H, rank, K)."""
    return projection.weight[:, : x.shape[2]] @ x


def _move_padding_last(x: Tensor, documents: Tensor) -> Tensor:
    """Set padding to 0 and move it behind all other tokens: (B, H, S, K), (B, S) -> (B, H, S, K)."""
    masked = x * is_content(documents)[:, None, :, None]
    return masked.gather(2, content_first(documents)[:, None, :, None].expand_as(x))
