"""Every kernel equals `eager` on every request that it serves, including gradients."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paribus import BlockPattern, ScoreFunctions, TokenLayout, Visibility
from paribus.kernels import KERNELS
from paribus.parts.attend import attention_weights
from paribus.parts.context import AttentionPlan, Kernel, KernelRequest, LayerScoring, Pair

Planned = Callable[..., AttentionPlan]
Kinds = Callable[[str, int], TokenLayout]

TOLERANCE = 1e-9
ROWS = ("plain", "shared", "right", "apart", "left", "packed", "nothing", "restarted", "gaps", "order")
BY_POSITION = ("left", "packed", "gaps")  # kinds whose windows are measured in positions
EAGER = KERNELS[-1]
FASTER = KERNELS[:-1]
HERE = [
    kernel for kernel in KERNELS if kernel.name != "flex"
]  # which has gradients on a GPU alone, and a file of tests


def faster(demand: KernelRequest) -> pytest.MarkDecorator:
    """Parametrize a test over the kernels besides `eager` that serve a request."""
    return pytest.mark.parametrize("kernel", [kernel for kernel in FASTER if kernel.serves(demand)], ids=kernel_id)


def kernel_id(kernel: Kernel) -> str:
    return kernel.name


def random_heads(length: int, keys: int | None = None, groups: int = 4, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (2, 4, T, 6), keys and values (2, G, S, 6), in the memory order of projections."""
    draw = torch.Generator().manual_seed(seed)
    sizes = ((length, 4), (keys or length, groups), (keys or length, groups))
    tensors = [torch.randn(2, rows, heads, 6, generator=draw, dtype=torch.float64) for rows, heads in sizes]
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in tensors)
    return q, k, v


def like(rows: int) -> Tensor:
    return torch.zeros(2, rows, 24, dtype=torch.float64)


def check_equal(got: Tensor, expected: Tensor, leaves: tuple[Tensor, ...]) -> None:
    assert torch.allclose(got, expected, rtol=0, atol=TOLERANCE)
    weights = torch.linspace(-1, 1, got.numel(), dtype=got.dtype).view(got.shape)
    for gradient, expected_gradient in zip(
        torch.autograd.grad((got * weights).sum(), leaves),
        torch.autograd.grad((expected * weights).sum(), leaves),
        strict=True,
    ):
        assert torch.isfinite(gradient).all()
        assert torch.allclose(gradient, expected_gradient, rtol=0, atol=TOLERANCE)


DRAWN = BlockPattern(8, 1, tuple((block * 5 % 13,) for block in range(13)))  # 13 blocks of 8 tokens, enough for 97


def visibility_id(sight: Visibility) -> str:
    name = (
        f"{sight.window}x{sight.dilation}+{sight.global_tokens}"
        if sight.blocks is None
        else f"blocks+{sight.global_tokens}"
    )
    return f"{name}-causal" if sight.causal else name


SIGHTS = [
    *(Visibility(causal, window) for causal in (True, False) for window in (None, 1, 4, 40)),
    *(
        Visibility(causal, 4, dilation, global_tokens)
        for causal in (True, False)
        for dilation, global_tokens in ((3, 0), (1, 2), (2, 1))
    ),
    *(Visibility(causal, None, 1, global_tokens, DRAWN) for causal in (True, False) for global_tokens in (0, 8)),
]
CELLS = [
    pytest.param(kernel, sight, kind, bias, id=f"{kernel.name}-{visibility_id(sight)}-{kind}-{bias}")
    for kernel in FASTER
    for sight in SIGHTS
    for kind in ROWS
    for bias in ("none", "positions")
    if kernel.serves(KernelRequest(sight, bias, has_order=kind == "order", window_by_index=kind not in BY_POSITION))
]


@pytest.mark.covering
@pytest.mark.parametrize(("kernel", "sight", "kind", "biased"), CELLS)
def test_a_kernel_equals_eager(
    kernel: Kernel, sight: Visibility, kind: str, biased: str, planned: Planned, rows: Kinds
) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.1, 0.0], dtype=torch.float64, requires_grad=True)

    def bias(pair: Pair) -> Tensor:
        distance = pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)
        return -slopes[:, None, None] * distance.abs().unsqueeze(1)

    added = bias if biased == "positions" else None
    for length, groups in ((1, 2), (70, 1), (97, 4)):
        batch = rows(kind, length)
        q, k, v = random_heads(length, groups=groups)
        got, expected = (
            tested_kernel(q, k, v, planned(tested_kernel, sight, batch, like=like(length), bias=added), None, 0.0)
            for tested_kernel in (kernel, EAGER)
        )
        check_equal(got, expected, (q, k, v, slopes) if added else (q, k, v))


@faster(KernelRequest(Visibility(), has_sinks=True))
@pytest.mark.parametrize("sight", [Visibility(), Visibility(causal=True), Visibility(causal=True, window=3)], ids=str)
@pytest.mark.parametrize("fresh", [1, 97])
def test_a_kernel_equals_eager_with_sinks(
    kernel: Kernel, sight: Visibility, fresh: int, planned: Planned, rows: Kinds
) -> None:
    sinks = torch.linspace(-1, 2, 4, dtype=torch.float64, requires_grad=True)
    content = LayerScoring(None, lambda table: (table, table), sinks=sinks)
    for kind in ("plain", "right", "packed", "nothing"):
        keys = rows(kind, 97)
        queries = keys.span(97 - fresh, 97)
        demand = KernelRequest(sight, has_sinks=True, aligned=fresh == 97)
        if not kernel.serves(demand):
            continue
        q, k, v = random_heads(fresh, 97, groups=2)
        got, expected = (
            tested_kernel(
                q,
                k,
                v,
                planned(tested_kernel, sight, queries, keys, like=like(fresh), demand=demand, past=97 - fresh),
                content,
                0.0,
            )
            for tested_kernel in (kernel, EAGER)
        )
        check_equal(got, expected, (q, k, v, sinks))


@pytest.mark.covering
@faster(KernelRequest(Visibility(causal=True, window=3)))
@pytest.mark.parametrize("sight", [Visibility(causal=True), Visibility(causal=True, window=3)], ids=str)
@pytest.mark.parametrize("width", [2, 9])
@pytest.mark.parametrize("fresh", [1, 97])
def test_values_may_be_narrower_or_wider_than_keys(
    kernel: Kernel, sight: Visibility, width: int, fresh: int, planned: Planned, rows: Kinds
) -> None:
    sinks = torch.linspace(-1, 2, 4, dtype=torch.float64, requires_grad=True)
    q, k, v = random_heads(fresh, 97, groups=2)
    v = torch.cat([v.detach(), 2 * v.detach()], dim=-1)[..., :width].requires_grad_()
    for weighs in (None, LayerScoring(None, lambda table: (table, table), sinks=sinks)):
        demand = KernelRequest(sight, has_sinks=weighs is not None, aligned=fresh == 97)
        if not kernel.serves(demand):
            continue
        keys = rows("right", 97)
        queries = keys.span(97 - fresh, 97)
        plans = [
            planned(tested_kernel, sight, queries, keys, like=like(fresh), demand=demand, past=97 - fresh)
            for tested_kernel in (kernel, EAGER)
        ]
        got, expected = (
            tested_kernel(q, k, v, plan, weighs, 0.0)
            for tested_kernel, plan in zip((kernel, EAGER), plans, strict=True)
        )
        assert got.shape == (2, 4, fresh, width)
        check_equal(got, expected, (q, k, v))


def test_a_sink_has_a_share_of_the_weights(planned: Planned, rows: Kinds) -> None:
    q, k, _ = random_heads(5)
    v = torch.eye(5, dtype=torch.float64).expand(2, 4, 5, 5)  # the output equals the weights
    sinks = torch.tensor([-torch.inf, 0.0, 1.0, 50.0], dtype=torch.float64)
    plan = planned(
        EAGER, Visibility(), rows("plain", 5), like=like(5), demand=KernelRequest(Visibility(), has_sinks=True)
    )
    weights = EAGER(q, k, v, plan, LayerScoring(None, lambda table: (table, table), sinks=sinks), 0.0)
    scores = (q @ k.transpose(-1, -2) * 0.7).exp()
    expected = scores / (scores.sum(-1, keepdim=True) + sinks.exp().view(1, 4, 1, 1))
    assert torch.allclose(weights, expected, rtol=0, atol=TOLERANCE)
    assert torch.allclose(weights[:, 0].sum(-1), torch.ones(2, 5, dtype=torch.float64))


def test_score_functions_replace_scores_and_weights(planned: Planned, rows: Kinds) -> None:
    q, k, v = random_heads(6, groups=2)
    plan = planned(
        EAGER,
        Visibility(causal=True),
        rows("right", 6),
        like=like(6),
        demand=KernelRequest(Visibility(causal=True), has_score_functions=True),
    )
    scoring = ScoreFunctions(
        lambda q, k, scale: -(q.unsqueeze(3) - k.unsqueeze(2)).square().sum(-1) * scale,
        map_scores=lambda scores: scores.flip(1),
        map_weights=lambda weights: weights * 2,
    )
    mixed = EAGER(q, k, v, plan, LayerScoring(None, lambda table: (table, table), functions=scoring), 0.0)
    spread = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    for b, h, t in itertools.product(range(2), range(4), range(6)):
        visible_keys = [s for s in range(t + 1) if plan.k.documents is None or bool(plan.k.documents[b, s] >= 0)]
        if plan.q.documents is not None and plan.q.documents[b, t] < 0:
            continue
        away = torch.stack([(q[b, 3 - h, t] - spread[0][b, 3 - h, s]).square().sum() for s in visible_keys])
        expected = 2 * (
            (-0.7 * away).softmax(0).unsqueeze(-1) * torch.stack([spread[1][b, h, s] for s in visible_keys])
        ).sum(0)
        assert torch.allclose(mixed[b, h, t], expected, rtol=0, atol=TOLERANCE)


def scored(normalize: Callable[[Tensor, Tensor], Tensor], sinks: Tensor | None = None) -> LayerScoring:
    """Return the scoring of a layer that replaces the softmax."""
    functions = ScoreFunctions(normalize=normalize)
    return LayerScoring(None, lambda table: (table, table), sinks=sinks, functions=functions)


@pytest.mark.parametrize("sight", [Visibility(), Visibility(causal=True), Visibility(causal=True, window=3)], ids=str)
@pytest.mark.parametrize("kind", ["plain", "right", "left", "packed", "nothing", "order"])
def test_a_normalization_receives_visible_keys_and_no_empty_row(
    kind: str, sight: Visibility, planned: Planned, rows: Kinds
) -> None:
    q, k, v = random_heads(9)
    plan = planned(EAGER, sight, rows(kind, 9), like=like(9))
    seen = plan.kernel_data.seen
    seen = torch.ones(1, 1, 9, 9, dtype=torch.bool) if seen is None else seen
    is_empty = ~seen.any(-1, keepdim=True)

    def count_keys(scores: Tensor, visible: Tensor) -> Tensor:
        assert torch.equal(visible.expand_as(seen), seen | is_empty)
        lowest = torch.finfo(scores.dtype).min
        assert torch.equal(scores == lowest, ~visible.expand_as(scores))
        # Undefined at hidden keys, and where no key is visible.
        return (scores - lowest).log() * 0 + visible.sum(-1, keepdim=True, dtype=scores.dtype).pow(-1)

    weights = attention_weights(q, k, plan, scored(count_keys))
    shares = seen.double() / seen.sum(-1, keepdim=True).clamp(min=1)
    assert torch.allclose(weights, shares.expand_as(weights), rtol=0, atol=TOLERANCE)
    assert (weights[~seen.expand_as(weights)] == 0).all()
    mixed = EAGER(q, k, v, plan, scored(count_keys), 0.0)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(mixed.sin().sum(), (q, k, v)))


@pytest.mark.parametrize("kind", ["plain", "nothing"])
def test_a_sink_is_the_last_column_of_a_normalization(kind: str, planned: Planned, rows: Kinds) -> None:
    q, k, _ = random_heads(6)
    plan, sinks = planned(EAGER, Visibility(causal=True), rows(kind, 6), like=like(6)), torch.arange(4.0).double()

    def shares(scores: Tensor, visible: Tensor) -> Tensor:
        assert torch.equal(scores[..., -1], sinks.view(1, 4, 1).expand(2, 4, 6))
        assert bool(visible[..., -1].all())
        return visible.double() / visible.sum(-1, keepdim=True) + 0 * scores

    weights = attention_weights(q, k, plan, scored(shares, sinks))
    keys = torch.arange(1, 7, dtype=torch.float64)
    assert torch.allclose(weights[0, 0].sum(-1), keys / (keys + 1), rtol=0, atol=TOLERANCE)


def test_weights_of_another_shape_are_an_error(planned: Planned, rows: Kinds) -> None:
    q, k, _ = random_heads(6)
    plan = planned(EAGER, Visibility(causal=True), rows("plain", 6), like=like(6))
    with pytest.raises(ValueError, match=r"shape \(2, 4, 6, 6\) from `normalize`, got \(2, 4, 6, 1\)"):
        attention_weights(q, k, plan, scored(lambda scores, visible: scores.sum(-1, keepdim=True)))


@faster(KernelRequest(Visibility(), "content"))
@pytest.mark.parametrize("sight", [Visibility(), Visibility(causal=True), Visibility(causal=True, window=3)], ids=str)
def test_a_kernel_equals_eager_with_a_content_bias(
    kernel: Kernel, sight: Visibility, planned: Planned, rows: Kinds
) -> None:
    demand = KernelRequest(sight, "content")
    q, k, v = random_heads(9, groups=2)

    def bias(pair: Pair) -> Tensor:
        assert pair.q is not None
        assert pair.k is not None
        assert pair.k.shape == pair.q.shape  # as many heads as queries, also with shared heads
        assert pair.visible is not None or sight == Visibility()
        counts = 1 if pair.visible is None else pair.visible.cumsum(-1)
        return (pair.q.sum(-1).unsqueeze(-1) * pair.k.prod(-1).unsqueeze(-2)) * pair.scale * counts

    content = LayerScoring(bias, lambda table: (table, table))
    for kind in ("plain", "right", "nothing"):
        got, expected = (
            tested_kernel(
                q, k, v, planned(tested_kernel, sight, rows(kind, 9), like=like(9), demand=demand), content, 0.0
            )
            for tested_kernel in (kernel, EAGER)
        )
        check_equal(got, expected, (q, k, v))


@pytest.mark.covering
@faster(KernelRequest(Visibility(), aligned=False))
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("fresh", [1, 3])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
@pytest.mark.parametrize("kind", ["plain", "left", "packed"])
@pytest.mark.parametrize("window", [None, 4])
def test_a_kernel_equals_eager_with_a_cache(
    kernel: Kernel, groups: int, fresh: int, biased: bool, kind: str, window: int | None, planned: Planned, rows: Kinds
) -> None:
    def bias(pair: Pair) -> Tensor:
        distance = (pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)).to(torch.float64)
        return torch.stack([distance, -distance, distance * 2, distance**2], dim=1)

    sight = Visibility(causal=True, window=window)
    keys = rows(kind, 10)
    queries = keys.span(10 - fresh, 10)
    q, k, v = random_heads(fresh, 10, groups)
    got, expected = (
        tested_kernel(
            *(q, k, v),
            planned(
                tested_kernel, sight, queries, keys, like=like(fresh), bias=bias if biased else None, past=10 - fresh
            ),
            *(None, 0.0),
        )
        for tested_kernel in (kernel, EAGER)
    )
    check_equal(got, expected, (q, k, v))


@faster(KernelRequest(Visibility(), aligned=False))
def test_a_kernel_equals_eager_on_a_memory_of_another_length(kernel: Kernel, planned: Planned, rows: Kinds) -> None:
    q, k, v = random_heads(5, 8, 2)
    for kind in ("plain", "right", "left", "nothing"):
        memory = rows(kind, 8)
        got, expected = (
            tested_kernel(
                q, k, v, planned(tested_kernel, Visibility(), rows("plain", 5), memory, like=like(5)), None, 0.0
            )
            for tested_kernel in (kernel, EAGER)
        )
        check_equal(got, expected, (q, k, v))


@faster(KernelRequest(Visibility(causal=True), has_order=True, aligned=False))
def test_a_kernel_equals_eager_with_a_query_stream(kernel: Kernel, planned: Planned) -> None:
    rank = torch.tensor([[2, 0, 3, 1], [0, 1, 2, 3]])
    positions = torch.arange(4).expand(2, -1)
    content = TokenLayout(positions, None, 2 * rank)
    both = TokenLayout(positions.repeat(1, 2), None, torch.cat([2 * rank, 2 * rank - 1], dim=1))
    q, k, v = random_heads(8, 4, 2)
    got, expected = (
        tested_kernel(q, k, v, planned(tested_kernel, Visibility(causal=True), both, content, like=like(8)), None, 0.0)
        for tested_kernel in (kernel, EAGER)
    )
    check_equal(got, expected, (q, k, v))


@pytest.mark.parametrize("kernel", HERE, ids=kernel_id)
@pytest.mark.parametrize("kind", ["nothing", "right", "left"])
def test_a_query_without_visible_keys_has_zero_output_and_zero_gradient(
    kernel: Kernel, kind: str, planned: Planned, rows: Kinds
) -> None:
    sight = Visibility(causal=True, window=4)
    batch = rows(kind, 70)
    assert batch.documents is not None
    hidden = batch.documents < 0
    assert hidden.any()
    q, k, v = random_heads(70)
    mixed = kernel(q, k, v, planned(kernel, sight, batch, like=like(70)), None, 0.0)
    assert (mixed.transpose(1, 2)[hidden] == 0).all()
    for leaf, grad in zip((q, k, v), torch.autograd.grad(mixed.sin().sum(), (q, k, v)), strict=True):
        assert torch.isfinite(grad).all(), leaf.shape
        assert (grad.transpose(1, 2)[hidden] == 0).all()


@pytest.mark.parametrize("kernel", HERE, ids=kernel_id)
def test_dropout_zeroes_or_rescales_each_weight(kernel: Kernel, planned: Planned, rows: Kinds) -> None:
    sight = Visibility(causal=True, window=5)
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 4, 64, 64, dtype=torch.float64)
    v = torch.eye(64, dtype=torch.float64).expand(2, 4, 64, 64)  # the output equals the weights
    plan = planned(kernel, sight, rows("plain", 64), like=like(64))
    weights = kernel(q, k, v, plan, None, 0.0)
    dropped = kernel(q, k, v, plan, None, 0.25)
    gone = (dropped == 0) & (weights > 0)
    assert torch.allclose(dropped, torch.where(gone, 0, weights / 0.75))
    assert 0.2 < gone.sum() / (weights > 0).sum() < 0.3


def test_the_last_kernel_serves_every_remaining_request() -> None:
    assert EAGER.name == "eager"
    for demand in (
        KernelRequest(Visibility(), needs_weights=True),
        KernelRequest(Visibility(), has_mix=True),
        KernelRequest(Visibility(), soft_cap=True),
        KernelRequest(Visibility(), has_score_functions=True),
        KernelRequest(
            Visibility(causal=True, window=3),
            "content",
            needs_weights=True,
            has_mix=True,
            soft_cap=True,
            has_order=True,
        ),
    ):
        assert [kernel.name for kernel in KERNELS if kernel.serves(demand)] == ["eager"]


def test_names_of_kernels_equal_those_of_their_modules() -> None:
    assert [(kernel.name, type(kernel).__module__) for kernel in KERNELS] == [
        (name, f"paribus.kernels.{name}") for name in ("blocked", "gathered", "flex", "sdpa", "eager")
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", HERE, ids=kernel_id)
def test_a_kernel_on_a_gpu_equals_eager(kernel: Kernel, planned: Planned, rows: Kinds) -> None:
    for kind, window, groups in itertools.product(ROWS, (None, 4), (2, 4)):
        sight, batch = Visibility(causal=True, window=window), rows(kind, 97)
        by_row = batch.documents is None or batch.index_positions is not None
        if not kernel.serves(KernelRequest(sight, has_order=batch.order is not None, window_by_index=by_row)):
            continue
        q, k, v = random_heads(97, groups=groups)
        expected = EAGER(q, k, v, planned(EAGER, sight, batch, like=like(97)), None, 0.0)
        leaves = [leaf.detach().float().cuda().requires_grad_() for leaf in (q, k, v)]
        plan = planned(kernel, sight, batch.to(leaves[0].device), like=like(97).float().cuda())
        got = kernel(leaves[0], leaves[1], leaves[2], plan, None, 0.0)
        assert torch.allclose(got.cpu().double(), expected, rtol=0, atol=1e-3)
        for gradient, expected_gradient in zip(
            torch.autograd.grad(got.sin().sum(), leaves),
            torch.autograd.grad(expected.sin().sum(), (q, k, v)),
            strict=True,
        ):
            assert torch.allclose(gradient.cpu().double(), expected_gradient, rtol=0, atol=1e-2)
