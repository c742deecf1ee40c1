"""The kernel of sparse sights: what it leaves to others, and that its work and its memory are linear in the rows."""

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
from paribus.parts.attention_plan import choose_kernel
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring
from paribus.parts.visibility import visibility_mask, with_order

Planned = Callable[..., AttentionPlan]
Kinds = Callable[[str, int], TokenLayout]
GATHERED = Gathered()
GAPS = KernelRequest(Visibility(causal=True, window=8, dilation=3))


def drawn(count: int, most: int, size: int = 8, near: int = 1) -> BlockPattern:
    """Blocks that see others all over the place: some near, some twice over, some fewer than others."""
    return BlockPattern(
        size, near, tuple(tuple((block * 5 + 3 * at) % count for at in range(most)) for block in range(count))
    )


BLOCKS = KernelRequest(Visibility(blocks=drawn(512, 2), global_tokens=8))


@pytest.mark.parametrize(
    "demand", [GAPS, BLOCKS, KernelRequest(Visibility(window=8, global_tokens=3))], ids=["gaps", "blocks", "first"]
)
def test_it_is_chosen_where_what_is_seen_is_little_against_the_rows(demand: KernelRequest) -> None:
    assert choose_kernel(KERNELS, demand).name == "gathered"
    assert choose_kernel(KERNELS, demand._replace(queries=4096)).name == "gathered"
    assert choose_kernel(KERNELS, demand._replace(queries=4096, bias="positions")).name == "gathered"
    assert choose_kernel(KERNELS, demand._replace(queries=4096, has_sinks=True)).name == "gathered"
    assert choose_kernel(KERNELS, demand._replace(queries=32)).name == "sdpa"


@pytest.mark.parametrize("demand", [GAPS, BLOCKS], ids=["gaps", "blocks"])
@pytest.mark.parametrize(
    "asked",
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
def test_it_leaves_to_others_what_it_cannot_compute(demand: KernelRequest, asked: dict[str, object]) -> None:
    assert not GATHERED.serves(demand._replace(**asked))  # type: ignore[arg-type]  # of as many types as fields


def test_it_leaves_rows_behind_the_last_drawn_block_to_others() -> None:
    assert GATHERED.serves(BLOCKS._replace(queries=4096))
    assert not GATHERED.serves(BLOCKS._replace(queries=4097))


SIGHTS = [
    Visibility(True, 5, 3, 2),
    Visibility(False, 5, 3, 0),
    Visibility(False, 5, 3, 2),
    Visibility(False, 40, 1, 21),
    Visibility(True, 1, 7),
    Visibility(True, None, 1, 8, drawn(13, 2)),
    Visibility(False, None, 1, 19, drawn(13, 2)),
    Visibility(False, None, 1, 0, drawn(13, 0, near=2)),
]


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
@pytest.mark.parametrize("rows", [1, 60, 97])
def test_each_block_meets_every_key_that_its_queries_see(sight: Visibility, rows: int) -> None:
    layout = layout_of(sight)
    own = layout.own(rows, torch.device("cpu"))
    meets = gathered_indices(sight, layout, rows, torch.device("cpu"))
    every = with_order(TokenLayout(torch.arange(rows).unsqueeze(0)))
    seen = visibility_mask(sight, every, every, window_by_index=True)
    assert seen is not None
    asked = [query for block in own.tolist() for query in block if query < rows]
    assert sorted(asked) == list(range(min(layout.start, rows), rows))  # each row in one block
    for block, keys in zip(own.tolist(), meets.tolist(), strict=True):
        for query in block:
            if query >= rows or (query < sight.global_tokens and not sight.causal):
                continue  # padding, and rows that attend in full
            assert set(seen[0, 0, query].nonzero().flatten().tolist()) <= set(keys)


@pytest.mark.parametrize(("rows", "layout"), [(7, (4, 2, 1)), (12, (4, 1, 4)), (3, (8, 3, 0)), (2, (4, 1, 4))])
def test_what_is_cut_can_be_joined(rows: int, layout: tuple[int, int, int]) -> None:
    size, stride, start = layout
    made = BlockLayout(size, 0, 0, stride, start)
    x = torch.randn(2, 3, rows, 5)
    blocks = made.cut(x)
    for place, own in enumerate(made.own(rows, x.device).tolist()):
        for at, row in enumerate(own):
            wanted = x[:, :, row] if row < rows else torch.zeros(2, 3, 5)
            assert torch.equal(blocks.unflatten(0, (2, -1))[:, place, :, at], wanted)
    assert torch.equal(made.joined(blocks, rows), x[:, :, start:])


def test_gathered_rows_are_those_of_their_own_sequence() -> None:
    x = torch.randn(2, 3, 7, 5)
    rows = torch.tensor([[0, 6, 6, 2], [1, 2, 3, 4]])
    wanted = torch.cat([x[b][:, rows].transpose(0, 1) for b in range(2)])
    assert torch.equal(gather(x, rows), wanted)


@pytest.mark.parametrize("sight", SIGHTS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "right", "apart", "nothing"])
def test_it_agrees_where_queries_may_weigh_nothing(sight: Visibility, kind: str, planned: Planned, rows: Kinds) -> None:
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
    for ours, theirs in zip(*grads, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sight", [Visibility(False, 5, 3, 2), Visibility(True, None, 1, 8, drawn(13, 2))], ids=str)
def test_dropout_leaves_a_weight_out_or_raises_it(sight: Visibility, planned: Planned, rows: Kinds) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 4, 97, 97, dtype=torch.float64)
    v = torch.eye(97, dtype=torch.float64).expand(2, 4, 97, 97)  # so that what comes out are the weights
    plan = planned(GATHERED, sight, rows("plain", 97), like=torch.zeros(2, 97, 24, dtype=torch.float64))
    kept, dropped = (GATHERED(q, k, v, plan, None, share) for share in (0.0, 0.25))
    assert torch.allclose(kept.sum(-1), torch.ones(2, 4, 97, dtype=torch.float64))
    gone = (dropped == 0) & (kept > 0)
    assert torch.allclose(dropped, torch.where(gone, 0, kept / 0.75))
    assert 0.2 < gone.sum() / (kept > 0).sum() < 0.3


LONG = [
    Visibility(True, 16, 4),
    Visibility(False, 16, 4, 2),
    Visibility(True, None, 1, 32, drawn(128, 3, size=16)),
    Visibility(False, None, 1, 32, drawn(128, 3, size=16)),
]


def measured(sight: Visibility, length: int, planned: Planned, rows: Kinds) -> tuple[int, int, int]:
    """Floating-point operations, bytes kept for the backward pass, and those of what was prepared."""
    plan = planned(GATHERED, sight, rows("shared", length), like=torch.zeros(1, length, 24))
    assert isinstance(plan.kernel_data, GatheredBlocks)
    kept: dict[int, int] = {}

    def keep(saved: Tensor) -> Tensor:
        kept[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    q, k, v = (torch.randn(1, 4, length, 6, requires_grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        GATHERED(q, k, v, plan, None, 0.0).sum()
    made = plan.kernel_data
    on_meta = plan._replace(kernel_data=made._replace(mask=made.mask.to("meta"), keys=made.keys.to("meta")))
    with FlopCounterMode(display=False) as counter:
        GATHERED(q.to("meta"), k.to("meta"), v.to("meta"), on_meta, None, 0.0)
    return counter.get_total_flops(), sum(kept.values()), made.mask.nbytes + made.keys.nbytes


@pytest.mark.parametrize("sight", LONG, ids=["gaps", "gaps-first", "blocks-causal", "blocks"])
def test_work_and_memory_are_linear_in_the_rows(sight: Visibility, planned: Planned, rows: Kinds) -> None:
    assert GATHERED.serves(KernelRequest(sight, queries=512))
    assert GATHERED.serves(KernelRequest(sight, queries=2048))
    short, long = measured(sight, 512, planned, rows), measured(sight, 2048, planned, rows)
    for one, other in zip(short, long, strict=True):
        assert 0 < other <= 4.3 * one  # blocks that see all are not cut, so that a few are missing from the short one
    assert long[0] == 4 * 4 * 6 * pair_count(sight, 2048)  # heads, a multiply-add twice, their width


@pytest.mark.parametrize("sight", LONG[2:], ids=["causal", "both"])
def test_of_blocks_no_more_is_computed_than_they_are_said_to_cost(sight: Visibility) -> None:
    assert pair_count(sight, 2048) == sight.pairs(2048, 2048)


@pytest.mark.parametrize("sight", LONG[:2], ids=["gaps", "first"])
def test_of_windows_less_than_thrice_what_they_see_is_computed(sight: Visibility) -> None:
    assert sight.pairs(2048, 2048) <= pair_count(sight, 2048) < 3 * sight.pairs(2048, 2048)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # dynamo's own
@pytest.mark.parametrize("sight", [SIGHTS[2], SIGHTS[5], SIGHTS[6]], ids=str)
def test_it_compiles_into_one_graph(sight: Visibility, planned: Planned) -> None:
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
    for ours, theirs in zip(*grads, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


def test_a_layout_is_of_half_a_windows_span() -> None:
    for window in (1, 2, 16, 65, 500):
        layout = layout_of(Visibility(False, window, 2))
        assert layout.left == layout.right == window - 1
        assert 16 <= layout.size <= 128
        assert layout.size in (16, 128) or 0.7 < layout.size / max(window - 1, 1) < math.sqrt(2) + 1e-9
