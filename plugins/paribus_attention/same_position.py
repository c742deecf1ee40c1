"""Cross-attention to the token at the same position (`same-position`), ByteNet's dynamic unfolding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Attention, AttentionTraits, Context, Cost, Load, Role, Shape, State
from paribus_attention.documents import number_documents


@final
class SamePosition(Attention):
    """Cross-attention to the token of the memory at the query's own position (Kalchbrenner et al. 2016).

    "Neural Machine Translation in Linear Time", section 3.2, dynamic unfolding: a linear map of the token at position t
    of the decoder and of the encoder's output at t, concatenated, with zeros after the end of the source. The encoder's
    convolutions have to bring there what is translated. Packed documents count positions separately. It is not
    available in self-attention, where nothing would be mixed.
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": False,
        "bidirectional": False,
        "cross": True,
        "documents": True,
        "order": False,
        "residual": True,
        "weights": False,
        "decodes": True,
        "reads_keys": "one",
        "content_based": False,
    }
    roles: ClassVar[Mapping[str, Role]] = {"outer.weight": "residual"}

    def __init__(self, shape: Shape, *, bias: Annotated[bool, "add a bias to the projection"] = True) -> None:
        super().__init__()
        self.outer = nn.Linear(shape.width + (shape.memory_width or shape.width), shape.width, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        assert ctx.memory is not None, "validated: it is a cross-attention"
        index = _equal_positions(ctx).expand(x.shape[0], -1).unsqueeze(-1)  # (B, T, 1)
        memory = ctx.memory.expand(x.shape[0], -1, -1)
        read = memory.gather(1, index.clamp_min(0).expand(-1, -1, memory.shape[-1])).masked_fill(index < 0, 0)
        y: Tensor = self.outer(torch.cat([x, read.to(x.dtype)], dim=-1))
        return y

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        return Cost(2 * load.queries * self.outer.weight.numel())


def _equal_positions(ctx: Context) -> Tensor:
    """Return the index (B|1, T) of the key at each query's position, -1 without such a key."""
    q_positions, k_positions, k_documents = ctx.layout.positions, ctx.key_layout.positions, ctx.key_layout.documents
    low = torch.minimum(q_positions.min(), k_positions.min())
    q_codes, k_codes = q_positions - low, k_positions - low  # a number for each document and position
    if k_documents is not None:
        span = torch.maximum(q_codes.max(), k_codes.max()) + 1
        q_numbers, k_numbers = number_documents(ctx.layout.documents, k_documents)
        q_codes, k_codes = q_codes + q_numbers * span, k_codes + k_numbers * span  # padding is a document of its own
    batch = max(q_codes.shape[0], k_codes.shape[0])
    q_codes, k_codes = q_codes.expand(batch, -1).contiguous(), k_codes.expand(batch, -1)
    ascending, order = k_codes.sort(dim=-1)
    place = torch.searchsorted(ascending, q_codes).clamp_max(k_codes.shape[-1] - 1)
    return torch.where(ascending.gather(1, place) == q_codes, order.gather(1, place), -1)
