"""The fused kernel masks only where there is something to mask, and copies no shared head in decoding."""

from collections.abc import Callable

import pytest
import torch

from paribus import TokenLayout, Visibility
from paribus.kernels.sdpa import MaskPlan, Sdpa
from paribus.parts.context import AttentionPlan, KernelRequest, Pair

Planned = Callable[..., AttentionPlan]
Kinds = Callable[[str, int], TokenLayout]
SDPA = Sdpa()
LIKE = torch.zeros(2, 8, 24)


def made(plan: AttentionPlan) -> MaskPlan:
    assert isinstance(plan.kernel_data, MaskPlan)
    return plan.kernel_data


def test_rows_that_all_see_each_other_need_no_mask(planned: Planned, rows: Kinds) -> None:
    assert made(planned(SDPA, Visibility(), rows("plain", 8), like=LIKE)) == MaskPlan()
    memory = planned(SDPA, Visibility(), rows("plain", 8), rows("plain", 5), like=LIKE)
    assert made(memory) == MaskPlan()


def test_the_future_alone_needs_no_mask(planned: Planned, rows: Kinds) -> None:
    for kind in ("plain", "restarted"):
        assert made(planned(SDPA, Visibility(causal=True), rows(kind, 8), like=LIKE)) == MaskPlan(causal=True)


def test_a_single_query_behind_a_cache_needs_no_mask(planned: Planned, rows: Kinds) -> None:
    last = TokenLayout(torch.tensor([[7]]))
    for window, seen in ((None, 8), (3, 3), (20, 8)):
        plan = planned(SDPA, Visibility(causal=True, window=window), last, rows("plain", 8), like=LIKE[:, :1], past=7)
        assert made(plan) == MaskPlan(last=seen)


def test_a_window_as_long_as_the_rows_needs_no_mask(planned: Planned, rows: Kinds) -> None:
    assert made(planned(SDPA, Visibility(window=8), rows("plain", 8), like=LIKE)) == MaskPlan()
    assert made(planned(SDPA, Visibility(causal=True, window=8), rows("plain", 8), like=LIKE)) == MaskPlan(causal=True)
    for window in (1, 7):
        assert made(planned(SDPA, Visibility(window=window), rows("plain", 8), like=LIKE)).mask is not None


@pytest.mark.parametrize("kind", ["right", "left", "packed", "order"])
def test_whatever_else_hides_a_row_needs_a_mask(kind: str, planned: Planned, rows: Kinds) -> None:
    mask = made(planned(SDPA, Visibility(causal=True), rows(kind, 8), like=LIKE)).mask
    assert mask is not None
    assert mask.shape == (2, 1, 8, 8)


def test_a_bias_and_what_is_hidden_are_one_mask_of_the_type_of_the_rows(planned: Planned, rows: Kinds) -> None:
    def bias(pair: Pair) -> torch.Tensor:
        return torch.ones(1, pair.heads, 8, 8, dtype=torch.float64)

    plan = planned(SDPA, Visibility(causal=True), rows("shared", 8), like=LIKE, bias=bias)
    mask = made(plan).mask
    assert mask is not None
    assert mask.dtype == LIKE.dtype
    assert torch.equal(mask, torch.full((1, 4, 8, 8), -torch.inf).triu(1) + 1)


def test_a_content_bias_is_not_left_to_a_causal_flag(planned: Planned, rows: Kinds) -> None:
    demand = KernelRequest(Visibility(causal=True), "content")
    assert made(planned(SDPA, Visibility(causal=True), rows("plain", 8), like=LIKE, demand=demand)).mask is not None


def test_a_step_of_decoding_copies_no_shared_head(planned: Planned, rows: Kinds) -> None:
    cache = torch.randn(2, 2, 4096, 6)
    q = torch.randn(2, 4, 1, 6)
    last = TokenLayout(torch.tensor([[4095]]))
    plan = planned(SDPA, Visibility(causal=True), last, rows("shared", 4096), like=LIKE[:, :1], past=4095)
    with torch.profiler.profile(profile_memory=True) as profile:
        SDPA(q, cache, cache, plan, None, 0.0)
    allocated = sum(event.self_cpu_memory_usage for event in profile.events() if event.self_cpu_memory_usage > 0)
    assert allocated < cache.nbytes / 4
