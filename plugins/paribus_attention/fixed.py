"""Attention to the last token only (`fixed`)."""

from __future__ import annotations

from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import Attention, AttentionTraits, Context, Cost, Load, Shape, State, is_content
from paribus_attention.documents import number_documents
from paribus_attention.values import Values


@final
class Fixed(Attention):
    """Attention to the last token only, the bottleneck that attention removed (Sutskever et al. 2014).

    "Sequence to Sequence Learning with Neural Networks". In cross-attention every query reads the last state of the
    memory; in bidirectional self-attention it reads the last token of its document. It is not available in causal
    stacks, where the last visible token is the query itself and nothing would be mixed.
    """

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": [],
        "causal": False,
        "cross": True,
        "documents": True,
        "order": False,
        "residual": True,
        "raw_memory": True,
        "weights": False,
        "decodes": True,
        "reads_keys": "one",
        "content_based": False,
    }

    def __init__(self, shape: Shape, *, bias: Annotated[bool, "add a bias to the projections"] = True) -> None:
        super().__init__()
        self.heads = Values(shape, bias=bias)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        source = x if ctx.memory is None else ctx.memory
        if ctx.key_layout.documents is None:
            return self.heads.merge(self.heads.values(source[:, -1:])).expand(-1, x.shape[1], -1)
        last_positions = _last_positions(ctx.layout.documents, ctx.key_layout.documents)
        index = last_positions.expand(x.shape[0], x.shape[1]).unsqueeze(-1)  # (B, T, 1)
        last_tokens = source.gather(1, index.clamp_min(0).expand(-1, -1, source.shape[-1]))
        values = self.heads.values(last_tokens)
        return self.heads.merge(values.masked_fill(index < 0, 0))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        """Return the cost of one token, because all tokens of a document read the same value."""
        return Cost(self.heads.cost(1, 1))


def _last_positions(q_documents: Tensor | None, k_documents: Tensor) -> Tensor:
    """Return the index (B|1, T) of the last key in each query's document, -1 without such a key."""
    q_numbers, k_numbers = number_documents(q_documents, k_documents)
    positions = torch.arange(k_numbers.shape[-1], device=k_documents.device).expand_as(k_numbers)
    positions = torch.where(is_content(k_documents), positions, -1)
    last_positions = torch.full(
        (positions.shape[0], q_numbers.shape[-1] + positions.shape[-1]), -1, device=k_documents.device
    )
    return last_positions.scatter_reduce(1, k_numbers, positions, "amax").gather(1, q_numbers)
