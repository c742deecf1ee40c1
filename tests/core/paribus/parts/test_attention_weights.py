"""Dense bias and mask of a plan; `test_eager.py` compares the weights with loops."""

from typing import Any

import torch
from torch import Tensor

from paribus import Pair, TokenLayout, Visibility
from paribus.kernels.eager import Eager
from paribus.parts.attend import DensePlan, all_pairs, dense_plan
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring
from paribus.parts.visibility import with_order


def plan_of(demand: KernelRequest, positions: Tensor) -> AttentionPlan:
    rows = with_order(TokenLayout(positions))
    return AttentionPlan(Eager(), demand, 0.5, None, rows, rows, None, None, None)


def test_a_bias_receives_all_positions_and_has_the_dtype_of_the_scores() -> None:
    received_pairs: list[Pair] = []

    def bias(pair: Pair) -> Tensor:
        received_pairs.append(pair)
        return torch.ones(1, pair.heads, 3, 3, dtype=torch.float64)

    positions = torch.tensor([[4, 5, 6]])
    plan = dense_plan(
        plan_of(KernelRequest(Visibility(causal=True)), positions), bias, 2, torch.zeros(1, 3, 4, dtype=torch.bfloat16)
    )
    assert plan.bias is not None
    assert plan.bias.dtype == received_pairs[0].dtype == torch.bfloat16
    assert (received_pairs[0].q, received_pairs[0].k, received_pairs[0].heads, received_pairs[0].scale) == (
        None,
        None,
        2,
        0.5,
    )
    assert torch.equal(received_pairs[0].q_positions, positions)
    assert torch.equal(received_pairs[0].k_positions, positions)


def test_full_attention_has_no_mask() -> None:
    plan = plan_of(KernelRequest(Visibility()), torch.arange(3).unsqueeze(0))
    assert dense_plan(plan, None, 2, torch.zeros(1, 3, 4)) == DensePlan(None, None)


def test_a_window_counts_indices_unless_tokens_are_reordered() -> None:
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
    pair = all_pairs(q, k, plan, content, None)
    assert pair.k is not None
    assert torch.equal(pair.k, k.repeat_interleave(2, 1))
    assert (pair.q, pair.heads, pair.project, pair.dtype) == (q, 4, content.project, torch.float32)
    part = torch.nn.Identity()
    assert pair.position_part is None
    assert all_pairs(q, k, plan, content._replace(position_part=part), None).position_part is part
