"""A stack: what its layers share, what each has for itself, and what decoding remembers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, final

import pytest
import torch
from torch import Tensor, nn

from paribus import (
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    FeedForward,
    Heads,
    Load,
    Memory,
    Norm,
    Pair,
    Placement,
    Position,
    PositionTraits,
    ScoreOptions,
    Shape,
    State,
    States,
    Stream,
    Sublayer,
    TokenLayout,
    Visibility,
    token_layout,
)
from paribus.parts.attention_plan import choose_kernel
from paribus.parts.attention_weights import DensePlan, attention_weights, dense_plan
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring
from paribus.parts.layer import Layer
from paribus.parts.stack import Stack

SHAPE = Shape(width=4, heads=2, head_width=2, length=16, vocabulary=11, layers=3, causal=True)


@final
class Summing(Attention):
    """Sums the rows so far, and leaves a trace in everything that a stack hands it."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        self.carried: list[dict[str, Tensor]] = []

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        assert ctx.carry is not None
        ctx.carry["seen"] = ctx.carry.get("seen", torch.zeros(())) + 1
        self.carried.append(ctx.carry)
        before = torch.zeros_like(x[:, :1]) if ctx.state is None else ctx.state["sum"]
        summed = before + x.cumsum(1)
        if ctx.state is not None:
            ctx.state["sum"] = summed[:, -1:]
        return self.gain * summed

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {"sum": like.new_zeros(batch, 1, SHAPE.width)}

    def cost(self, load: Load) -> Cost:
        return Cost()


@final
class Scored(Attention):
    """Softmax attention with a window, so that stacks can hold several sights."""

    traits: ClassVar[AttentionTraits] = {"weights": True}

    def __init__(self, window: int | None = None, *, causal: bool = True, memory: bool = False) -> None:
        super().__init__()
        shape = Shape(4, 2, 2, 16, 11, 3, memory_width=4 if memory else None)
        self.heads = Heads(shape, kv_heads=2, bias=False)
        self.attend = Attend(shape, Visibility(causal=causal, window=window), ScoreOptions(bias=False))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {name: like.new_zeros(batch, 2, length, 2) for name in ("k", "v")}

    def cost(self, load: Load) -> Cost:
        return Cost()


@final
class Taxed(FeedForward):
    """Gives nothing, at an auxiliary loss of its own."""

    def __init__(self, tax: float | None) -> None:
        super().__init__()
        self.tax = tax

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return torch.zeros_like(x), None if self.tax is None else torch.tensor(self.tax)

    def cost(self, load: Load) -> Cost:
        return Cost()


@final
class Adding(Placement):
    """x + f(x), without a norm."""

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for sublayer in sublayers.values():
            x = x + sublayer(x)
        return x


@final
class Halving(Norm):
    """Halves rows, so that a final norm shows."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2


@final
class Ramp(Position):
    """Adds `step` times the position to the rows, and counts how often its tables are made."""

    traits: ClassVar[PositionTraits] = {"hooks": ["embed", "rotate"], "bias": "none", "owner": "stack"}

    def __init__(self, step: float = 0.0) -> None:
        super().__init__()
        self.step = step
        self.tabled: list[list[int]] = []

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.step * positions.unsqueeze(-1)

    def tables(self, positions: Tensor, width: int) -> Any:
        self.tabled.append(positions[0].tolist())
        return positions.to(torch.float64).unsqueeze(-1).unsqueeze(1)  # (1, T) -> (1, 1, T, 1)

    def rotate(self, x: Tensor, tables: Any, side: Literal["query", "key"]) -> Tensor:
        rotated: Tensor = x * (1 + self.step * tables)
        return rotated

    def position_limit(self) -> int | None:
        return None


@final
class Written:
    """The kernel that writes out all weights."""

    name = "written"

    def serves(self, demand: KernelRequest) -> bool:
        return True

    def prepare(
        self, plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor
    ) -> DensePlan:
        return dense_plan(plan, bias, heads, like)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        return attention_weights(q, k, plan, content) @ v


@final
class Hasty:
    """A kernel that is faster, shows no weights, and gives nothing but zeros: so it shows who ran on it."""

    name = "hasty"

    def __init__(self) -> None:
        self.demands: list[KernelRequest] = []

    def serves(self, demand: KernelRequest) -> bool:
        self.demands.append(demand)
        return not demand.needs_weights

    def prepare(self, plan: AttentionPlan, bias: Callable[[Pair], Tensor] | None, heads: int, like: Tensor) -> None:
        return None

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        return torch.zeros_like(q)


def stack_of(
    attentions: Sequence[Attention],
    positions: Sequence[Position],
    *,
    taxes: Sequence[float | None] = (None,),
    crosses: Sequence[tuple[Attention, Position]] = (),
    norm: Norm | None = None,
    kernels: Sequence[Any] = (Written(),),
) -> Stack:
    """Layers whose positions and taxes are cycled."""
    layers, wiring = [], []
    for index, attention in enumerate(attentions):
        cross = crosses[index] if crosses else None
        layers.append(
            Layer(
                attention=attention,
                cross=cross[0] if cross else None,
                feedforward=Taxed(taxes[index % len(taxes)]),
                placement=Adding(),
                dropout=0.0,
            )
        )
        wiring.append((positions[index % len(positions)], cross[1] if cross else None))
    others = [position for position in dict.fromkeys(own for _, own in crosses) if position not in positions]
    return Stack(SHAPE, layers, [*dict.fromkeys(positions), *others], wiring, norm, kernels).double()


def rows(length: int, past: int = 0) -> TokenLayout:
    return TokenLayout(torch.arange(past, past + length).unsqueeze(0))


def hidden(length: int = 5) -> Tensor:
    return torch.randn(2, length, 4, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


def test_layers_run_in_order_and_the_final_norm_last() -> None:
    x = hidden()
    plain = stack_of([Summing(), Summing()], [Ramp()])(x, rows(5)).hidden
    once = x + x.cumsum(1)
    torch.testing.assert_close(plain, once + once.cumsum(1))
    torch.testing.assert_close(stack_of([Summing(), Summing()], [Ramp()], norm=Halving())(x, rows(5)).hidden, plain / 2)


@pytest.mark.parametrize(
    ("taxes", "expected"), [([None], None), ([0.5], 1.5), ([0.5, None, 0.25], 0.75), ([None, None, 2.0], 2.0)]
)
def test_auxiliary_losses_are_summed_over_the_layers_that_have_one(
    taxes: list[float | None], expected: float | None
) -> None:
    auxiliary = stack_of([Summing() for _ in range(3)], [Ramp()], taxes=taxes)(hidden(), rows(5)).auxiliary
    assert (None if auxiliary is None else auxiliary.item()) == expected


def test_what_a_layer_leaves_for_later_ones_is_forgotten_in_the_next_pass() -> None:
    attentions = [Summing(), Summing()]
    stack = stack_of(attentions, [Ramp()])
    for _ in range(2):
        stack(hidden(), rows(5))
    first, second = attentions[1].carried
    assert first is not second
    assert first["seen"].item() == second["seen"].item() == 2
    assert attentions[0].carried[0] is first


def test_each_layer_reads_its_own_position_of_a_cycle() -> None:
    ramps = [Ramp(0.5), Ramp(-0.25)]
    attentions = [Scored(), Scored(), Scored()]
    stack = stack_of(attentions, ramps)
    assert [attention.attend.position for attention in attentions] == [ramps[0], ramps[1], ramps[0]]
    assert [attention.attend.plan for attention in attentions] == [0, 1, 0]
    x = hidden()
    y = stack(x, rows(5)).hidden
    for attention, ramp in zip(attentions, [*ramps, ramps[0]], strict=True):
        x = stack_of([attention], [ramp])(x, rows(5)).hidden
    torch.testing.assert_close(y, x)


def test_layers_of_one_sight_and_one_position_share_a_plan_and_its_tables() -> None:
    ramp = Ramp(0.5)
    attentions = [Scored(), Scored(window=2), Scored(), Scored(window=2)]
    stack = stack_of(attentions, [ramp])
    stack(hidden(), rows(5))
    assert [attention.attend.plan for attention in attentions] == [0, 1, 0, 1]
    assert len(ramp.tabled) == 2  # one for each plan: without a cache or a memory, the queries are the keys


def test_a_window_hides_what_it_says_from_its_own_layers_alone() -> None:
    stack = stack_of([Scored(window=2)], [Ramp()])
    x = hidden()
    changed = x.clone()
    changed[:, 0] += 1
    moved = (stack(x, rows(5)).hidden - stack(changed, rows(5)).hidden).abs().amax((0, 2)) > 1e-12
    assert moved.tolist() == [True, True, False, False, False]


def test_positions_are_placed_once_each_and_those_of_a_cross_attention_never() -> None:
    own, across = Ramp(1.0), Ramp(100.0)
    cross = [(Scored(causal=False, memory=True), across) for _ in range(2)]
    stack = stack_of([Summing(), Summing()], [own], crosses=cross)
    placed = stack.add_positions(torch.zeros(1, 3, 4, dtype=torch.float64), rows(3).positions)
    assert placed[0, :, 0].tolist() == [0.0, 1.0, 2.0]
    assert list(stack.position) == [own, across]


def test_a_cross_attention_reads_the_memory_and_its_rows() -> None:
    cross = [(Scored(causal=False, memory=True), Ramp())]
    stack = stack_of([Summing()], [Ramp()], crosses=cross)
    memory = Memory(hidden(7), rows(7)._replace(documents=torch.tensor([[0, 0, 0, 0, 0, -1, -1]])))
    y = stack(hidden(), rows(5), memory).hidden
    padded = memory._replace(hidden=torch.cat([memory.hidden[:, :5], hidden(2) * 9], dim=1))
    torch.testing.assert_close(stack(hidden(), rows(5), padded).hidden, y)
    other = memory._replace(hidden=memory.hidden * 2)
    assert not torch.allclose(stack(hidden(), rows(5), other).hidden, y)


@pytest.mark.parametrize("chunks", [[5], [1, 1, 1, 1, 1], [2, 1, 2], [3, 2]])
def test_decoding_in_chunks_gives_what_one_pass_gives(chunks: list[int]) -> None:
    cross = [(Scored(causal=False, memory=True), Ramp()) for _ in range(3)]
    stack = stack_of([Scored(), Summing(), Scored(window=2)], [Ramp(0.5), Ramp(), Ramp(-0.25)], crosses=cross)
    memory, x = Memory(hidden(7), rows(7)), hidden()
    whole = stack(x, rows(5), memory).hidden
    states = stack.start(batch=2, length=5)
    given: list[Tensor] = []
    for size in chunks:
        past = states.past
        given.append(stack(x[:, past : past + size], rows(size, past), memory, states).hidden)
        assert states.past == past + size
    torch.testing.assert_close(torch.cat(given, dim=1), whole, atol=1e-12, rtol=0)


def test_states_begin_empty_with_one_for_each_sublayer() -> None:
    cross = [(Scored(causal=False, memory=True), Ramp()), (Scored(causal=False, memory=True), Ramp())]
    states = stack_of([Summing(), Summing()], [Ramp()], crosses=cross).start(batch=3, length=5)
    assert states.past == 0
    assert states.layout is None
    assert [set(layer) for layer in states.layers] == [{"attention", "cross"}] * 2
    assert states.layers[0]["attention"]["sum"].shape == (3, 1, 4)


def test_a_memory_is_projected_once_and_kept_for_later_steps() -> None:
    stack = stack_of([Summing()], [Ramp()], crosses=[(Scored(causal=False, memory=True), Ramp())])
    memory, states = Memory(hidden(7), rows(7)), stack.start(batch=2, length=5)
    stack(hidden(1), rows(1), memory, states)
    kept = dict(states.layers[0]["cross"])
    assert {name: tensor.shape for name, tensor in kept.items()} == dict.fromkeys("kv", (2, 2, 7, 2))
    stack(hidden(1), rows(1, 1), memory, states)
    assert all(states.layers[0]["cross"][name] is kept[name] for name in kept)


def test_rows_that_come_later_say_as_much_as_the_first_ones_did() -> None:
    states = States([])
    states.extend(rows(2)._replace(documents=torch.zeros(3, 2, dtype=torch.int64)))
    joined = states.extend(rows(1, 2)._replace(documents=torch.ones(3, 1, dtype=torch.int64)))
    assert joined.positions.tolist() == [[0, 1, 2]]
    assert joined.documents is not None
    assert joined.documents.tolist() == [[0, 0, 1]] * 3
    with pytest.raises(AssertionError, match="expected the same vectors"):
        states.extend(rows(1, 3))
    plain = States([])
    plain.extend(rows(2))
    with pytest.raises(AssertionError, match="expected the same vectors"):
        plain.extend(rows(1, 2)._replace(documents=torch.zeros(1, 1, dtype=torch.int64)))


def test_capture_gives_the_weights_of_each_layer_and_takes_a_kernel_that_shows_them() -> None:
    stack = stack_of([Scored(), Summing(), Scored(window=2)], [Ramp()], kernels=(Hasty(), Written()))
    x = hidden()
    assert torch.equal(stack(x, rows(5)).hidden, x + x.cumsum(1))  # the hasty kernel gives nothing
    output = stack(x, rows(5), capture=True)
    assert [set(captured) for captured in output.captured] == [{"weights"}, set(), {"weights"}]
    weights = output.captured[2]["weights"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5, dtype=torch.float64))
    assert (weights > 0)[0, 0].tolist() == [[0 <= t - s < 2 for s in range(5)] for t in range(5)]
    assert not torch.equal(output.hidden, x + x.cumsum(1))


def test_capture_gives_the_weights_of_a_memory_too() -> None:
    crosses = [(Scored(causal=False, memory=True), Ramp())] * 2
    stack = stack_of([Scored(), Summing()], [Ramp()], crosses=crosses, kernels=(Hasty(), Written()))
    memory = Memory(hidden(7), rows(7))
    captured = stack(hidden(3), rows(3), memory, capture=True).captured
    assert [set(each) for each in captured] == [{"weights", "cross"}, {"cross"}]
    assert captured[0]["weights"].shape == (2, 2, 3, 3)
    assert captured[1]["cross"].shape == (2, 2, 3, 7)


def test_weights_of_attentions_that_have_none_are_refused() -> None:
    stack = stack_of([Summing(), Summing()], [Ramp()])
    stack(hidden(3), rows(3))
    with pytest.raises(ValueError, match="`weights`, got Summing"):
        stack(hidden(3), rows(3), capture=True)


def test_a_kernel_is_told_what_it_must_serve() -> None:
    hasty = Hasty()
    cross = [(Scored(causal=False, memory=True), Ramp())]
    stack = stack_of([Scored(window=3)], [Ramp()], crosses=cross, kernels=(hasty,))
    states = stack.start(batch=2, length=5)
    stack(hidden(3), rows(3), Memory(hidden(7), rows(7)), states)
    stack(hidden(2), rows(2, 3), Memory(hidden(7), rows(7)), states)
    own = KernelRequest(Visibility(causal=True, window=3), queries=3, float64=True)
    across = KernelRequest(Visibility(), queries=3, aligned=False, float64=True)
    assert hasty.demands == [own, across, own._replace(queries=2, aligned=False), across._replace(queries=2)]


def test_a_kernel_is_told_whether_rows_are_where_they_stand() -> None:
    hasty = Hasty()
    stack = stack_of([Scored(window=3)], [Ramp()], kernels=(hasty,))
    tokens, documents = torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[0, 0, 1]])
    streams = (
        Stream(tokens),
        Stream(tokens, documents),
        Stream(tokens, documents, torch.tensor([[0, 1, 0]])),
        Stream(tokens, None, torch.tensor([[0, 1, 0]])),
    )
    for stream in streams:
        stack(hidden(3), token_layout(stream))
    assert [demand.window_by_index for demand in hasty.demands] == [True, True, False, True]


def test_a_kernel_is_told_what_is_hidden_and_whether_positions_are_distances() -> None:
    hasty = Hasty()
    stack = stack_of([Scored(window=3)], [Ramp()], kernels=(hasty,))
    tokens, documents = torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[0, 0, 1]])
    streams = (Stream(tokens), Stream(tokens, documents), Stream(tokens, documents, torch.tensor([[0, 1, 0]])))
    for stream in streams:
        stack(hidden(3), token_layout(stream))
    assert [demand.has_hidden_keys for demand in hasty.demands] == [False, True, True]
    assert not any(demand.distance_bias for demand in hasty.demands)  # a ramp has no bias at all


def test_rows_behind_a_cache_no_longer_say_where_they_stand() -> None:
    states = States([])
    states.extend(token_layout(Stream(torch.zeros(1, 2, dtype=torch.int64))))
    assert torch.equal(states.extend(rows(1, 2)).positions, torch.arange(3).unsqueeze(0))


def test_the_first_kernel_that_serves_is_taken() -> None:
    kernels = (Hasty(), Written())
    assert choose_kernel(kernels, KernelRequest(Visibility())).name == "hasty"
    assert choose_kernel(kernels, KernelRequest(Visibility(), needs_weights=True)).name == "written"
    stack = stack_of([Scored(), Summing()], [Ramp()], kernels=kernels)
    assert stack.kernels() == ("hasty", "its own")


def test_a_tensor_is_where_its_slot_says() -> None:
    stack = stack_of([Scored(), Scored()], [Ramp()], norm=Halving())
    assert {name for name, _ in stack.named_parameters()} == {
        f"layers.{layer}.attention.heads.{matrix}.weight" for layer in range(2) for matrix in "qkvo"
    }
