"""What the kit says of components whose rows depend on rows that they may not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import SOFTMAX_TRAITS, Attend, Context, Heads, ScoreOptions, Shape, Visibility
from paribus.testing import examine
from paribus.testing.token_checks import pad_tokens

Faulty = Callable[..., Any]
Found = Callable[[type[Any], str], str]


def adding(extra: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor, Context], Tensor]:
    """The forward pass of an attention that adds something of its own to what it should give."""

    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        mixed: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        return mixed + extra(x)

    return forward


def blind(self: Any, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
    """Sees both sides, wherever it stands."""
    torch.nn.Module.__init__(self)
    self.shape = shape
    self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
    self.attend = Attend(shape, Visibility(causal=False), scores)


def test_an_attention_that_sees_the_future_is_shown_with_two_rows(attention: Faulty, found: Found) -> None:
    said = found(attention(__init__=blind), "causality")
    assert said.startswith("causality (gpt-tiny): of 2 rows, changing token 1 moves row 0, before it, by ")


def test_a_pass_whose_first_rows_depend_on_how_many_follow_is_shown(attention: Faulty, found: Found) -> None:
    longer = attention(forward=adding(lambda x: x * x.shape[1]))
    assert "prefix (gpt-tiny): 1 rows alone are not the first 1 of 12" in found(longer, "prefix")
    assert found(longer, "causality") == ""


def test_an_attention_that_mixes_nothing_is_shown(attention: Faulty, found: Found) -> None:
    alone = attention(forward=lambda self, x, ctx: self.heads.o(self.heads.v(x)))
    assert "of 3 rows, changing token 0 moves no other row" in found(alone, "mixing")


@pytest.mark.parametrize(("sees", "declared"), [("none", 0), ("one", 1)])
def test_one_that_reads_more_rows_than_it_declares_is_shown(
    sees: str, declared: int, attention: Faulty, found: Found
) -> None:
    said = found(attention(traits={**SOFTMAX_TRAITS, "reads_keys": sees}), "mixing")
    assert f"mixing (encoder-tiny): of 3 rows, 3 move others when they change, but it declares {declared}" in said


def test_one_that_mixes_nothing_and_says_so_is_right(attention: Faulty, found: Found) -> None:
    alone = attention(
        forward=lambda self, x, ctx: self.heads.o(self.heads.v(x)), traits={**SOFTMAX_TRAITS, "reads_keys": "none"}
    )
    assert found(alone, "mixing") == ""


def test_one_that_leaves_out_padding_alone_is_held_to_that(attention: Faulty, found: Found) -> None:
    traits = {**SOFTMAX_TRAITS, "documents": False, "padding": True}
    shifting = attention(forward=adding(lambda x: torch.nn.functional.pad(x, (0, 0, 1, -1))), traits=traits)
    assert "padding (encoder-tiny): " in found(shifting, "padding")
    assert found(attention(traits=traits), "padding") == ""


def test_a_token_that_no_sight_lets_another_row_see_need_not_reach_one(attention: Faulty, found: Found) -> None:
    def begin(forward: Any) -> Any:
        def init(self: Any, shape: Shape) -> None:
            torch.nn.Module.__init__(self)
            self.shape = shape
            self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
            self.attend = Attend(shape, Visibility(causal=shape.causal, window=4, dilation=2), ScoreOptions())

        return attention(__init__=init, **forward)

    assert found(begin({}), "mixing") == ""
    alone = {"forward": lambda self, x, ctx: self.heads.o(self.heads.v(x))}
    assert "of 3 rows, changing token 0 moves no other row" in found(begin(alone), "mixing")


def test_sequences_that_read_each_other_are_shown(attention: Faulty, found: Found) -> None:
    batched = attention(forward=adding(lambda x: x.mean(0, keepdim=True)))
    assert "sequence 0 of a batch of 3 with 2 rows differs by" in found(batched, "batch")


def test_draws_from_the_global_generator_are_shown(attention: Faulty, found: Found) -> None:
    noisy = attention(forward=adding(torch.rand_like))
    assert "two passes over 12 tokens differ by" in found(noisy, "determinism")


@pytest.mark.parametrize("check", ["padding", "documents", "order"])
def test_an_attention_that_reads_its_neighbour_whatever_it_is_is_shown(
    check: str, attention: Faulty, found: Found
) -> None:
    shifting = attention(forward=adding(lambda x: torch.nn.functional.pad(x, (0, 0, 1, -1))))
    assert found(shifting, "causality") == ""
    assert f"{check} (encoder-tiny): " in found(shifting, check)


def test_one_that_declares_neither_is_not_asked(attention: Faulty, components: Any) -> None:
    traits = {**SOFTMAX_TRAITS, "documents": False, "order": False}
    report = examine(attention(traits=traits), registry=components, only=["padding", "documents", "order"])
    assert report.ok
    assert report.skipped == ("padding", "documents", "order")


def test_padding_that_poisons_a_gradient_is_shown(attention: Faulty, found: Found) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        mixed: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        nothing = ctx.plans[self.attend.plan].k.documents
        hidden = torch.zeros_like(x[..., :1], dtype=torch.bool) if nothing is None else (nothing < 0).unsqueeze(-1)
        return torch.where(hidden.expand_as(mixed), (x * 0).sqrt(), mixed)  # 0, and its gradient is infinite

    assert "makes gradients that are not finite" in found(attention(forward=forward), "padding")


def test_padding_that_is_not_finite_is_shown(attention: Faulty, found: Found) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        mixed: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        documents = ctx.plans[self.attend.plan].k.documents
        lost = documents is not None and bool((documents < 0).all(1).any())
        return mixed / 0 if lost else mixed

    assert "a sequence of nothing but padding is not finite" in found(attention(forward=forward), "padding")


def test_padding_of_what_is_attended_to_is_looked_at_as_well(attention: Faulty, found: Found) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        mixed: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        return mixed if ctx.memory is None else mixed + ctx.memory.mean(1, keepdim=True)

    said = found(attention(forward=forward), "padding")
    assert "padding (seq2seq-tiny): 2 rows differ by" in said
    assert "when what they attend to has 3 rows of padding on the right" in said


def test_a_position_that_says_nothing_is_shown(position: Faulty, found: Found) -> None:
    silent = position(traits={"hooks": ["embed"], "bias": "none", "owner": "stack"}, embed=lambda self, x, at: x)
    assert "expected: an output that depends on positions" in found(silent, "placing")


def test_a_position_that_declares_nothing_and_says_something_is_shown(position: Faulty, found: Found) -> None:
    loud = position(embed=lambda self, x, positions: x * (1 + positions.unsqueeze(-1)))
    assert "it declares no hook, but 3 permuted tokens differ" in found(loud, "placing")


def test_padding_continues_the_ramp_on_either_side() -> None:
    rows = torch.arange(20, 24).unsqueeze(0)
    for side, first in (("right", 0), ("left", -3)):
        stream, own = pad_tokens(rows, side, 9)
        assert torch.equal(stream.tokens[:, own], rows)
        assert stream.positions is not None
        assert stream.positions.tolist() == [list(range(first, first + 7))]
        assert stream.documents is not None
        assert (stream.documents[:, own] == 0).all()
        assert int((stream.documents < 0).sum()) == 3
