"""`Attend`: scale, cache, memory, position hooks and the arguments of the kernel."""

import math
from dataclasses import replace
from typing import Any, ClassVar, Literal, final

import pytest
import torch
from torch import Tensor

import paribus
from paribus import (
    Attend,
    Context,
    Heads,
    Pair,
    Position,
    PositionTraits,
    ScoreFunctions,
    ScoreOptions,
    Shape,
    State,
    TokenLayout,
    Visibility,
)
from paribus.parts.attend import DensePlan, append_to_cache, leading_positions
from paribus.parts.attention_planner import kernel_request
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring
from paribus.parts.visibility import with_order

SHAPE = Shape(width=6, heads=4, head_width=4, length=8, vocabulary=11, layers=1)


@final
class TablePosition(Position):
    """Position that multiplies queries by their table and adds the table to keys."""

    traits: ClassVar[PositionTraits] = {"hooks": ["rotate"], "bias": "none", "owner": "stack"}

    def rotate(self, x: Tensor, tables: Any, side: Literal["query", "key"]) -> Tensor:
        turned: Tensor = x * tables if side == "query" else x + tables
        return turned

    def position_limit(self) -> None:
        return None


@final
class ContentPosition(Position):
    """Position with a content bias, a mix and three score terms."""

    traits: ClassVar[PositionTraits] = {"hooks": ["bias", "mix"], "bias": "content", "owner": "layer", "score_terms": 3}

    def bias(self, pair: Pair) -> Tensor:
        assert pair.q is not None
        assert pair.k is not None
        return pair.q @ pair.k.transpose(-1, -2)

    def position_limit(self) -> None:
        return None


@final
class RecordingKernel:
    """Kernel that records its arguments and returns the queries."""

    name = "recording"

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}

    def serves(self, demand: KernelRequest) -> bool:
        return True

    def prepare(self, plan: AttentionPlan, bias: Any, heads: int, like: Tensor) -> DensePlan:
        return DensePlan(None, None)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        self.arguments = {"q": q, "k": k, "v": v, "content": content, "dropout": dropout}
        return q


def plan_of(
    kernel: RecordingKernel, queries: int, keys: int, q_table: float = 1.0, k_table: float = 0.0
) -> AttentionPlan:
    q, k = (with_order(TokenLayout(torch.arange(count).unsqueeze(0))) for count in (queries, keys))
    tables = torch.tensor(q_table), torch.tensor(k_table)
    return AttentionPlan(kernel, KernelRequest(Visibility()), 0.5, None, q, k, *tables, DensePlan(None, None))


def context_of(
    *plans: AttentionPlan, memory: Tensor | None = None, state: State | None = None, past: int = 0, capture: Any = None
) -> Context:
    return Context(plans, plans[0].q, plans[0].k, memory, state, past, {}, capture)


def bound_attend(
    position: Position | None = None, scores: ScoreOptions = ScoreOptions(), dropout: float = 0.0
) -> Attend:
    shape = Shape(6, 4, 4, 8, 11, 1, dropout=dropout)
    attend = Attend(shape, Visibility(), scores)
    attend.bind(position or TablePosition(), 0)
    return attend


def heads_of(groups: int = 2, memory_width: int | None = None) -> Heads:
    return Heads(Shape(6, 4, 4, 8, 11, 1, memory_width=memory_width), kv_heads=groups, bias=False)


def test_queries_and_keys_are_rotated_by_their_own_tables_and_values_are_not() -> None:
    kernel, heads, x = RecordingKernel(), heads_of(), torch.randn(2, 3, 6)
    bound_attend()(heads, x, context_of(plan_of(kernel, 3, 3, 2.0, 5.0)))
    assert torch.equal(kernel.arguments["q"], heads.queries(x) * 2)
    assert torch.equal(kernel.arguments["k"], heads.keys(x) + 5)
    assert torch.equal(kernel.arguments["v"], heads.values(x))


def test_attend_reads_the_plan_that_it_was_bound_to() -> None:
    unused_kernel, bound_kernel = RecordingKernel(), RecordingKernel()
    attend = bound_attend()
    attend.bind(TablePosition(), 1)
    attend(heads_of(), torch.randn(1, 3, 6), context_of(plan_of(unused_kernel, 3, 3), plan_of(bound_kernel, 3, 3)))
    assert (len(unused_kernel.arguments), len(bound_kernel.arguments)) == (0, 5)


def test_a_bound_position_is_not_a_child_module() -> None:
    attend, position = Attend(SHAPE, Visibility(), ScoreOptions()), TablePosition()
    attend.bind(position, 0)
    assert attend.position is position
    assert list(attend.children()) == []


def test_the_scale_depends_on_head_width_and_score_terms() -> None:
    assert bound_attend().scale == 1 / 2
    assert bound_attend(ContentPosition()).scale == pytest.approx(1 / math.sqrt(4 * 3))
    assert bound_attend(scores=ScoreOptions(scaled=False)).scale == 1


def test_keys_come_from_the_leading_tokens_only() -> None:
    kernel, heads, x = RecordingKernel(), heads_of(), torch.randn(1, 6, 6)
    bound_attend()(heads, x, context_of(plan_of(kernel, 6, 3)))
    assert torch.equal(kernel.arguments["q"], heads.queries(x))
    assert torch.equal(kernel.arguments["k"], heads.keys(x[:, :3]))
    assert leading_positions(x, 6) is x


def test_keys_are_appended_to_the_cache() -> None:
    kernel, heads, x = RecordingKernel(), heads_of(), torch.randn(2, 5, 6)
    state: State = {name: torch.zeros(2, 2, 8, 4) for name in ("k", "v")}
    attend = bound_attend()
    for start, end in ((0, 3), (3, 5)):
        attend(heads, x[:, start:end], context_of(plan_of(kernel, end - start, end), state=state, past=start))
    torch.testing.assert_close(kernel.arguments["k"], heads.keys(x))
    torch.testing.assert_close(kernel.arguments["v"], heads.values(x))
    assert (state["k"][:, :, 5:] == 0).all()


def test_the_cache_is_written_in_place() -> None:
    state: State = {"k": torch.zeros(1, 1, 4, 2), "v": torch.zeros(1, 1, 4, 2)}
    cached_keys = state["k"]
    k, v = append_to_cache(state, torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), 2.0), 1)
    assert state["k"] is cached_keys
    assert k[0, 0, :, 0].tolist() == [0, 1, 1]
    assert v[0, 0, :, 0].tolist() == [0, 2, 2]
    assert k.data_ptr() == cached_keys.data_ptr()


def test_a_memory_is_projected_once() -> None:
    kernel, heads = RecordingKernel(), heads_of(memory_width=5)
    x, memory = torch.randn(1, 2, 6), torch.randn(1, 3, 5)
    state: State = {}
    attend = bound_attend()
    attend(heads, x, context_of(plan_of(kernel, 2, 3), memory=memory, state=state))
    assert torch.equal(state["k"], heads.keys(memory))
    attend(heads, x, context_of(plan_of(kernel, 2, 3), memory=memory + 1, state=state))
    assert torch.equal(kernel.arguments["k"], heads.keys(memory))
    assert torch.equal(kernel.arguments["v"], heads.values(memory))
    attend(heads, x, context_of(plan_of(kernel, 2, 3), memory=memory + 1))
    assert torch.equal(kernel.arguments["k"], heads.keys(memory + 1))


def test_only_content_hooks_are_passed_to_the_kernel() -> None:
    kernel, heads, x = RecordingKernel(), heads_of(), torch.randn(1, 3, 6)
    position = ContentPosition()
    bound_attend()(heads, x, context_of(plan_of(kernel, 3, 3)))
    assert kernel.arguments["content"] is None
    bound_attend(position)(heads, x, context_of(plan_of(kernel, 3, 3)))
    assert kernel.arguments["content"] == LayerScoring(position.bias, heads.project, position.mix)


def test_a_content_bias_sees_heads_without_the_rotary_columns() -> None:
    attend, position = Attend(SHAPE, Visibility(), ScoreOptions(), rotary=2), ContentPosition()
    attend.bind(position, 0)
    content = attend.layer_scoring(heads_of(), None)
    assert content is not None
    assert content.bias is not None
    q, k = torch.randn(2, 4, 3, 4), torch.randn(2, 4, 5, 4)
    pair = Pair(q, k, torch.zeros(1, 1), torch.zeros(1, 1), 1.0, 4)
    beside = [torch.cat([side, torch.randn(*side.shape[:-1], 2)], dim=-1) for side in (q, k)]
    assert torch.equal(content.bias(pair._replace(q=beside[0], k=beside[1])), position.bias(pair))
    assert attend.scale == pytest.approx(1 / math.sqrt((4 + 2) * 3))


@final
class ReducedPosition(Position):
    """Position without the mix and the extra terms that its traits allow."""

    traits: ClassVar[PositionTraits] = ContentPosition.traits

    def score_terms(self) -> int:
        return 1

    def uses_mix(self) -> bool:
        return False

    def position_limit(self) -> None:
        return None


def test_a_position_may_use_less_than_its_traits() -> None:
    kernel, heads, position = RecordingKernel(), heads_of(), ReducedPosition()
    attend = bound_attend(position)
    attend(heads, torch.randn(1, 3, 6), context_of(plan_of(kernel, 3, 3)))
    assert kernel.arguments["content"] == LayerScoring(position.bias, heads.project, None)
    assert attend.scale == 1 / 2
    assert not kernel_request(attend, position, cross=False).has_mix
    assert kernel_request(bound_attend(ContentPosition()), ContentPosition(), cross=False).has_mix


def test_the_position_part_of_a_layer_is_passed_to_the_kernel() -> None:
    kernel, heads, part = RecordingKernel(), heads_of(), torch.nn.Linear(2, 3)
    attend = bound_attend(ContentPosition())
    attend.bind(attend.position, 0, part)
    attend(heads, torch.randn(1, 3, 6), context_of(plan_of(kernel, 3, 3)))
    assert kernel.arguments["content"].position_part is part
    assert list(attend.children()) == []


def test_queries_and_keys_may_be_normalised_before_the_rotation() -> None:
    kernel, heads, x = RecordingKernel(), heads_of(), torch.randn(2, 3, 6)
    attend = bound_attend(scores=ScoreOptions(qk_norm=True))
    with torch.no_grad():
        attend.q_norm.weight.fill_(2.0)
    attend(heads, x, context_of(plan_of(kernel, 3, 3, 3.0, 5.0)))
    for name, plain, gain, shift in (("q", heads.queries(x), 6.0, 0.0), ("k", heads.keys(x), 1.0, 5.0)):
        expected = plain / plain.square().mean(-1, keepdim=True).add(1e-6).sqrt() * gain + shift
        assert torch.allclose(kernel.arguments[name], expected, atol=1e-5)


def test_values_are_mixed_with_those_of_the_first_layer_with_equal_heads() -> None:
    kernel, heads, wider_heads = RecordingKernel(), [heads_of() for _ in range(3)], heads_of(4)
    ctx, x = context_of(plan_of(kernel, 3, 3)), torch.randn(2, 3, 6)
    for layer, share in enumerate((0.3, 0.0, 0.2)):
        attend = bound_attend(scores=ScoreOptions(value_residual=True))
        assert attend.own_share is not None
        torch.nn.init.constant_(attend.own_share, share)
        attend(heads[layer], x, ctx)
        expected = (0.5 + share) * heads[layer].values(x) + (0.5 - share) * heads[0].values(x)
        assert torch.allclose(kernel.arguments["v"], expected)
        attend(wider_heads, x, ctx)
        assert torch.allclose(kernel.arguments["v"], wider_heads.values(x))


def test_sinks_and_score_functions_are_passed_to_the_kernel() -> None:
    kernel, heads, x = RecordingKernel(), heads_of(), torch.randn(2, 3, 6)
    attend = bound_attend(scores=ScoreOptions(sinks=True))
    attend(heads, x, context_of(plan_of(kernel, 3, 3)))
    assert kernel.arguments["content"].sinks is attend.sinks
    scored_attend = Attend(SHAPE, Visibility(), ScoreOptions(), scored=True)
    scored_attend.bind(TablePosition(), 0)
    scoring = ScoreFunctions(map_scores=torch.tanh)
    scored_attend(heads, x, context_of(plan_of(kernel, 3, 3)), scoring)
    assert kernel.arguments["content"].functions is scoring


def test_score_functions_without_a_declaration_are_an_error() -> None:
    scoring = ScoreFunctions(normalize=lambda scores, visible: scores.sigmoid())
    for scores in (ScoreOptions(), ScoreOptions(sinks=True)):
        with pytest.raises(ValueError, match="scored=True"):
            bound_attend(scores=scores)(
                heads_of(), torch.randn(2, 3, 6), context_of(plan_of(RecordingKernel(), 3, 3)), scoring
            )


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(
    "option",
    [
        "qk_norm=true",
        "sinks=true",
        "value_residual=true",
        "exclusive=true",
        "gate=headwise",
        "kernel=3",
        "value_embedding=true",
    ],
)
@pytest.mark.parametrize("attention", ["mha", "gqa", "restricted"])
def test_decoding_step_by_step_equals_one_pass_with_every_option(option: str, attention: str) -> None:
    window = ["attention.window=3"] if attention == "restricted" else []
    model = paribus.assemble(
        paribus.spec("gpt-tiny", f"attention={attention}", f"attention.scores.{option}", "position=rope", *window)
    ).double()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith(("sinks", "own_share", "_norm.weight")):
                parameter.copy_(torch.linspace(-0.4, 1.2, parameter.numel()).view_as(parameter))
    tokens = torch.randint(0, 200, (2, 9))
    states = model.start(2, 9)
    steps = [model.hidden(chunk, states) for chunk in tokens.split([4, 1, 3, 1], dim=1)]
    assert torch.allclose(torch.cat(steps, dim=1), model.hidden(tokens), atol=1e-10)


def test_a_query_that_is_no_key_keeps_its_output() -> None:
    mixed, v, ctx = torch.randn(2, 4, 5, 4), torch.randn(2, 2, 3, 4), context_of(plan_of(RecordingKernel(), 5, 3))
    left = bound_attend(scores=ScoreOptions(exclusive=True)).exclude_own_values(mixed, v, ctx)
    assert torch.equal(left[:, :, 3:], mixed[:, :, 3:])
    own = v.repeat_interleave(2, 1)
    assert torch.allclose((left[:, :, :3] * own).sum(-1), torch.zeros(2, 4, 3), atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_a_kernel_adds_neighbours_to_queries_keys_and_values_before_rotation(causal: bool) -> None:
    kernel, heads, x = RecordingKernel(), heads_of(), torch.randn(2, 5, 6)
    attend = Attend(replace(SHAPE, causal=causal), Visibility(), ScoreOptions(kernel=3), kv_heads=2)
    attend.bind(TablePosition(), 0)
    filters = {name: torch.randn(*attend.get_parameter(f"convolutions.{name}.weight").shape) for name in "qkv"}
    for name, weight in filters.items():
        attend.get_parameter(f"convolutions.{name}.weight").data = weight
    attend(heads, x, context_of(plan_of(kernel, 5, 5, 2.0, 7.0)))

    def summed(name: str, h: Tensor) -> Tensor:
        channels = h.detach().transpose(1, 2).flatten(2).clone()
        shifts = (2, 1, 0) if causal else (1, 0, -1)  # how far before a token its window begins
        for tap, shift in enumerate(shifts):
            for t in range(5):
                if 0 <= t - shift < 5:
                    channels[:, t] += filters[name][:, tap] * h.transpose(1, 2).flatten(2)[:, t - shift]
        split: Tensor = channels.unflatten(-1, (h.shape[1], -1))
        return split.transpose(1, 2)

    torch.testing.assert_close(kernel.arguments["q"], summed("q", heads.queries(x)) * 2)
    torch.testing.assert_close(kernel.arguments["k"], summed("k", heads.keys(x)) + 7)
    torch.testing.assert_close(kernel.arguments["v"], summed("v", heads.values(x)))


def test_values_are_mixed_with_those_of_a_table() -> None:
    kernel, heads, x = RecordingKernel(), heads_of(), torch.randn(2, 3, 6)
    attend = Attend(SHAPE, Visibility(), ScoreOptions(value_embedding=True), kv_heads=2)
    attend.bind(TablePosition(), 0)
    attend.table_share = torch.nn.Parameter(torch.tensor(0.2))
    assert attend.value_table is not None
    tokens = torch.tensor([[3, 1, 3], [0, 10, 1]])
    attend(heads, x, context_of(plan_of(kernel, 3, 3))._replace(tokens=tokens))
    table = attend.value_table.weight[tokens].unflatten(-1, (2, 4)).transpose(1, 2)
    torch.testing.assert_close(kernel.arguments["v"], 0.7 * heads.values(x) + 0.3 * table)


@pytest.mark.parametrize("option", [{"kernel": 3}, {"value_embedding": True}])
def test_another_number_of_value_heads_is_one_clear_error(option: dict[str, Any]) -> None:
    attend = Attend(SHAPE, Visibility(), ScoreOptions(**option))
    attend.bind(TablePosition(), 0)
    context = context_of(plan_of(RecordingKernel(), 3, 3))._replace(tokens=torch.zeros(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="kv_heads"):
        attend(heads_of(), torch.randn(2, 3, 6), context)


def test_options_that_a_memory_cannot_have_are_refused() -> None:
    crossing = Shape(6, 4, 4, 8, 11, 1, memory_width=8)
    for option in ({"exclusive": True}, {"kernel": 4}, {"value_embedding": True}):
        with pytest.raises(ValueError, match=rf"scores\.{next(iter(option))}"):
            Attend(crossing, Visibility(), ScoreOptions(**option))
    assert Attend(crossing, Visibility(), ScoreOptions(gate="headwise")).gate is not None
    with pytest.raises(ValueError, match=r"scores\.gate"):
        Attend(replace(crossing, raw_memory=True), Visibility(), ScoreOptions(gate="headwise"))


def test_weights_are_captured_on_request() -> None:
    kernel, heads, x = RecordingKernel(), heads_of(), torch.randn(1, 3, 6)
    captured: dict[str, Tensor] = {}
    bound_attend()(heads, x, context_of(plan_of(kernel, 3, 3), capture=captured))
    scores = heads.queries(x) @ heads.keys(x).repeat_interleave(2, 1).transpose(-1, -2) * 0.5
    assert torch.allclose(captured["weights"], scores.softmax(-1), atol=1e-6)


def test_dropout_is_active_in_training_only() -> None:
    kernel, heads, x = RecordingKernel(), heads_of(), torch.randn(1, 3, 6)
    attend = bound_attend(dropout=0.3)
    for training, dropout in ((True, 0.3), (False, 0.0)):
        attend.train(training)(heads, x, context_of(plan_of(kernel, 3, 3)))
        assert kernel.arguments["dropout"] == dropout
