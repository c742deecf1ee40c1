"""The dense form of a plan; what is made of it is held against loops with the kernel `eager`."""

from typing import Any

import torch
from torch import Tensor

from paribus import Pair, TokenLayout, Visibility
from paribus.kernels.eager import Eager
from paribus.parts.attention_weights import DensePlan, all_pairs, dense_plan
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring
from paribus.parts.visibility import with_order


def plan_of(demand: KernelRequest, positions: Tensor) -> AttentionPlan:
    rows = with_order(TokenLayout(positions))
    return AttentionPlan(Eager(), demand, 0.5, None, rows, rows, None, None, None)


def test_a_bias_is_shown_all_rows_and_comes_in_the_type_of_the_scores() -> None:
    shown: list[Pair] = []

    def bias(pair: Pair) -> Tensor:
        shown.append(pair)
        return torch.ones(1, pair.heads, 3, 3, dtype=torch.float64)

    positions = torch.tensor([[4, 5, 6]])
    made = dense_plan(
        plan_of(KernelRequest(Visibility(causal=True)), positions), bias, 2, torch.zeros(1, 3, 4, dtype=torch.bfloat16)
    )
    assert made.bias is not None
    assert made.bias.dtype == shown[0].dtype == torch.bfloat16
    assert (shown[0].q, shown[0].k, shown[0].heads, shown[0].scale) == (None, None, 2, 0.5)
    assert torch.equal(shown[0].q_positions, positions)
    assert torch.equal(shown[0].k_positions, positions)


def test_what_nobody_hides_is_no_mask() -> None:
    plan = plan_of(KernelRequest(Visibility()), torch.arange(3).unsqueeze(0))
    assert dense_plan(plan, None, 2, torch.zeros(1, 3, 4)) == DensePlan(None, None)


def test_a_window_is_measured_on_rows_unless_something_is_left_out_or_reordered() -> None:
    sight, positions = Visibility(window=2), torch.tensor([[0, 0, 0]])
    by_row: Any = dense_plan(plan_of(KernelRequest(sight), positions), None, 2, torch.zeros(1, 3, 4)).seen
    assert by_row[0, 0].tolist() == [[True, True, False], [True, True, True], [False, True, True]]
    by_place: Any = dense_plan(
        plan_of(KernelRequest(sight, has_order=True), positions), None, 2, torch.zeros(1, 3, 4)
    ).seen
    assert by_place.all()


def test_a_pair_has_as_many_key_heads_as_query_heads() -> None:
    plan = plan_of(KernelRequest(Visibility()), torch.arange(3).unsqueeze(0))
    q, k = torch.randn(1, 4, 3, 2), torch.randn(1, 2, 3, 2)
    content = LayerScoring(None, lambda table: (table, table))
    pair = all_pairs(q, k, plan, content)
    assert pair.k is not None
    assert torch.equal(pair.k, k.repeat_interleave(2, 1))
    assert (pair.q, pair.heads, pair.project, pair.dtype) == (q, 4, content.project, torch.float32)
    own = torch.nn.Identity()
    assert pair.position_part is None
    assert all_pairs(q, k, plan, content._replace(position_part=own)).position_part is own
