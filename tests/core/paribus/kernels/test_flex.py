"""Kernel `flex`: its mask and score functions as dense tensors, supported requests, and fused results on a GPU."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from paribus import BlockPattern, Pair, TokenLayout, Visibility
from paribus.kernels import KERNELS, flex
from paribus.kernels.flex import Flex, ScoreAndMask, block_mask, distance_table, mask_function, score_function
from paribus.parts.attention_planner import choose_kernel
from paribus.parts.context import AttentionPlan, KernelRequest
from paribus.parts.visibility import pair_conditions, visibility_mask, with_order

Planned = Callable[..., AttentionPlan]
Kinds = Callable[[str, int], TokenLayout]
FLEX, EAGER = Flex(), KERNELS[-1]
ROWS = ("plain", "shared", "right", "apart", "left", "packed", "nothing", "restarted", "gaps", "order")
COUNTED = ("right", "apart", "nothing", "plain", "shared")  # kinds whose positions equal the index
DRAWN = BlockPattern(8, 1, tuple((block * 5 % 13,) for block in range(13)))
SIGHTS = [
    *(Visibility(causal, window) for causal in (True, False) for window in (None, 1, 4)),
    *(
        Visibility(causal, 4, dilation, global_tokens)
        for causal in (True, False)
        for dilation, global_tokens in ((3, 0), (1, 2), (2, 1))
    ),
    *(Visibility(causal, None, 1, global_tokens, DRAWN) for causal in (True, False) for global_tokens in (0, 8)),
]
SIZES = (2, 1, 29, 29)


def visibility_id(sight: Visibility) -> str:
    suffix = "-causal" * sight.causal + "-blocks" * bool(sight.blocks)
    return f"{sight.window}x{sight.dilation}+{sight.global_tokens}{suffix}"


unfused = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


class Slopes:
    """Learned distance bias like that of ALiBi."""

    def __init__(self) -> None:
        self.slopes = torch.tensor([0.5, 0.25, 0.1, 0.0], dtype=torch.float64, requires_grad=True)

    def __call__(self, pair: Pair) -> Tensor:
        apart = (pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)).unsqueeze(1)
        slopes = self.slopes.to(apart.device)[:, None, None]
        return torch.where(apart < 0, slopes * apart, -slopes.square() * apart)


def random_heads(rows: int, keys: int | None = None, groups: int = 2, width: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    sizes = ((rows, 4, 6), (keys or rows, groups, 6), (keys or rows, groups, width))
    q, k, v = (torch.randn(2, *size, generator=draw, dtype=torch.float64).transpose(1, 2) for size in sizes)
    return q, k, v


@pytest.mark.parametrize("sight", SIGHTS, ids=visibility_id)
def test_the_mask_function_equals_the_dense_mask(sight: Visibility, rows: Kinds) -> None:
    index = [torch.arange(size).view([-1 if axis == dim else 1 for axis in range(4)]) for dim, size in enumerate(SIZES)]
    for kind, by_row in itertools.product(ROWS, (True, False)):
        both = with_order(rows(kind, 29))
        conditions = pair_conditions(sight, both, both, window_by_index=by_row)
        expected = visibility_mask(sight, both, both, window_by_index=by_row)
        assert bool(conditions) == (expected is not None)
        if expected is not None:
            assert torch.equal(mask_function(conditions)(*index).expand(SIZES), expected.expand(SIZES)), kind


@pytest.mark.parametrize("sight", SIGHTS[3:7], ids=visibility_id)
def test_the_mask_of_torch_equals_the_dense_mask(sight: Visibility, rows: Kinds) -> None:
    both = with_order(rows("packed", 29))
    mask = create_mask(mask_function(pair_conditions(sight, both, both)), 2, 1, 29, 29, device="cpu")
    expected = visibility_mask(sight, both, both)
    assert expected is not None
    assert torch.equal(mask, expected)


@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (5, 8), (8, 5), (1, 1)])
@pytest.mark.parametrize("soft_cap", [None, 1.5])
def test_the_score_function_equals_the_bias_with_gradients(queries: int, keys: int, soft_cap: float | None) -> None:
    bias, scores = Slopes(), torch.randn(2, 4, queries, keys, dtype=torch.float64)
    table = distance_table(bias, queries, keys, 0.7, 4, scores)
    assert table.shape == (4, queries + keys - 1)  # not queries x keys
    function = score_function(table, keys, soft_cap)
    assert function is not None
    index = [
        torch.arange(size).view([-1 if axis == dim else 1 for axis in range(4)])
        for dim, size in enumerate(scores.shape)
    ]
    got = function(scores, *index)
    ramp = [torch.arange(size).unsqueeze(0) for size in (queries, keys)]
    expected = scores + bias(Pair(None, None, ramp[0], ramp[1], 0.7, 4))
    expected = expected if soft_cap is None else soft_cap * (expected / soft_cap).tanh()
    assert torch.allclose(got, expected, rtol=0, atol=1e-12)
    grads = [torch.autograd.grad(result.softmax(-1).square().sum(), bias.slopes)[0] for result in (got, expected)]
    assert torch.allclose(grads[0], grads[1], rtol=0, atol=1e-12)


def test_unchanged_scores_have_no_function() -> None:
    assert score_function(None, 5, None) is None


CELLS = [  # few, because torch compiles each function
    (Visibility(True), "right"),
    (Visibility(True, 4), "packed"),
    (Visibility(False, 4, 3), "gaps"),
    (Visibility(False, None, 1, 8, DRAWN), "apart"),
    (Visibility(), "nothing"),
    (Visibility(True), "order"),
]


@pytest.mark.few(1)
@unfused
@pytest.mark.parametrize(("sight", "kind"), CELLS)
def test_unfused_flex_equals_eager(sight: Visibility, kind: str, planned: Planned, rows: Kinds) -> None:
    batch, bias = rows(kind, 29), Slopes() if kind in COUNTED else None
    q, k, v = random_heads(29, width=8)
    demand = KernelRequest(sight, "positions" if bias else "none", soft_cap=kind != "plain", has_order=kind == "order")
    like = torch.zeros(2, 29, 24, dtype=torch.float64)
    with torch.no_grad():
        got, expected = (
            kernel(q, k, v, planned(kernel, sight, batch, like=like, bias=bias, demand=demand), None, 0.0)
            for kernel in (FLEX, EAGER)
        )
    assert torch.allclose(got, expected, rtol=0, atol=1e-9)


@pytest.mark.thorough
@unfused
def test_unfused_flex_equals_eager_on_a_memory_and_a_query_stream(planned: Planned, rows: Kinds) -> None:
    q, k, v = random_heads(5, 8)
    rank = torch.tensor([[2, 0, 3, 1], [0, 1, 2, 3]])
    content = TokenLayout(torch.arange(4).expand(2, -1), None, 2 * rank)
    both = TokenLayout(content.positions.repeat(1, 2), None, torch.cat([2 * rank, 2 * rank - 1], dim=1))
    for sight, asks, keys in (
        (Visibility(), rows("plain", 5), rows("left", 8)),
        (Visibility(causal=True), both, content),
    ):
        queries, length = asks.positions.shape[1], keys.positions.shape[1]
        q, k, v = random_heads(queries, length)
        like = torch.zeros(2, queries, 24, dtype=torch.float64)
        got, expected = (
            kernel(q, k, v, planned(kernel, sight, asks, keys, like=like), None, 0.0) for kernel in (FLEX, EAGER)
        )
        assert torch.allclose(got, expected, rtol=0, atol=1e-9)


def test_full_attention_needs_no_mask(planned: Planned, rows: Kinds) -> None:
    score_and_mask: ScoreAndMask = planned(FLEX, Visibility(), rows("plain", 9), like=torch.zeros(2, 9, 24)).kernel_data
    assert score_and_mask == (None, None, False)


@pytest.mark.few(6)
@pytest.mark.parametrize("sight", SIGHTS, ids=visibility_id)
def test_the_block_mask_equals_that_of_torch(sight: Visibility, rows: Kinds, monkeypatch: pytest.MonkeyPatch) -> None:
    length = 300 if sight.blocks is None else 97
    monkeypatch.setattr(flex, "MASK_ENTRIES", 2 * 128 * length)  # three groups of queries
    for kind in ROWS:
        both = with_order(rows(kind, length))
        request = KernelRequest(sight, has_hidden_keys=both.documents is not None, has_order=kind == "order")
        plan = AttentionPlan(FLEX, request, 1.0, None, both, both, None, None, None)
        by_index = both.documents is None and not request.has_order
        conditions = pair_conditions(sight, both, both, window_by_index=by_index)
        got = block_mask(plan, length, length, torch.zeros(()))
        if not conditions:
            assert got is None
            continue
        assert got is not None
        batch = max(side.shape[0] for it in conditions for side in (it.queries, it.keys))
        expected = create_block_mask(mask_function(conditions), batch, None, length, length, device="cpu")
        assert got.seq_lengths == expected.seq_lengths
        for name in (
            "kv_num_blocks",
            "kv_indices",
            "full_kv_num_blocks",
            "full_kv_indices",
            "q_indices",
            "full_q_num_blocks",
        ):
            assert torch.equal(getattr(got, name), getattr(expected, name)), (kind, name)


GPU_REQUEST = KernelRequest(Visibility(causal=True), device="cuda", queries=512)


@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, "sdpa"),
        ({"visibility": Visibility()}, "sdpa"),
        ({"has_hidden_keys": True}, "flex"),
        ({"has_order": True}, "flex"),
        ({"soft_cap": True}, "flex"),
        ({"bias": "positions", "distance_bias": True}, "flex"),
        ({"bias": "positions"}, "sdpa"),
        ({"visibility": Visibility(), "aligned": False, "has_hidden_keys": True}, "flex"),
        ({"visibility": Visibility(causal=True, window=8), "has_order": True}, "flex"),
        ({"visibility": Visibility(causal=True, window=8)}, "blocked"),
        ({"visibility": Visibility(causal=True, window=8, dilation=2)}, "gathered"),
        ({"visibility": Visibility(causal=True, window=400, global_tokens=8)}, "flex"),
        ({"visibility": Visibility(causal=True, window=8), "soft_cap": True}, "flex"),
        ({"has_hidden_keys": True, "aligned": False}, "sdpa"),
        ({"has_hidden_keys": True, "queries": 64}, "sdpa"),
        ({"has_hidden_keys": True, "float64": True}, "sdpa"),
        ({"has_hidden_keys": True, "has_dropout": True}, "sdpa"),
        ({"has_hidden_keys": True, "has_sinks": True}, "sdpa"),
        ({"has_hidden_keys": True, "bias": "content"}, "sdpa"),
        ({"soft_cap": True, "needs_weights": True}, "eager"),
        ({"soft_cap": True, "has_mix": True}, "eager"),
        ({"soft_cap": True, "has_score_functions": True}, "eager"),
    ],
    ids=str,
)
def test_flex_is_chosen_where_sdpa_would_need_a_dense_mask(changes: dict[str, object], kernel: str) -> None:
    demand = GPU_REQUEST._replace(**changes)  # type: ignore[arg-type]  # values of several types
    assert choose_kernel(KERNELS, demand).name == kernel
    assert not FLEX.serves(demand._replace(device="cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("sight", SIGHTS, ids=visibility_id)
def test_fused_flex_on_a_gpu_equals_eager_with_gradients(sight: Visibility, planned: Planned, rows: Kinds) -> None:
    length = 300 if sight.blocks is None else 97
    for kind, groups in itertools.product(ROWS, (2, 4)):
        batch = rows(kind, length)
        cpu_bias, gpu_bias = (Slopes(), Slopes()) if kind in COUNTED else (None, None)
        demand = KernelRequest(
            sight, "positions" if cpu_bias else "none", soft_cap=kind != "plain", has_order=kind == "order"
        )
        leaves = [leaf.requires_grad_() for leaf in random_heads(length, groups=groups)]
        fused = [leaf.detach().float().cuda().requires_grad_() for leaf in leaves]
        like = torch.zeros(2, length, 24, dtype=torch.float64)
        plan = planned(EAGER, sight, batch, like=like, bias=cpu_bias, demand=demand)
        expected = EAGER(leaves[0], leaves[1], leaves[2], plan, None, 0.0)
        plan = planned(FLEX, sight, batch.to(fused[0].device), like=like.float().cuda(), bias=gpu_bias, demand=demand)
        got = FLEX(fused[0], fused[1], fused[2], plan, None, 0.0)
        assert torch.allclose(got.cpu().double(), expected, rtol=0, atol=1e-3), kind
        cpu_leaves, gpu_leaves = (
            [*leaves, *([cpu_bias.slopes] if cpu_bias else [])],
            [*fused, *([gpu_bias.slopes] if gpu_bias else [])],
        )
        for cpu_grad, gpu_grad in zip(
            torch.autograd.grad(expected.sin().sum(), cpu_leaves),
            torch.autograd.grad(got.sin().sum(), gpu_leaves),
            strict=True,
        ):
            assert torch.isfinite(gpu_grad).all(), kind
            assert torch.allclose(gpu_grad.cpu().double(), cpu_grad, rtol=1e-2, atol=1e-2), kind


@pytest.mark.gpu
def test_the_block_mask_on_a_gpu_needs_no_dense_mask(planned: Planned) -> None:
    rows = 16_384
    like = torch.zeros(1, rows, 8, device="cuda")
    ramp = torch.arange(rows, device="cuda").unsqueeze(0)
    batch = TokenLayout(ramp, torch.zeros_like(ramp), None, ramp)
    torch.cuda.reset_peak_memory_stats()
    initial_bytes = torch.cuda.memory_allocated()
    planned(FLEX, Visibility(causal=True), batch, like=like, bias=Slopes())
    assert torch.cuda.max_memory_allocated() - initial_bytes < rows * rows  # bytes of a dense mask
