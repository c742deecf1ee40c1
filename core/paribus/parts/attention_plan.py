"""What the layers of a stack share in one forward pass, and which kernel each attention runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from paribus.parts.attend import Attend
from paribus.parts.batch import TokenLayout
from paribus.parts.context import AttentionPlan, Kernel, KernelRequest
from paribus.parts.visibility import with_order

if TYPE_CHECKING:
    from paribus.parts.context import Memory
    from paribus.slots.position import Position


@dataclass
class _Planned:
    """What one plan is made from: the first attention with this sight and this position."""

    attend: Attend
    position: Position
    cross: bool
    key: tuple[object, ...]
    demand: KernelRequest  # what is known of it before any row is


@final
class AttentionPlanner:
    """Knows which attention of a stack reads which position; all that ask alike share a plan of each pass."""

    def __init__(self, kernels: Sequence[Kernel], heads: int) -> None:
        self._kernels = tuple(kernels)
        self._heads = heads
        self._planned: list[_Planned] = []

    def bind(self, attention: nn.Module, position: Position, part: nn.Module | None, *, cross: bool) -> None:
        """Tells whatever attends in `attention` its plan; `part` is what the layer has of the position for itself."""
        own = None if part is position else part  # a position that is the layer's needs no part there
        for attend in (module for module in attention.modules() if isinstance(module, Attend)):
            key = (id(position), cross, *attend.plan_key)
            known = [planned.key for planned in self._planned]
            if key not in known:
                self._planned.append(_Planned(attend, position, cross, key, kernel_request(attend, position, cross)))
            attend.bind(position, known.index(key) if key in known else len(known), own)

    def plans(
        self, x: Tensor, rows: TokenLayout, keys: TokenLayout, past: int, memory: Memory | None, capture: bool
    ) -> tuple[AttentionPlan, ...]:
        """What layers share, made once: visibility, rotation tables, biases of positions, the choice of kernel."""
        made: list[AttentionPlan] = []
        for planned in self._planned:
            seen = memory.layout if planned.cross and memory is not None else keys
            made.append(self._plan(planned, x, rows, seen, past, capture))
        return tuple(made)

    def _plan(
        self, planned: _Planned, x: Tensor, rows: TokenLayout, seen: TokenLayout, past: int, capture: bool
    ) -> AttentionPlan:
        attend, position, sight = planned.attend, planned.position, planned.demand.visibility
        behind = not planned.cross and seen.positions.shape[-1] < rows.positions.shape[-1]
        if rows.order is not None and not planned.cross:
            sight = sight._replace(causal=True)  # who says an order means it
        assert not behind or rows.order is not None or not sight.causal, "only an order says what came before them"
        demand = planned.demand._replace(
            visibility=sight,
            needs_weights=capture,
            has_order=rows.order is not None or behind,  # the index of rows behind the keys says nothing of them
            window_by_index=rows.documents is None or rows.index_positions is not None,
            aligned=past == 0 and not planned.cross and seen.positions.shape[-1] == rows.positions.shape[-1],
            has_hidden_keys=seen.documents is not None,
            distance_bias=planned.demand.distance_bias
            and past == 0
            and rows.index_positions is not None
            and seen.index_positions is not None,
            has_dropout=attend.training and attend.dropout > 0,
            float64=x.dtype == torch.float64,
            queries=rows.positions.shape[-1],
            device=x.device.type,
        )
        kernel = choose_kernel(self._kernels, demand)
        q, q_tables = with_order(rows, past), position.tables(rows.positions, attend.rotary)
        k, k_tables = q, q_tables
        if seen is not rows:
            fresh = seen.positions if planned.cross else seen.positions[:, past:]
            k, k_tables = with_order(seen), position.tables(fresh, attend.rotary)
        plan = AttentionPlan(kernel, demand, attend.scale, attend.soft_cap, q, k, q_tables, k_tables, None)
        bias = position.bias if demand.bias == "positions" else None
        return plan._replace(kernel_data=kernel.prepare(plan, bias, self._heads, x))

    def kernels(self, device: str, rows: int, among: Sequence[Kernel] = ()) -> tuple[str, ...]:
        """The kernel of each plan, for a summary; `among` others than its own, where some are named."""
        demands = [planned.demand._replace(device=device, queries=rows) for planned in self._planned]
        return tuple(choose_kernel(among or self._kernels, demand).name for demand in demands)


def kernel_request(attend: Attend, position: Position, cross: bool) -> KernelRequest:
    """What an attention and its position declare."""
    return KernelRequest(
        attend.visibility,
        bias=position.traits["bias"],
        distance_bias=position.traits.get("distance_bias", False),
        soft_cap=attend.soft_cap is not None,
        has_mix=position.uses_mix(),
        has_sinks=attend.sinks is not None,
        has_score_functions=attend.has_score_functions,
        aligned=not cross,
    )


def choose_kernel(kernels: Sequence[Kernel], demand: KernelRequest) -> Kernel:
    """The first kernel, in order of speed, that serves the demand; the last one serves them all."""
    return next(kernel for kernel in kernels if kernel.serves(demand))
