"""Stack: plans and carry shared between layers, decoding states, capture and kernel requests."""

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
from paribus.parts.attend import DensePlan, attention_weights, dense_plan
from paribus.parts.attention_planner import choose_kernel
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring
from paribus.parts.stack import Layer, Stack

SHAPE = Shape(width=4, heads=2, head_width=2, length=16, vocabulary=11, layers=3, causal=True)


@final
class SumAttention(Attention):
    """Attention that sums the previous tokens, and uses the carry and the state."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        self.carried: list[dict[str, Tensor]] = []

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        assert ctx.carry is not None
        ctx.carry["seen"] = ctx.carry.get("seen", torch.zeros(())) + 1
        self.carried.append(ctx.carry)
        previous_sum = torch.zeros_like(x[:, :1]) if ctx.state is None else ctx.state["sum"]
        summed = previous_sum + x.cumsum(1)
        if ctx.state is not None:
            ctx.state["sum"] = summed[:, -1:]
        return self.gain * summed

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {"sum": like.new_zeros(batch, 1, SHAPE.width)}

    def cost(self, load: Load) -> Cost:
        return Cost()


@final
class WindowAttention(Attention):
    """Softmax attention with a window."""

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
class AuxiliaryFeedForward(FeedForward):
    """Feedforward network that returns zeros and an auxiliary loss."""

    def __init__(self, auxiliary_loss: float | None) -> None:
        super().__init__()
        self.auxiliary_loss = auxiliary_loss

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return torch.zeros_like(x), None if self.auxiliary_loss is None else torch.tensor(self.auxiliary_loss)

    def cost(self, load: Load) -> Cost:
        return Cost()


@final
class Adding(Placement):
    """Residual connections without a norm: x + f(x)."""

    def forward(self, x: Tensor, sublayers: Mapping[str, Sublayer]) -> Tensor:
        for sublayer in sublayers.values():
            x = x + sublayer(x)
        return x


@final
class Halving(Norm):
    """Norm that halves its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2


@final
class Ramp(Position):
    """Position that adds `step` times the position, and records the calls of `tables`."""

    traits: ClassVar[PositionTraits] = {"hooks": ["embed", "rotate"], "bias": "none", "owner": "stack"}

    def __init__(self, step: float = 0.0) -> None:
        super().__init__()
        self.step = step
        self.table_calls: list[list[int]] = []

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.step * positions.unsqueeze(-1)

    def tables(self, positions: Tensor, width: int) -> Any:
        self.table_calls.append(positions[0].tolist())
        return positions.to(torch.float64).unsqueeze(-1).unsqueeze(1)  # (1, T) -> (1, 1, T, 1)

    def rotate(self, x: Tensor, tables: Any, side: Literal["query", "key"]) -> Tensor:
        rotated: Tensor = x * (1 + self.step * tables)
        return rotated

    def position_limit(self) -> int | None:
        return None


@final
class DenseKernel:
    """Kernel with dense attention weights."""

    name = "dense"

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
class ZeroKernel:
    """Kernel that returns zeros, supports no weights, and records its requests."""

    name = "zero"

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
    auxiliary_losses: Sequence[float | None] = (None,),
    crosses: Sequence[tuple[Attention, Position]] = (),
    norm: Norm | None = None,
    kernels: Sequence[Any] = (DenseKernel(),),
) -> Stack:
    """Return a stack whose layers cycle through the positions and auxiliary losses."""
    layers, wiring = [], []
    for index, attention in enumerate(attentions):
        cross = crosses[index] if crosses else None
        layers.append(
            Layer(
                attention=attention,
                cross=cross[0] if cross else None,
                feedforward=AuxiliaryFeedForward(auxiliary_losses[index % len(auxiliary_losses)]),
                placement=Adding(),
                dropout=0.0,
            )
        )
        wiring.append((positions[index % len(positions)], cross[1] if cross else None))
    cross_positions = [
        position
        for position in dict.fromkeys(position_of_cross for _, position_of_cross in crosses)
        if position not in positions
    ]
    return Stack(SHAPE, layers, [*dict.fromkeys(positions), *cross_positions], wiring, norm, kernels).double()


def rows(length: int, past: int = 0) -> TokenLayout:
    return TokenLayout(torch.arange(past, past + length).unsqueeze(0))


def hidden(length: int = 5) -> Tensor:
    return torch.randn(2, length, 4, generator=torch.Generator().manual_seed(8), dtype=torch.float64)


def test_layers_run_in_order_before_the_final_norm() -> None:
    x = hidden()
    plain = stack_of([SumAttention(), SumAttention()], [Ramp()])(x, rows(5)).hidden
    first_layer = x + x.cumsum(1)
    torch.testing.assert_close(plain, first_layer + first_layer.cumsum(1))
    torch.testing.assert_close(
        stack_of([SumAttention(), SumAttention()], [Ramp()], norm=Halving())(x, rows(5)).hidden, plain / 2
    )


@pytest.mark.parametrize(
    ("auxiliary_losses", "expected"),
    [([None], None), ([0.5], 1.5), ([0.5, None, 0.25], 0.75), ([None, None, 2.0], 2.0)],
)
def test_auxiliary_losses_are_summed_over_the_layers_that_have_one(
    auxiliary_losses: list[float | None], expected: float | None
) -> None:
    auxiliary = stack_of([SumAttention() for _ in range(3)], [Ramp()], auxiliary_losses=auxiliary_losses)(
        hidden(), rows(5)
    ).auxiliary
    assert (None if auxiliary is None else auxiliary.item()) == expected


def test_layers_share_a_carry_within_one_pass() -> None:
    attentions = [SumAttention(), SumAttention()]
    stack = stack_of(attentions, [Ramp()])
    for _ in range(2):
        stack(hidden(), rows(5))
    first_carry, second_carry = attentions[1].carried
    assert first_carry is not second_carry
    assert first_carry["seen"].item() == second_carry["seen"].item() == 2
    assert attentions[0].carried[0] is first_carry


def test_each_layer_reads_its_own_position_of_a_cycle() -> None:
    ramps = [Ramp(0.5), Ramp(-0.25)]
    attentions = [WindowAttention(), WindowAttention(), WindowAttention()]
    stack = stack_of(attentions, ramps)
    assert [attention.attend.position for attention in attentions] == [ramps[0], ramps[1], ramps[0]]
    assert [attention.attend.plan for attention in attentions] == [0, 1, 0]
    x = hidden()
    y = stack(x, rows(5)).hidden
    for attention, ramp in zip(attentions, [*ramps, ramps[0]], strict=True):
        x = stack_of([attention], [ramp])(x, rows(5)).hidden
    torch.testing.assert_close(y, x)


def test_layers_with_equal_visibility_and_position_share_a_plan() -> None:
    ramp = Ramp(0.5)
    attentions = [WindowAttention(), WindowAttention(window=2), WindowAttention(), WindowAttention(window=2)]
    stack = stack_of(attentions, [ramp])
    stack(hidden(), rows(5))
    assert [attention.attend.plan for attention in attentions] == [0, 1, 0, 1]
    assert len(ramp.table_calls) == 2  # one per plan: without a cache or a memory, queries and keys are the same tokens


def test_a_window_hides_distant_tokens() -> None:
    stack = stack_of([WindowAttention(window=2)], [Ramp()])
    x = hidden()
    changed = x.clone()
    changed[:, 0] += 1
    moved = (stack(x, rows(5)).hidden - stack(changed, rows(5)).hidden).abs().amax((0, 2)) > 1e-12
    assert moved.tolist() == [True, True, False, False, False]


def test_only_self_attention_positions_are_added() -> None:
    self_position, cross_position = Ramp(1.0), Ramp(100.0)
    cross = [(WindowAttention(causal=False, memory=True), cross_position) for _ in range(2)]
    stack = stack_of([SumAttention(), SumAttention()], [self_position], crosses=cross)
    placed = stack.add_positions(torch.zeros(1, 3, 4, dtype=torch.float64), rows(3).positions)
    assert placed[0, :, 0].tolist() == [0.0, 1.0, 2.0]
    assert list(stack.position) == [self_position, cross_position]


def test_a_cross_attention_reads_the_memory_without_its_padding() -> None:
    cross = [(WindowAttention(causal=False, memory=True), Ramp())]
    stack = stack_of([SumAttention()], [Ramp()], crosses=cross)
    memory = Memory(hidden(7), rows(7)._replace(documents=torch.tensor([[0, 0, 0, 0, 0, -1, -1]])))
    y = stack(hidden(), rows(5), memory).hidden
    padded = memory._replace(hidden=torch.cat([memory.hidden[:, :5], hidden(2) * 9], dim=1))
    torch.testing.assert_close(stack(hidden(), rows(5), padded).hidden, y)
    changed_memory = memory._replace(hidden=memory.hidden * 2)
    assert not torch.allclose(stack(hidden(), rows(5), changed_memory).hidden, y)


@pytest.mark.parametrize("chunks", [[5], [1, 1, 1, 1, 1], [2, 1, 2], [3, 2]])
def test_decoding_in_chunks_equals_one_pass(chunks: list[int]) -> None:
    cross = [(WindowAttention(causal=False, memory=True), Ramp()) for _ in range(3)]
    stack = stack_of(
        [WindowAttention(), SumAttention(), WindowAttention(window=2)], [Ramp(0.5), Ramp(), Ramp(-0.25)], crosses=cross
    )
    memory, x = Memory(hidden(7), rows(7)), hidden()
    whole = stack(x, rows(5), memory).hidden
    states = stack.start(batch=2, length=5)
    outputs: list[Tensor] = []
    for size in chunks:
        past = states.past
        outputs.append(stack(x[:, past : past + size], rows(size, past), memory, states).hidden)
        assert states.past == past + size
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, atol=1e-12, rtol=0)


def test_initial_states_are_empty_with_one_per_sublayer() -> None:
    cross = [(WindowAttention(causal=False, memory=True), Ramp()), (WindowAttention(causal=False, memory=True), Ramp())]
    states = stack_of([SumAttention(), SumAttention()], [Ramp()], crosses=cross).start(batch=3, length=5)
    assert states.past == 0
    assert states.layout is None
    assert [set(layer) for layer in states.layers] == [{"attention", "cross"}] * 2
    assert states.layers[0]["attention"]["sum"].shape == (3, 1, 4)


def test_a_memory_is_projected_once_and_cached() -> None:
    stack = stack_of([SumAttention()], [Ramp()], crosses=[(WindowAttention(causal=False, memory=True), Ramp())])
    memory, states = Memory(hidden(7), rows(7)), stack.start(batch=2, length=5)
    stack(hidden(1), rows(1), memory, states)
    cached = dict(states.layers[0]["cross"])
    assert {name: tensor.shape for name, tensor in cached.items()} == dict.fromkeys("kv", (2, 2, 7, 2))
    stack(hidden(1), rows(1, 1), memory, states)
    assert all(states.layers[0]["cross"][name] is cached[name] for name in cached)


def test_later_tokens_have_the_same_layout_vectors_as_the_first() -> None:
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


def test_capture_returns_weights_per_layer_and_selects_a_kernel_with_weights() -> None:
    stack = stack_of(
        [WindowAttention(), SumAttention(), WindowAttention(window=2)], [Ramp()], kernels=(ZeroKernel(), DenseKernel())
    )
    x = hidden()
    assert torch.equal(stack(x, rows(5)).hidden, x + x.cumsum(1))  # the zero kernel adds nothing
    output = stack(x, rows(5), capture=True)
    assert [set(captured) for captured in output.captured] == [{"weights"}, set(), {"weights"}]
    weights = output.captured[2]["weights"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5, dtype=torch.float64))
    assert (weights > 0)[0, 0].tolist() == [[0 <= t - s < 2 for s in range(5)] for t in range(5)]
    assert not torch.equal(output.hidden, x + x.cumsum(1))


def test_capture_returns_cross_attention_weights() -> None:
    crosses = [(WindowAttention(causal=False, memory=True), Ramp())] * 2
    stack = stack_of(
        [WindowAttention(), SumAttention()], [Ramp()], crosses=crosses, kernels=(ZeroKernel(), DenseKernel())
    )
    memory = Memory(hidden(7), rows(7))
    captured = stack(hidden(3), rows(3), memory, capture=True).captured
    assert [set(layer_tensors) for layer_tensors in captured] == [{"weights", "cross"}, {"cross"}]
    assert captured[0]["weights"].shape == (2, 2, 3, 3)
    assert captured[1]["cross"].shape == (2, 2, 3, 7)


def test_capturing_weights_of_attentions_without_weights_is_rejected() -> None:
    stack = stack_of([SumAttention(), SumAttention()], [Ramp()])
    stack(hidden(3), rows(3))
    with pytest.raises(ValueError, match="`weights`, got SumAttention"):
        stack(hidden(3), rows(3), capture=True)


def test_a_kernel_request_describes_each_attention() -> None:
    zero_kernel = ZeroKernel()
    cross = [(WindowAttention(causal=False, memory=True), Ramp())]
    stack = stack_of([WindowAttention(window=3)], [Ramp()], crosses=cross, kernels=(zero_kernel,))
    states = stack.start(batch=2, length=5)
    stack(hidden(3), rows(3), Memory(hidden(7), rows(7)), states)
    stack(hidden(2), rows(2, 3), Memory(hidden(7), rows(7)), states)
    self_request = KernelRequest(Visibility(causal=True, window=3), queries=3, float64=True)
    cross_request = KernelRequest(Visibility(), queries=3, aligned=False, float64=True)
    assert zero_kernel.demands == [
        self_request,
        cross_request,
        self_request._replace(queries=2, aligned=False),
        cross_request._replace(queries=2),
    ]


def test_a_kernel_request_has_window_by_index_unless_tokens_are_reordered() -> None:
    zero_kernel = ZeroKernel()
    stack = stack_of([WindowAttention(window=3)], [Ramp()], kernels=(zero_kernel,))
    tokens, documents = torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[0, 0, 1]])
    streams = (
        Stream(tokens),
        Stream(tokens, documents),
        Stream(tokens, documents, torch.tensor([[0, 1, 0]])),
        Stream(tokens, None, torch.tensor([[0, 1, 0]])),
    )
    for stream in streams:
        stack(hidden(3), token_layout(stream))
    assert [demand.window_by_index for demand in zero_kernel.demands] == [True, True, False, True]


def test_a_kernel_request_has_hidden_keys_and_distance_bias() -> None:
    zero_kernel = ZeroKernel()
    stack = stack_of([WindowAttention(window=3)], [Ramp()], kernels=(zero_kernel,))
    tokens, documents = torch.zeros(1, 3, dtype=torch.int64), torch.tensor([[0, 0, 1]])
    streams = (Stream(tokens), Stream(tokens, documents), Stream(tokens, documents, torch.tensor([[0, 1, 0]])))
    for stream in streams:
        stack(hidden(3), token_layout(stream))
    assert [demand.has_hidden_keys for demand in zero_kernel.demands] == [False, True, True]
    assert not any(demand.distance_bias for demand in zero_kernel.demands)  # a ramp has no bias at all


def test_token_positions_continue_after_a_cache() -> None:
    states = States([])
    states.extend(token_layout(Stream(torch.zeros(1, 2, dtype=torch.int64))))
    assert torch.equal(states.extend(rows(1, 2)).positions, torch.arange(3).unsqueeze(0))


def test_the_first_kernel_that_serves_is_chosen() -> None:
    kernels = (ZeroKernel(), DenseKernel())
    assert choose_kernel(kernels, KernelRequest(Visibility())).name == "zero"
    assert choose_kernel(kernels, KernelRequest(Visibility(), needs_weights=True)).name == "dense"
    stack = stack_of([WindowAttention(), SumAttention()], [Ramp()], kernels=kernels)
    assert stack.kernels() == ("zero", "its own")


def test_parameter_paths_follow_the_slots() -> None:
    stack = stack_of([WindowAttention(), WindowAttention()], [Ramp()], norm=Halving())
    assert {name for name, _ in stack.named_parameters()} == {
        f"layers.{layer}.attention.heads.{matrix}.weight" for layer in range(2) for matrix in "qkvo"
    }
