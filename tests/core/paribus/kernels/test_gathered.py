"""Kernel `gathered` for sparse attention: supported requests, and operations and memory linear in the length."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from paribus import BlockPattern, TokenLayout, Visibility
from paribus.kernels import KERNELS
from paribus.kernels.gathered import (
    BlockLayout,
    Gathered,
    GatheredBlocks,
    gather,
    gathered_indices,
    layout_of,
    pair_count,
)
from paribus.parts.attention_planner import choose_kernel
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring
from paribus.parts.visibility import visibility_mask, with_order

Planned = Callable[..., AttentionPlan]
Kinds = Callable[[str, int], TokenLayout]
GATHERED = Gathered()
GAPS = KernelRequest(Visibility(causal=True, window=8, dilation=3))


def random_blocks(count: int, per_block: int, size: int = 8, near: int = 1) -> BlockPattern:
    """Return a pattern of random blocks, with neighbours, repeated blocks and blocks of different counts."""
    return BlockPattern(
        size,
        near,
        tuple(tuple((block * 5 + 3 * number) % count for number in range(per_block)) for block in range(count)),
    )


BLOCKS = KernelRequest(Visibility(blocks=random_blocks(512, 2), global_tokens=8))


@pytest.mark.parametrize(
    "demand", [GAPS, BLOCKS, KernelRequest(Visibility(window=8, global_tokens=3))], ids=["gaps", "blocks", "first"]
)
def test_gathered_is_chosen_for_sparse_attention_on_long_sequences(demand: KernelRequest) -> None:
    assert choose_kernel(KERNELS, demand).name == "gathered"
    assert choose_kernel(KERNELS, demand._replace(queries=4096)).name == "gathered"
    assert choose_kernel(KERNELS, demand._replace(queries=4096, bias="positions")).name == "gathered"
    assert choose_kernel(KERNELS, demand._replace(queries=4096, has_sinks=True)).name == "gathered"
    assert choose_kernel(KERNELS, demand._replace(queries=32)).name == "sdpa"


@pytest.mark.parametrize("demand", [GAPS, BLOCKS], ids=["gaps", "blocks"])
@pytest.mark.parametrize(
    "changes",
    [
        {"visibility": Visibility()},
        {"visibility": Visibility(window=8)},
        {"visibility": Visibility(global_tokens=8)},
        {"aligned": False},
        {"has_order": True},
        {"window_by_index": False},
        {"bias": "content"},
        {"needs_weights": True},
        {"has_mix": True},
        {"soft_cap": True},
        {"has_score_functions": True},
    ],
    ids=str,
)
def test_gathered_does_not_serve_unsupported_requests(demand: KernelRequest, changes: dict[str, object]) -> None:
    assert not GATHERED.serves(demand._replace(**changes))  # type: ignore[arg-type]  # values of several types


def test_gathered_does_not_serve_more_tokens_than_its_blocks() -> None:
    assert GATHERED.serves(BLOCKS._replace(queries=4096))
    assert not GATHERED.serves(BLOCKS._replace(queries=4097))


SIGHTS = [
    Visibility(True, 5, 3, 2),
    Visibility(False, 5, 3, 0),
    Visibility(False, 5, 3, 2),
    Visibility(False, 40, 1, 21),
    Visibility(True, 1, 7),
    Visibility(True, None, 1, 8, random_blocks(13, 2)),
    Visibility(False, None, 1, 19, random_blocks(13, 2)),
    Visibility(False, None, 1, 0, random_blocks(13, 0, near=2)),
]


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
@pytest.mark.parametrize("rows", [1, 60, 97])
def test_each_block_gathers_every_visible_key(sight: Visibility, rows: int) -> None:
    layout = layout_of(sight)
    queries_by_block = layout.own(rows, torch.device("cpu"))
    keys_by_block = gathered_indices(sight, layout, rows, torch.empty(0))
    layout_of_all = with_order(TokenLayout(torch.arange(rows).unsqueeze(0)))
    visible = visibility_mask(sight, layout_of_all, layout_of_all, window_by_index=True)
    assert visible is not None
    queries = [query for block in queries_by_block.tolist() for query in block if query < rows]
    assert sorted(queries) == list(range(min(layout.start, rows), rows))  # each query is in one block
    for block, keys in zip(queries_by_block.tolist(), keys_by_block.tolist(), strict=True):
        for query in block:
            if query >= rows or (query < sight.global_tokens and not sight.causal):
                continue  # padding, and global queries
            assert set(visible[0, 0, query].nonzero().flatten().tolist()) <= set(keys)


@pytest.mark.parametrize(("rows", "layout"), [(7, (4, 2, 1)), (12, (4, 1, 4)), (3, (8, 3, 0)), (2, (4, 1, 4))])
def test_cut_and_joined_blocks_round_trip(rows: int, layout: tuple[int, int, int]) -> None:
    size, stride, start = layout
    block_layout = BlockLayout(size, 0, 0, stride, start)
    x = torch.randn(2, 3, rows, 5)
    blocks = block_layout.cut(x)
    for block, block_rows in enumerate(block_layout.own(rows, x.device).tolist()):
        for index, row in enumerate(block_rows):
            expected = x[:, :, row] if row < rows else torch.zeros(2, 3, 5)
            assert torch.equal(blocks.unflatten(0, (2, -1))[:, block, :, index], expected)
    assert torch.equal(block_layout.joined(blocks, rows), x[:, :, start:])


def test_gather_reads_each_sequence_separately() -> None:
    x = torch.randn(2, 3, 7, 5)
    rows = torch.tensor([[0, 6, 6, 2], [1, 2, 3, 4]])
    expected = torch.cat([x[b][:, rows].transpose(0, 1) for b in range(2)])
    assert torch.equal(gather(x, rows), expected)


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "right", "apart", "nothing"])
def test_gathered_equals_eager_with_sinks(sight: Visibility, kind: str, planned: Planned, rows: Kinds) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 97, 6, generator=draw, dtype=torch.float64) for heads in (4, 2, 2))
    sinks = torch.linspace(-1, 2, 4, dtype=torch.float64)
    leaves = [leaf.requires_grad_() for leaf in (q, k, v, sinks)]
    content = LayerScoring(None, lambda table: (table, table), sinks=sinks)
    like, demand = torch.zeros(2, 97, 24, dtype=torch.float64), KernelRequest(sight, has_sinks=True)
    outputs = [
        kernel(q, k, v, planned(kernel, sight, rows(kind, 97), like=like, demand=demand), content, 0.0)
        for kernel in (GATHERED, KERNELS[-1])
    ]
    assert torch.allclose(outputs[0], outputs[1], rtol=0, atol=1e-9)
    grads = [torch.autograd.grad(output.sin().sum(), leaves) for output in outputs]
    for actual_grad, expected_grad in zip(*grads, strict=True):
        assert torch.allclose(actual_grad, expected_grad, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "sight", [Visibility(False, 5, 3, 2), Visibility(True, None, 1, 8, random_blocks(13, 2))], ids=str
)
def test_dropout_zeroes_or_rescales_each_weight(sight: Visibility, planned: Planned, rows: Kinds) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 4, 97, 97, dtype=torch.float64)
    v = torch.eye(97, dtype=torch.float64).expand(2, 4, 97, 97)  # the output equals the weights
    plan = planned(GATHERED, sight, rows("plain", 97), like=torch.zeros(2, 97, 24, dtype=torch.float64))
    weights, dropped = (GATHERED(q, k, v, plan, None, share) for share in (0.0, 0.25))
    assert torch.allclose(weights.sum(-1), torch.ones(2, 4, 97, dtype=torch.float64))
    gone = (dropped == 0) & (weights > 0)
    assert torch.allclose(dropped, torch.where(gone, 0, weights / 0.75))
    assert 0.2 < gone.sum() / (weights > 0).sum() < 0.3


LONG = [
    Visibility(True, 16, 4),
    Visibility(False, 16, 4, 2),
    Visibility(True, None, 1, 32, random_blocks(128, 3, size=16)),
    Visibility(False, None, 1, 32, random_blocks(128, 3, size=16)),
]


def measure_costs(sight: Visibility, length: int, planned: Planned, rows: Kinds) -> tuple[int, int, int]:
    """Return floating-point operations, bytes saved for the backward pass, and bytes of the prepared data."""
    plan = planned(GATHERED, sight, rows("shared", length), like=torch.zeros(1, length, 24))
    assert isinstance(plan.kernel_data, GatheredBlocks)
    storage_sizes: dict[int, int] = {}

    def keep(saved: Tensor) -> Tensor:
        storage_sizes[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    q, k, v = (torch.randn(1, 4, length, 6, requires_grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        GATHERED(q, k, v, plan, None, 0.0).sum()
    kernel_data = plan.kernel_data
    on_meta = plan._replace(
        kernel_data=kernel_data._replace(mask=kernel_data.mask.to("meta"), keys=kernel_data.keys.to("meta"))
    )
    with FlopCounterMode(display=False) as counter:
        GATHERED(q.to("meta"), k.to("meta"), v.to("meta"), on_meta, None, 0.0)
    return counter.get_total_flops(), sum(storage_sizes.values()), kernel_data.mask.nbytes + kernel_data.keys.nbytes


@pytest.mark.parametrize("sight", LONG, ids=["gaps", "gaps-first", "blocks-causal", "blocks"])
def test_operations_and_memory_are_linear_in_the_length(sight: Visibility, planned: Planned, rows: Kinds) -> None:
    assert GATHERED.serves(KernelRequest(sight, queries=512))
    assert GATHERED.serves(KernelRequest(sight, queries=2048))
    short, long = measure_costs(sight, 512, planned, rows), measure_costs(sight, 2048, planned, rows)
    for short_cost, long_cost in zip(short, long, strict=True):
        assert 0 < long_cost <= 4.3 * short_cost  # global blocks are not gathered, so the short one has slightly fewer
    assert long[0] == 4 * 4 * 6 * pair_count(sight, 2048)  # heads, a multiply-add twice, their width


@pytest.mark.parametrize("sight", LONG[2:], ids=["causal", "both"])
def test_block_attention_computes_exactly_its_declared_pairs(sight: Visibility) -> None:
    assert pair_count(sight, 2048) == sight.pairs(2048, 2048)


@pytest.mark.parametrize("sight", LONG[:2], ids=["gaps", "first"])
def test_dilated_windows_compute_less_than_three_times_the_visible_pairs(sight: Visibility) -> None:
    assert sight.pairs(2048, 2048) <= pair_count(sight, 2048) < 3 * sight.pairs(2048, 2048)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of torch.compile itself
@pytest.mark.parametrize("sight", [SIGHTS[2], SIGHTS[5], SIGHTS[6]], ids=str)
def test_gathered_compiles_into_one_graph(sight: Visibility, planned: Planned) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        plan = planned(GATHERED, sight, TokenLayout(positions), like=q.transpose(1, 2).flatten(2))
        return GATHERED(q, k, v, plan, None, 0.0)

    q, k, v = (torch.randn(2, 4, 97, 8, dtype=torch.float64).requires_grad_() for _ in range(3))
    leaves, positions = (q, k, v), torch.arange(97).unsqueeze(0)
    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    outputs = compiled(q, k, v, positions), attend(q, k, v, positions)
    assert torch.allclose(outputs[0], outputs[1], rtol=0, atol=1e-12)
    grads = [torch.autograd.grad(output.sin().sum(), leaves) for output in outputs]
    for actual_grad, expected_grad in zip(*grads, strict=True):
        assert torch.allclose(actual_grad, expected_grad, rtol=0, atol=1e-12)


def test_blocks_have_about_the_size_of_the_window() -> None:
    for window in (1, 2, 16, 65, 500):
        layout = layout_of(Visibility(False, window, 2))
        assert layout.left == layout.right == window - 1
        assert 16 <= layout.size <= 128
        assert layout.size in (16, 128) or 0.7 < layout.size / max(window - 1, 1) < math.sqrt(2) + 1e-9
