"""Cross-attention to a memory outside of a stack, for recurrent parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from paribus.parts.attend import Attend
from paribus.parts.attention_plan import choose_kernel, kernel_request
from paribus.parts.attention_weights import require_attention_weights
from paribus.parts.batch import TokenLayout
from paribus.parts.context import AttentionPlan, Context, Kernel, Memory, State
from paribus.parts.visibility import with_order

if TYPE_CHECKING:
    from paribus.slots.attention import Attention
    from paribus.slots.position import Position


@final
class CrossAttention:
    """Cross-attention to a memory, on the kernel that fits.

    It is not a module: the attention is a child of the part that uses it. Keys and values of the memory are computed
    once and stored in `state`.
    """

    def __init__(self, attention: Attention, position: Position, kernels: Sequence[Kernel], heads: int) -> None:
        self._attends = [module for module in attention.modules() if isinstance(module, Attend)]
        for place, attend in enumerate(self._attends):
            attend.bind(position, place)
        self._attention = attention
        self._position = position
        self._kernels = tuple(kernels)
        self._heads = heads

    def plans(self, x: Tensor, rows: TokenLayout, memory: Memory, capture: bool = False) -> tuple[AttentionPlan, ...]:
        """Return the plans of a pass: visibility and kernel, which do not depend on hidden states."""
        if capture:
            require_attention_weights([self._attention])
        return tuple(self._plan(attend, x, rows, memory, capture) for attend in self._attends)

    def __call__(
        self,
        x: Tensor,
        rows: TokenLayout,
        memory: Memory,
        state: State,
        plans: tuple[AttentionPlan, ...],
        capture: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Return the output of the attention for hidden states of the queries: (B, T, D) -> (B, T, M)."""
        ctx = Context(plans, rows, memory.layout, memory.hidden, state, carry={}, captured=capture)
        read: Tensor = self._attention(x, ctx)
        return read

    def kernels(self, device: str, rows: int) -> tuple[str, ...]:
        demands = [kernel_request(attend, self._position, cross=True) for attend in self._attends]
        names = [choose_kernel(self._kernels, demand._replace(device=device, queries=rows)).name for demand in demands]
        return tuple(names) or ("its own",)

    def _plan(self, attend: Attend, x: Tensor, rows: TokenLayout, memory: Memory, capture: bool) -> AttentionPlan:
        demand = kernel_request(attend, self._position, cross=True)._replace(
            needs_weights=capture,
            window_by_index=rows.documents is None or rows.index_positions is not None,
            has_hidden_keys=memory.layout.documents is not None,
            distance_bias=False,
            has_dropout=attend.training and attend.dropout > 0,
            float64=x.dtype == torch.float64,
            queries=rows.positions.shape[-1],
            device=x.device.type,
        )
        kernel = choose_kernel(self._kernels, demand)
        plan = AttentionPlan(
            kernel, demand, attend.scale, attend.soft_cap, with_order(rows), with_order(memory.layout), None, None, None
        )
        return plan._replace(kernel_data=kernel.prepare(plan, None, self._heads, x))
