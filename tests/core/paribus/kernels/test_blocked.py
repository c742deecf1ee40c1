"""Kernel `blocked` for windows: supported requests, and operations and memory linear in the length."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from paribus import TokenLayout, Visibility
from paribus.kernels import KERNELS, blocked
from paribus.kernels.blocked import Blocked, BlockedMask, Grid, grid_of, key_windows, unfolded_windows
from paribus.parts.attention_planner import choose_kernel
from paribus.parts.context import AttentionPlan, KernelRequest

Planned = Callable[..., AttentionPlan]
Kinds = Callable[[str, int], TokenLayout]
BLOCKED = Blocked()
WINDOWED = KernelRequest(Visibility(causal=True, window=8))


def test_blocked_is_chosen_for_windows_short_compared_with_the_sequence() -> None:
    assert choose_kernel(KERNELS, WINDOWED).name == "blocked"
    assert choose_kernel(KERNELS, WINDOWED._replace(queries=4096)).name == "blocked"
    assert choose_kernel(KERNELS, WINDOWED._replace(queries=4096, bias="positions")).name == "blocked"
    assert choose_kernel(KERNELS, WINDOWED._replace(queries=32)).name == "sdpa"
    assert (
        choose_kernel(KERNELS, WINDOWED._replace(queries=4096, visibility=Visibility(causal=True, window=4000))).name
        == "sdpa"
    )


@pytest.mark.parametrize(
    "demand",
    [
        WINDOWED._replace(visibility=Visibility(causal=True)),
        WINDOWED._replace(aligned=False),
        WINDOWED._replace(has_order=True),
        WINDOWED._replace(bias="content"),
        WINDOWED._replace(needs_weights=True),
        WINDOWED._replace(has_mix=True),
        WINDOWED._replace(soft_cap=True),
    ],
)
def test_blocked_does_not_serve_unsupported_requests(demand: KernelRequest) -> None:
    assert not BLOCKED.serves(demand)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 2, 16, 17, 64, 65, 300])
def test_key_windows_cover_the_window_of_each_block(causal: bool, window: int) -> None:
    for small in (False, True):
        check_grid(grid_of(Visibility(causal, window), small=small), causal, window)


def check_grid(grid: Grid, causal: bool, window: int) -> None:
    assert grid.left >= window - 1
    assert grid.right >= (0 if causal else window - 1)
    assert grid.stretch <= 5 * window + 128  # with a small margin


@pytest.mark.parametrize(
    ("rows", "grid"),
    [(7, Grid(4, 3, 2)), (8, Grid(4, 9, 0)), (3, Grid(4, 0, 0)), (9, Grid(2, 5, 5))],
)
def test_key_windows_equal_slices_and_sum_their_gradients(rows: int, grid: Grid) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, rows, 5, dtype=torch.float64, requires_grad=True)
    blocks = grid.count(rows)
    padded = torch.zeros(grid.left + 2 * blocks * grid.size + grid.right, 3, 5, dtype=torch.float64)
    for batch in range(2):
        for row in range(rows):
            padded[grid.left + batch * blocks * grid.size + row] = x[batch, :, row]
    expected = torch.stack(
        [padded[block * grid.size : block * grid.size + grid.stretch].transpose(0, 1) for block in range(2 * blocks)]
    )
    got = key_windows(x, grid)
    assert torch.equal(got, expected)
    assert torch.equal(unfolded_windows(x, grid), expected)
    weights = torch.randn_like(got)
    actual_grad, expected_grad = (torch.autograd.grad((windows * weights).sum(), x)[0] for windows in (got, expected))
    assert torch.allclose(actual_grad, expected_grad, rtol=0, atol=1e-12)


def padded_positions(plan: AttentionPlan) -> tuple[Tensor, Tensor]:
    """Return the positions of queries and keys that a bias receives."""
    positions: list[tuple[Tensor, Tensor]] = []

    def bias(pair: object) -> Tensor:
        positions.append((pair.q_positions, pair.k_positions))  # type: ignore[attr-defined]  # it is a Pair
        return torch.zeros(1, 4, 1, 1)

    BLOCKED.prepare(plan, bias, 4, torch.zeros(1, plan.q.positions.shape[1], 8))
    return positions[0]


@pytest.mark.parametrize("causal", [False, True])
def test_positions_continue_into_the_padding_on_both_sides(causal: bool, planned: Planned) -> None:
    positions = torch.arange(40, 110).unsqueeze(0)
    sight = Visibility(causal, 9)
    plan = planned(BLOCKED, sight, TokenLayout(positions), like=torch.zeros(1, 70, 8))
    queries, keys = padded_positions(plan)
    grid = grid_of(sight)
    assert torch.equal(queries.flatten(), torch.arange(40, 40 + 3 * grid.size))
    starts = 40 + grid.size * torch.arange(3) - grid.left
    assert torch.equal(keys, starts.unsqueeze(-1) + torch.arange(grid.stretch))


def test_sequences_of_a_batch_never_see_each_other(planned: Planned, rows: Kinds) -> None:
    sight = Visibility(window=9)
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 64, 6, generator=draw, dtype=torch.float64)
    plan = planned(BLOCKED, sight, rows("shared", 64), like=torch.zeros(2, 64, 24, dtype=torch.float64))
    both = BLOCKED(q, k, v, plan, None, 0.0)
    v[0] += 100
    k[0] *= -1
    assert torch.equal(BLOCKED(q, k, v, plan, None, 0.0)[1], both[1])


def measure_costs(length: int, planned: Planned, rows: Kinds) -> tuple[int, int, int]:
    """Return floating-point operations, bytes saved for the backward pass, and bytes of the mask."""
    sight = Visibility(causal=True, window=16)
    plan = planned(BLOCKED, sight, rows("shared", length), like=torch.zeros(1, length, 24))
    assert isinstance(plan.kernel_data, BlockedMask)
    storage_sizes: dict[int, int] = {}

    def keep(saved: Tensor) -> Tensor:
        storage_sizes[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    q, k, v = (torch.randn(1, 4, length, 6, requires_grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        BLOCKED(q, k, v, plan, None, 0.0).sum()
    with FlopCounterMode(display=False) as counter:
        on_meta = plan._replace(kernel_data=plan.kernel_data._replace(mask=plan.kernel_data.mask.to("meta")))
        BLOCKED(q.to("meta"), k.to("meta"), v.to("meta"), on_meta, None, 0.0)
    return counter.get_total_flops(), sum(storage_sizes.values()), plan.kernel_data.mask.nbytes


def test_operations_and_memory_are_linear_in_the_length(planned: Planned, rows: Kinds) -> None:
    short, long = measure_costs(512, planned, rows), measure_costs(2048, planned, rows)
    assert long[0] == 4 * short[0] > 0
    assert long[1] <= 4.01 * short[1]
    assert long[2] == 4 * short[2]


@pytest.mark.thorough
def test_blocked_compiles_into_one_graph(planned: Planned) -> None:
    sight = Visibility(causal=True, window=4)

    def attend(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        plan = planned(BLOCKED, sight, TokenLayout(positions), like=q.transpose(1, 2).flatten(2))
        return BLOCKED(q, k, v, plan, None, 0.0)

    q, k, v = (torch.randn(2, 4, 70, 8, dtype=torch.float64) for _ in range(3))
    for x in (leaves := (q, k, v)):
        x.requires_grad_()
    positions = torch.arange(70).unsqueeze(0)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    got, expected = compiled(q, k, v, positions), attend(q, k, v, positions)
    assert torch.allclose(got, expected, rtol=0, atol=1e-12)
    for actual_grad, expected_grad in zip(
        torch.autograd.grad(got.sin().sum(), leaves), torch.autograd.grad(expected.sin().sum(), leaves), strict=True
    ):
        assert torch.allclose(actual_grad, expected_grad, rtol=0, atol=1e-12)


KINDS = ("shared", "plain", "right", "apart", "left", "packed", "nothing", "restarted", "gaps")


@pytest.mark.covering
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [1, 2**15, 2**18], ids=["block", "head", "batch"])
@pytest.mark.parametrize("sight", [Visibility(window=9), Visibility(causal=True, window=40)], ids=["both", "causal"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [8, 32], ids=["recomputed", "saved"])
def test_products_equal_fused_attention(
    kind: str,
    sight: Visibility,
    chunk: int,
    dtype: torch.dtype,
    width: int,
    planned: Planned,
    rows: Kinds,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(blocked, "_CHUNK", chunk)
    q, k, v = (torch.randn(2, heads, 150, width, dtype=dtype).div_(2).requires_grad_() for heads in (4, 2, 2))
    weights = torch.randn(2, 4, 150, width, dtype=dtype)
    results = []
    for has_products in (True, False):
        monkeypatch.setattr(blocked, "_has_fast_products", lambda like, is_used=has_products: is_used)
        plan = planned(BLOCKED, sight, rows(kind, 150), like=torch.zeros(2, 150, 8, dtype=dtype))
        mixed = BLOCKED(q, k, v, plan, None, 0.0)
        results.append((mixed, *torch.autograd.grad((mixed * weights).sum(), (q, k, v))))
    for actual, expected in zip(*results, strict=True):
        assert torch.allclose(actual, expected, rtol=0, atol=2e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 65, 200, 256])
@pytest.mark.parametrize("sight", [Visibility(window=9), Visibility(window=65), Visibility(True, 33)], ids=str)
def test_masks_of_distinct_blocks_are_those_of_all_blocks(
    length: int, sight: Visibility, planned: Planned, rows: Kinds
) -> None:
    grid = grid_of(sight, small=True)
    data = planned(BLOCKED, sight, rows("shared", length), like=torch.zeros(2, length, 8)).kernel_data
    query = torch.arange(grid.count(length) * grid.size).view(-1, grid.size, 1)
    key = query[:, :1] - grid.left + torch.arange(grid.stretch)
    assert sight.window is not None
    near = (query - key < sight.window) & (query - key >= 0 if sight.causal else key - query < sight.window)
    seen = near & (query < length) & (key >= 0) & (key < length)
    assert data.grid == grid
    assert torch.equal(data.mask == 0, seen.repeat(2, 1, 1).unsqueeze(1))


def test_products_are_not_used_with_dropout_or_gradients_of_the_mask(planned: Planned, rows: Kinds) -> None:
    sight, slope = Visibility(window=9), torch.tensor(0.5, requires_grad=True)
    q, k, v = (torch.randn(1, 4, 64, 8, requires_grad=True) for _ in range(3))
    like = torch.zeros(1, 64, 8)
    plain = planned(BLOCKED, sight, rows("shared", 64), like=like)
    learned = planned(BLOCKED, sight, rows("shared", 64), like=like, bias=lambda pair: slope.view(1, 1, 1, 1))
    names = [
        type(BLOCKED(q, k, v, plan, None, dropout).grad_fn).__name__
        for plan, dropout in ((plain, 0.0), (plain, 0.1), (learned, 0.0))
    ]
    assert ["Products" in name for name in names] == [True, False, False]
