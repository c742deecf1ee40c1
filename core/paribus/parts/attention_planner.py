"""Attention plans, made once per forward pass, and the choice of kernels.

`AttentionPlanner` plans the attentions of a stack, `CrossAttention` those of a recurrent part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from paribus.parts.attend import Attend, require_attention_weights
from paribus.parts.batch import TokenLayout
from paribus.parts.context import (
    AttentionPlan,
    AttentionSublayer,
    Context,
    Kernel,
    KernelRequest,
    Memory,
    PositionHooks,
    State,
)
from paribus.parts.visibility import with_order


@dataclass
class _PlanTemplate:
    """Plan before a pass: the first attention with this visibility and position."""

    attend: Attend
    position: PositionHooks
    cross: bool
    key: tuple[object, ...]
    request: KernelRequest  # request as far as it does not depend on a batch


@final
class AttentionPlanner:
    """Planner of the attentions of a stack; attentions with equal keys share a plan per pass."""

    def __init__(self, kernels: Sequence[Kernel], heads: int) -> None:
        self._kernels = tuple(kernels)
        self._heads = heads
        self._planned: list[_PlanTemplate] = []

    def bind(
        self, attention: AttentionSublayer, position: PositionHooks, part: nn.Module | None, *, cross: bool
    ) -> None:
        """Bind every `Attend` of an attention to its plan; `part` is what the layer has of the position for itself."""
        layer_part = None if id(part) == id(position) else part  # a position of the layer has no part
        for attend in (module for module in attention.modules() if isinstance(module, Attend)):
            key = (id(position), cross, *attend.plan_key)
            keys = [planned.key for planned in self._planned]
            if key not in keys:
                request = kernel_request(attend, position, cross)
                self._planned.append(_PlanTemplate(attend, position, cross, key, request))
            attend.bind(position, keys.index(key) if key in keys else len(keys), layer_part)

    def plans(
        self, x: Tensor, layout: TokenLayout, keys: TokenLayout, past: int, memory: Memory | None, capture: bool
    ) -> tuple[AttentionPlan, ...]:
        """Return the plans of a pass: visibility, rotation tables, position biases, kernels."""
        plans: list[AttentionPlan] = []
        for planned in self._planned:
            key_layout = memory.layout if planned.cross and memory is not None else keys
            plans.append(self._plan(planned, x, layout, key_layout, past, capture))
        return tuple(plans)

    def _plan(
        self, planned: _PlanTemplate, x: Tensor, layout: TokenLayout, key_layout: TokenLayout, past: int, capture: bool
    ) -> AttentionPlan:
        attend, position, visibility = planned.attend, planned.position, planned.request.visibility
        has_extra_queries = not planned.cross and key_layout.positions.shape[-1] < layout.positions.shape[-1]
        if layout.order is not None and not planned.cross:
            visibility = visibility._replace(causal=True)  # an explicit order is causal
        assert not has_extra_queries or layout.order is not None or not visibility.causal, (
            "expected an order for extra queries"
        )
        request = planned.request._replace(
            visibility=visibility,
            needs_weights=capture,
            has_order=layout.order is not None
            or has_extra_queries,  # extra queries are not in the order of their index
            window_by_index=layout.documents is None or layout.index_positions is not None,
            aligned=past == 0 and not planned.cross and key_layout.positions.shape[-1] == layout.positions.shape[-1],
            has_hidden_keys=key_layout.documents is not None,
            distance_bias=planned.request.distance_bias
            and past == 0
            and layout.index_positions is not None
            and key_layout.index_positions is not None,
            has_dropout=attend.training and attend.dropout > 0,
            float64=x.dtype == torch.float64,
            queries=layout.positions.shape[-1],
            device=x.device.type,
        )
        kernel = choose_kernel(self._kernels, request)
        q, q_tables = with_order(layout, past), position.tables(layout.positions, attend.rotary)
        k, k_tables = q, q_tables
        if key_layout is not layout:
            fresh = key_layout.positions if planned.cross else key_layout.positions[:, past:]
            k, k_tables = with_order(key_layout), position.tables(fresh, attend.rotary)
        plan = AttentionPlan(kernel, request, attend.scale, attend.soft_cap, q, k, q_tables, k_tables, None)
        bias = position.bias if request.bias == "positions" else None
        return plan._replace(kernel_data=kernel.prepare(plan, bias, self._heads, x))

    def kernels(self, device: str, queries: int, among: Sequence[Kernel] = ()) -> tuple[str, ...]:
        """Return the name of the kernel of each plan, for a summary; chosen `among` others if given."""
        requests = [planned.request._replace(device=device, queries=queries) for planned in self._planned]
        return tuple(choose_kernel(among or self._kernels, request).name for request in requests)


def kernel_request(attend: Attend, position: PositionHooks, cross: bool) -> KernelRequest:
    """Return the request that an attention and its position declare."""
    return KernelRequest(
        attend.visibility,
        bias=position.traits["bias"] if attend.forget is None else "content",
        distance_bias=position.traits.get("distance_bias", False) and attend.forget is None,
        soft_cap=attend.soft_cap is not None,
        has_mix=position.uses_mix(),
        has_sinks=attend.sinks is not None,
        has_score_functions=attend.has_score_functions,
        aligned=not cross,
    )


def choose_kernel(kernels: Sequence[Kernel], request: KernelRequest) -> Kernel:
    """Return the first kernel, in order of speed, that serves the request; the last one serves every request."""
    return next(kernel for kernel in kernels if kernel.serves(request))


@final
class CrossAttention:
    """Cross-attention to a memory, on the kernel that fits.

    It is not a module: the attention is a child of the part that uses it. Keys and values of the memory are computed
    once and stored in `state`.
    """

    def __init__(
        self, attention: AttentionSublayer, position: PositionHooks, kernels: Sequence[Kernel], heads: int
    ) -> None:
        self._attention = attention
        self._planner = AttentionPlanner(kernels, heads)
        self._planner.bind(attention, position, None, cross=True)

    def plans(self, x: Tensor, layout: TokenLayout, memory: Memory, capture: bool = False) -> tuple[AttentionPlan, ...]:
        """Return the plans of a pass: visibility and kernel, which do not depend on hidden states."""
        if capture:
            require_attention_weights([self._attention])
        return self._planner.plans(x, layout, memory.layout, 0, memory, capture)

    def __call__(
        self,
        x: Tensor,
        layout: TokenLayout,
        memory: Memory,
        state: State,
        plans: tuple[AttentionPlan, ...],
        capture: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Return the output of the attention for hidden states of the queries: (B, T, D) -> (B, T, M)."""
        ctx = Context(plans, layout, memory.layout, memory.hidden, state, carry={}, captured=capture)
        read: Tensor = self._attention(x, ctx)
        return read

    def kernels(self, device: str, queries: int) -> tuple[str, ...]:
        """Return the names of its kernels, for a summary."""
        return self._planner.kernels(device, queries) or ("its own",)
