"""Token layouts of every kind, and attention plans without a stack."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paribus import PADDING, Pair, TokenLayout, Visibility
from paribus.parts.context import AttentionPlan, Kernel, KernelRequest
from paribus.parts.visibility import with_order


@pytest.fixture(scope="session")
def planned() -> Callable[..., AttentionPlan]:
    def plan(
        kernel: Kernel,
        sight: Visibility,
        q: TokenLayout,
        k: TokenLayout | None = None,
        *,
        like: Tensor,
        bias: Callable[[Pair], Tensor] | None = None,
        demand: KernelRequest | None = None,
        past: int = 0,
    ) -> AttentionPlan:
        """Return the plan of a stack with 4 heads and a scale of 0.7; `like` is (B, T, …)."""
        kind = "none" if bias is None else "positions"
        by_row = q.documents is None or q.index_positions is not None
        aligned = k is None and past == 0
        request = demand or KernelRequest(
            sight, kind, has_order=q.order is not None, window_by_index=by_row, aligned=aligned
        )
        keys = with_order(q if k is None else k)
        dense_plan = AttentionPlan(
            kernel, request, 0.7, 2.0 if request.soft_cap else None, with_order(q, past), keys, None, None, None
        )
        return dense_plan._replace(kernel_data=kernel.prepare(dense_plan, bias, 4, like))

    return plan


@pytest.fixture(scope="session")
def rows() -> Callable[[str, int], TokenLayout]:
    return rows_like


def rows_like(kind: str, length: int) -> TokenLayout:
    """Return the layout of a batch of two sequences (one if `shared`) of the given kind."""
    ramp = torch.arange(length)
    both, filled, short = ramp.expand(2, -1), torch.zeros(2, length, dtype=torch.long), length // 3
    lost = torch.tensor([[0], [short]])
    halves = torch.stack([ramp * 5 // (2 * length), ramp * 3 // length])  # two documents and padding; three documents
    starts = (halves.unsqueeze(-1) == halves.unsqueeze(-2)).int().argmax(-1)
    kinds = {
        "plain": TokenLayout(both),
        "shared": TokenLayout(ramp.unsqueeze(0)),
        "right": TokenLayout(both, filled.masked_fill(ramp >= length - lost, PADDING), None, both),
        "apart": TokenLayout(ramp.unsqueeze(0), halves, None, ramp.unsqueeze(0)),
        "left": TokenLayout(ramp - lost, filled.masked_fill(ramp < lost, PADDING)),
        "packed": TokenLayout(both - starts, halves.masked_fill(halves == torch.tensor([[2], [9]]), PADDING)),
        "nothing": TokenLayout(both, filled + torch.tensor([[0], [PADDING]]), None, both),
        "restarted": TokenLayout(both % max(short, 1)),  # positions restart, but without documents nothing is hidden
        "gaps": TokenLayout(both * 2, filled),
        "order": TokenLayout(both, None, torch.stack([(ramp * 7) % length, ramp.clamp(min=short)])),
    }
    return kinds[kind]
