"""Kernel `sdpa`: masks only where they are needed, and no copies of shared heads in decoding."""

from collections.abc import Callable

import pytest
import torch

from paribus import TokenLayout, Visibility
from paribus.kernels.eager import Eager
from paribus.kernels.sdpa import MaskPlan, Sdpa
from paribus.parts.context import AttentionPlan, KernelRequest, Pair

Planned = Callable[..., AttentionPlan]
Kinds = Callable[[str, int], TokenLayout]
SDPA = Sdpa()
EAGER = Eager()
LIKE = torch.zeros(2, 8, 24)


def mask_plan(plan: AttentionPlan) -> MaskPlan:
    assert isinstance(plan.kernel_data, MaskPlan)
    return plan.kernel_data


def test_bidirectional_attention_needs_no_mask(planned: Planned, rows: Kinds) -> None:
    assert mask_plan(planned(SDPA, Visibility(), rows("plain", 8), like=LIKE)) == MaskPlan()
    memory = planned(SDPA, Visibility(), rows("plain", 8), rows("plain", 5), like=LIKE)
    assert mask_plan(memory) == MaskPlan()


def test_causal_attention_needs_no_mask(planned: Planned, rows: Kinds) -> None:
    for kind in ("plain", "restarted"):
        assert mask_plan(planned(SDPA, Visibility(causal=True), rows(kind, 8), like=LIKE)) == MaskPlan(causal=True)


def test_a_single_query_behind_a_cache_needs_no_mask(planned: Planned, rows: Kinds) -> None:
    query = TokenLayout(torch.tensor([[7]]))
    for window, visible in ((None, 8), (3, 3), (20, 8)):
        plan = planned(SDPA, Visibility(causal=True, window=window), query, rows("plain", 8), like=LIKE[:, :1], past=7)
        assert mask_plan(plan) == MaskPlan(last=visible)


def test_a_window_of_the_whole_length_needs_no_mask(planned: Planned, rows: Kinds) -> None:
    assert mask_plan(planned(SDPA, Visibility(window=8), rows("plain", 8), like=LIKE)) == MaskPlan()
    assert mask_plan(planned(SDPA, Visibility(causal=True, window=8), rows("plain", 8), like=LIKE)) == MaskPlan(
        causal=True
    )
    for window in (1, 7):
        assert mask_plan(planned(SDPA, Visibility(window=window), rows("plain", 8), like=LIKE)).mask is not None


@pytest.mark.parametrize("kind", ["right", "left", "packed", "order"])
def test_padding_packing_and_order_need_a_mask(kind: str, planned: Planned, rows: Kinds) -> None:
    mask = mask_plan(planned(SDPA, Visibility(causal=True), rows(kind, 8), like=LIKE)).mask
    assert mask is not None
    assert mask.shape == (2, 1, 8, 8)


def test_bias_and_mask_are_one_tensor_in_the_dtype_of_the_input(planned: Planned, rows: Kinds) -> None:
    def bias(pair: Pair) -> torch.Tensor:
        return torch.ones(1, pair.heads, 8, 8, dtype=torch.float64)

    plan = planned(SDPA, Visibility(causal=True), rows("shared", 8), like=LIKE, bias=bias)
    mask = mask_plan(plan).mask
    assert mask is not None
    assert mask.dtype == LIKE.dtype
    assert torch.equal(mask, torch.full((1, 4, 8, 8), -torch.inf).triu(1) + 1)


def test_a_content_bias_needs_an_explicit_mask(planned: Planned, rows: Kinds) -> None:
    demand = KernelRequest(Visibility(causal=True), "content")
    assert (
        mask_plan(planned(SDPA, Visibility(causal=True), rows("plain", 8), like=LIKE, demand=demand)).mask is not None
    )


def test_a_decoding_step_copies_no_shared_head(planned: Planned, rows: Kinds) -> None:
    cache = torch.randn(2, 2, 4096, 6)
    q = torch.randn(2, 4, 1, 6)
    query = TokenLayout(torch.tensor([[4095]]))
    plan = planned(SDPA, Visibility(causal=True), query, rows("shared", 4096), like=LIKE[:, :1], past=4095)
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        SDPA(q, cache, cache, plan, None, 0.0)
    allocated = sum(event.self_cpu_memory_usage for event in profile.events() if event.self_cpu_memory_usage > 0)
    assert allocated < cache.nbytes / 4


def cached(
    width: int, length: int, capacity: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a query of 8 heads, and keys and values of 2 heads in a cache that is not full."""
    q = torch.randn(2, 8, 1, width, dtype=dtype)
    k, v = torch.randn(2, 2, 2, capacity, width, dtype=dtype)
    return q, k[:, :, :length], v[:, :, :length]


def operators(run: Callable[[], object]) -> set[str]:
    with torch.profiler.profile(acc_events=True) as profile:
        run()
    return {event.name for event in profile.events()}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("window", [None, 1100])
def test_four_heads_that_share_a_large_cache_are_products(
    dtype: torch.dtype, tolerance: float, window: int | None, planned: Planned, rows: Kinds
) -> None:
    q, k, v = cached(64, 1200, 1300, dtype)
    query, sight = TokenLayout(torch.tensor([[1199]])), Visibility(causal=True, window=window)
    like = torch.zeros(2, 1, 24, dtype=dtype)
    plan, reference = (
        planned(kernel, sight, query, rows("shared", 1200), like=like, past=1199) for kernel in (SDPA, EAGER)
    )
    assert torch.allclose(SDPA(q, k, v, plan, None, 0.0), EAGER(q, k, v, reference, None, 0.0), rtol=0, atol=tolerance)
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        SDPA(q, k, v, plan, None, 0.0)
    assert "aten::bmm" in {event.name for event in profile.events()}
    allocated = sum(event.self_cpu_memory_usage for event in profile.events() if event.self_cpu_memory_usage > 0)
    assert allocated < k.nbytes / 4


def test_other_caches_use_the_fused_kernel(planned: Planned, rows: Kinds) -> None:
    q, k, v = cached(64, 1200, 1300, torch.float32)
    query, sight = TokenLayout(torch.tensor([[1199]])), Visibility(causal=True)
    plan = planned(SDPA, sight, query, rows("shared", 1200), like=LIKE[:, :1], past=1199)
    short = planned(SDPA, sight, query, rows("shared", 100), like=LIKE[:, :1], past=99)
    padded = plan._replace(kernel_data=MaskPlan(mask=torch.zeros(2, 1, 1, 1200), last=1200))
    memory = k.transpose(1, 2).contiguous().transpose(1, 2)
    assert "aten::bmm" not in operators(lambda: SDPA(q, k[:, :, :100], v[:, :, :100], short, None, 0.0))
    assert "aten::bmm" not in operators(lambda: SDPA(q, k, v, padded, None, 0.0))
    assert "aten::bmm" not in operators(lambda: SDPA(q, memory, memory, plan, None, 0.0))
    assert "aten::bmm" not in operators(lambda: SDPA(q[:, :4], k, v, plan, None, 0.0))
    assert "aten::bmm" not in operators(lambda: SDPA(q.clone().requires_grad_(), k, v, plan, None, 0.0))
