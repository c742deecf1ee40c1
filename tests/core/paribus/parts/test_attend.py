"""The road from heads to a kernel: what is scaled, what is remembered, what is read from a memory."""

import math
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
from paribus.parts.attend import append_to_cache, leading_positions
from paribus.parts.attention_plan import kernel_request
from paribus.parts.attention_weights import DensePlan
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring
from paribus.parts.visibility import with_order

SHAPE = Shape(width=6, heads=4, head_width=4, length=8, vocabulary=11, layers=1)


@final
class Marking(Position):
    """Multiplies queries by their table and adds the table to keys, so that both leave a trace."""

    traits: ClassVar[PositionTraits] = {"hooks": ["rotate"], "bias": "none", "owner": "stack"}

    def rotate(self, x: Tensor, tables: Any, side: Literal["query", "key"]) -> Tensor:
        turned: Tensor = x * tables if side == "query" else x + tables
        return turned

    def position_limit(self) -> None:
        return None


@final
class Reading(Position):
    """Has a bias that reads content, and mixes; three terms share its scale."""

    traits: ClassVar[PositionTraits] = {"hooks": ["bias", "mix"], "bias": "content", "owner": "layer", "score_terms": 3}

    def bias(self, pair: Pair) -> Tensor:
        assert pair.q is not None
        assert pair.k is not None
        return pair.q @ pair.k.transpose(-1, -2)

    def position_limit(self) -> None:
        return None


@final
class Telling:
    """A kernel that keeps what it was given and returns the queries."""

    name = "telling"

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def serves(self, demand: KernelRequest) -> bool:
        return True

    def prepare(self, plan: AttentionPlan, bias: Any, heads: int, like: Tensor) -> DensePlan:
        return DensePlan(None, None)

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, plan: AttentionPlan, content: LayerScoring | None, dropout: float
    ) -> Tensor:
        self.told = {"q": q, "k": k, "v": v, "content": content, "dropout": dropout}
        return q


def plan_of(kernel: Telling, queries: int, keys: int, q_table: float = 1.0, k_table: float = 0.0) -> AttentionPlan:
    q, k = (with_order(TokenLayout(torch.arange(count).unsqueeze(0))) for count in (queries, keys))
    tables = torch.tensor(q_table), torch.tensor(k_table)
    return AttentionPlan(kernel, KernelRequest(Visibility()), 0.5, None, q, k, *tables, DensePlan(None, None))


def around(
    *plans: AttentionPlan, memory: Tensor | None = None, state: State | None = None, past: int = 0, capture: Any = None
) -> Context:
    return Context(plans, plans[0].q, plans[0].k, memory, state, past, {}, capture)


def built(position: Position | None = None, scores: ScoreOptions = ScoreOptions(), dropout: float = 0.0) -> Attend:
    shape = Shape(6, 4, 4, 8, 11, 1, dropout=dropout)
    attend = Attend(shape, Visibility(), scores)
    attend.bind(position or Marking(), 0)
    return attend


def heads_of(groups: int = 2, memory_width: int | None = None) -> Heads:
    return Heads(Shape(6, 4, 4, 8, 11, 1, memory_width=memory_width), kv_heads=groups, bias=False)


def test_queries_and_keys_are_turned_each_by_their_own_tables_and_values_are_not() -> None:
    kernel, heads, x = Telling(), heads_of(), torch.randn(2, 3, 6)
    built()(heads, x, around(plan_of(kernel, 3, 3, 2.0, 5.0)))
    assert torch.equal(kernel.told["q"], heads.queries(x) * 2)
    assert torch.equal(kernel.told["k"], heads.keys(x) + 5)
    assert torch.equal(kernel.told["v"], heads.values(x))


def test_the_plan_that_was_bound_is_the_one_that_is_read() -> None:
    first, second = Telling(), Telling()
    attend = built()
    attend.bind(Marking(), 1)
    attend(heads_of(), torch.randn(1, 3, 6), around(plan_of(first, 3, 3), plan_of(second, 3, 3)))
    assert (len(first.told), len(second.told)) == (0, 5)


def test_a_position_is_bound_and_does_not_become_a_child() -> None:
    attend, position = Attend(SHAPE, Visibility(), ScoreOptions()), Marking()
    attend.bind(position, 0)
    assert attend.position is position
    assert list(attend.children()) == []


def test_scores_are_divided_by_the_root_of_the_head_width_and_of_the_terms() -> None:
    assert built().scale == 1 / 2
    assert built(Reading()).scale == pytest.approx(1 / math.sqrt(4 * 3))
    assert built(scores=ScoreOptions(scaled=False)).scale == 1


def test_leading_rows_are_the_keys_where_a_second_stream_asks_behind_them() -> None:
    kernel, heads, x = Telling(), heads_of(), torch.randn(1, 6, 6)
    built()(heads, x, around(plan_of(kernel, 6, 3)))
    assert torch.equal(kernel.told["q"], heads.queries(x))
    assert torch.equal(kernel.told["k"], heads.keys(x[:, :3]))
    assert leading_positions(x, 6) is x


def test_keys_are_remembered_behind_those_that_are_there() -> None:
    kernel, heads, x = Telling(), heads_of(), torch.randn(2, 5, 6)
    state: State = {name: torch.zeros(2, 2, 8, 4) for name in ("k", "v")}
    attend = built()
    for start, end in ((0, 3), (3, 5)):
        attend(heads, x[:, start:end], around(plan_of(kernel, end - start, end), state=state, past=start))
    assert torch.allclose(kernel.told["k"], heads.keys(x))
    assert torch.allclose(kernel.told["v"], heads.values(x))
    assert (state["k"][:, :, 5:] == 0).all()


def test_remembering_writes_in_place() -> None:
    state: State = {"k": torch.zeros(1, 1, 4, 2), "v": torch.zeros(1, 1, 4, 2)}
    kept = state["k"]
    k, v = append_to_cache(state, torch.ones(1, 1, 2, 2), torch.full((1, 1, 2, 2), 2.0), 1)
    assert state["k"] is kept
    assert k[0, 0, :, 0].tolist() == [0, 1, 1]
    assert v[0, 0, :, 0].tolist() == [0, 2, 2]
    assert k.data_ptr() == kept.data_ptr()


def test_a_memory_is_projected_once() -> None:
    kernel, heads = Telling(), heads_of(memory_width=5)
    x, memory = torch.randn(1, 2, 6), torch.randn(1, 3, 5)
    state: State = {}
    attend = built()
    attend(heads, x, around(plan_of(kernel, 2, 3), memory=memory, state=state))
    assert torch.equal(state["k"], heads.keys(memory))
    attend(heads, x, around(plan_of(kernel, 2, 3), memory=memory + 1, state=state))
    assert torch.equal(kernel.told["k"], heads.keys(memory))
    assert torch.equal(kernel.told["v"], heads.values(memory))
    attend(heads, x, around(plan_of(kernel, 2, 3), memory=memory + 1))
    assert torch.equal(kernel.told["k"], heads.keys(memory + 1))


def test_a_kernel_is_given_the_moments_that_read_content_and_no_others() -> None:
    kernel, heads, x = Telling(), heads_of(), torch.randn(1, 3, 6)
    position = Reading()
    built()(heads, x, around(plan_of(kernel, 3, 3)))
    assert kernel.told["content"] is None
    built(position)(heads, x, around(plan_of(kernel, 3, 3)))
    assert kernel.told["content"] == LayerScoring(position.bias, heads.project, position.mix)


def test_a_bias_is_shown_heads_without_the_columns_that_are_turned_beside_them() -> None:
    attend, position = Attend(SHAPE, Visibility(), ScoreOptions(), rotary=2), Reading()
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
class Sparing(Position):
    """What its traits allow, it leaves out: it mixes nothing, and has one term."""

    traits: ClassVar[PositionTraits] = Reading.traits

    def score_terms(self) -> int:
        return 1

    def uses_mix(self) -> bool:
        return False

    def position_limit(self) -> None:
        return None


def test_a_position_may_leave_out_what_its_traits_allow() -> None:
    kernel, heads, position = Telling(), heads_of(), Sparing()
    attend = built(position)
    attend(heads, torch.randn(1, 3, 6), around(plan_of(kernel, 3, 3)))
    assert kernel.told["content"] == LayerScoring(position.bias, heads.project, None)
    assert attend.scale == 1 / 2
    assert not kernel_request(attend, position, cross=False).has_mix
    assert kernel_request(built(Reading()), Reading(), cross=False).has_mix


def test_a_kernel_is_given_the_part_that_a_layer_has_of_a_position() -> None:
    kernel, heads, part = Telling(), heads_of(), torch.nn.Linear(2, 3)
    attend = built(Reading())
    attend.bind(attend.position, 0, part)
    attend(heads, torch.randn(1, 3, 6), around(plan_of(kernel, 3, 3)))
    assert kernel.told["content"].position_part is part
    assert list(attend.children()) == []


def test_queries_and_keys_may_be_normalised_before_they_are_turned() -> None:
    kernel, heads, x = Telling(), heads_of(), torch.randn(2, 3, 6)
    attend = built(scores=ScoreOptions(qk_norm=True))
    with torch.no_grad():
        attend.q_norm.weight.fill_(2.0)
    attend(heads, x, around(plan_of(kernel, 3, 3, 3.0, 5.0)))
    for told, plain, gain, shift in (("q", heads.queries(x), 6.0, 0.0), ("k", heads.keys(x), 1.0, 5.0)):
        wanted = plain / plain.square().mean(-1, keepdim=True).add(1e-6).sqrt() * gain + shift
        assert torch.allclose(kernel.told[told], wanted, atol=1e-5)


def test_values_are_mixed_with_those_of_the_first_layer_that_has_as_many_heads() -> None:
    kernel, heads, others = Telling(), [heads_of() for _ in range(3)], heads_of(4)
    ctx, x = around(plan_of(kernel, 3, 3)), torch.randn(2, 3, 6)
    for at, share in enumerate((0.3, 0.0, 0.2)):
        attend = built(scores=ScoreOptions(value_residual=True))
        assert attend.own_share is not None
        torch.nn.init.constant_(attend.own_share, share)
        attend(heads[at], x, ctx)
        wanted = (0.5 + share) * heads[at].values(x) + (0.5 - share) * heads[0].values(x)
        assert torch.allclose(kernel.told["v"], wanted)
        attend(others, x, ctx)
        assert torch.allclose(kernel.told["v"], others.values(x))


def test_sinks_and_a_say_in_the_scores_reach_the_kernel() -> None:
    kernel, heads, x = Telling(), heads_of(), torch.randn(2, 3, 6)
    attend = built(scores=ScoreOptions(sinks=True))
    attend(heads, x, around(plan_of(kernel, 3, 3)))
    assert kernel.told["content"].sinks is attend.sinks
    said = Attend(SHAPE, Visibility(), ScoreOptions(), scored=True)
    said.bind(Marking(), 0)
    scoring = ScoreFunctions(map_scores=torch.tanh)
    said(heads, x, around(plan_of(kernel, 3, 3)), scoring)
    assert kernel.told["content"].functions is scoring


@pytest.mark.parametrize(
    "scores", [ScoreOptions(qk_norm=True), ScoreOptions(sinks=True), ScoreOptions(value_residual=True)], ids=str
)
@pytest.mark.parametrize("attention", ["mha", "gqa", "restricted"])
def test_with_every_option_step_by_step_is_the_whole(scores: ScoreOptions, attention: str) -> None:
    option = next(name for name, on in vars(scores).items() if on and name not in {"bias", "scaled"})
    window = ["attention.window=3"] if attention == "restricted" else []
    model = paribus.assemble(
        paribus.spec("gpt-tiny", f"attention={attention}", f"attention.scores.{option}=true", "position=rope", *window)
    ).double()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith(("sinks", "own_share", "_norm.weight")):
                parameter.copy_(torch.linspace(-0.4, 1.2, parameter.numel()).view_as(parameter))
    tokens = torch.randint(0, 200, (2, 9))
    states = model.start(2, 9)
    steps = [model.hidden(chunk, states) for chunk in tokens.split([4, 1, 3, 1], dim=1)]
    assert torch.allclose(torch.cat(steps, dim=1), model.hidden(tokens), atol=1e-10)


def test_weights_are_captured_where_they_are_asked_for() -> None:
    kernel, heads, x = Telling(), heads_of(), torch.randn(1, 3, 6)
    captured: dict[str, Tensor] = {}
    built()(heads, x, around(plan_of(kernel, 3, 3), capture=captured))
    scores = heads.queries(x) @ heads.keys(x).repeat_interleave(2, 1).transpose(-1, -2) * 0.5
    assert torch.allclose(captured["weights"], scores.softmax(-1), atol=1e-6)


def test_dropout_is_for_training() -> None:
    kernel, heads, x = Telling(), heads_of(), torch.randn(1, 3, 6)
    attend = built(dropout=0.3)
    for training, dropout in ((True, 0.3), (False, 0.0)):
        attend.train(training)(heads, x, around(plan_of(kernel, 3, 3)))
        assert kernel.told["dropout"] == dropout
