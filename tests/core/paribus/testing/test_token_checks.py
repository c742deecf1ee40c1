"""What the kit says of components whose rows depend on rows that they may not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import SOFTMAX_TRAITS, Attend, Context, Heads, ScoreOptions, Shape, Visibility
from paribus.testing import examine
from paribus.testing.token_checks import pad_tokens

Factory = Callable[..., Any]
FailureOf = Callable[[type[Any], str], str]
CAUSALITY = "no access to future tokens"
MIXING = "tokens reach other positions"
POSITIONS = "output depends on positions"
PADDING = "padding changes nothing"
DOCUMENTS = "packed documents equal separate ones"
ORDER = "permuted tokens keep their output"


def add_to_output(extra: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor, Context], Tensor]:
    """Return a forward method that adds `extra(x)` to the correct output."""

    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        mixed: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        return mixed + extra(x)

    return forward


def init_without_mask(self: Any, shape: Shape, *, scores: ScoreOptions = ScoreOptions()) -> None:
    """Initialize an attention without a causal mask."""
    torch.nn.Module.__init__(self)
    self.shape = shape
    self.heads = Heads(shape, kv_heads=shape.heads, bias=scores.bias)
    self.attend = Attend(shape, Visibility(causal=False), scores)


@pytest.mark.thorough
def test_attention_to_future_tokens_is_reported_with_two_tokens(attention: Factory, failure_of: FailureOf) -> None:
    message = failure_of(attention(__init__=init_without_mask), CAUSALITY)
    assert message.startswith(
        f"{CAUSALITY} (gpt-tiny): in a sequence of 2 tokens, changing token 1 changes the output at position 0 by "
    )


@pytest.mark.thorough
def test_output_that_depends_on_the_length_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    longer = attention(forward=add_to_output(lambda x: x * x.shape[1]))
    assert "the first 1 of 12 tokens give an output that differs by" in failure_of(
        longer, "appended tokens change no earlier output"
    )
    assert failure_of(longer, CAUSALITY) == ""


def test_attention_that_mixes_no_tokens_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    alone = attention(forward=lambda self, x, ctx: self.heads.o(self.heads.v(x)))
    assert "in a sequence of 3 tokens, changing token 0 changes no output at another position" in failure_of(
        alone, MIXING
    )


@pytest.mark.parametrize(("reads_keys", "expected"), [("none", 0), ("one", 1)])
def test_attention_that_reads_more_keys_than_declared_is_reported(
    reads_keys: str, expected: int, attention: Factory, failure_of: FailureOf
) -> None:
    message = failure_of(attention(traits={**SOFTMAX_TRAITS, "reads_keys": reads_keys}), MIXING)
    assert (
        f"(encoder-tiny): in a sequence of 3 tokens, 3 change an output at another position; expected {expected}"
        in message
    )


def test_attention_that_declares_to_mix_no_tokens_passes(attention: Factory, failure_of: FailureOf) -> None:
    alone = attention(
        forward=lambda self, x, ctx: self.heads.o(self.heads.v(x)), traits={**SOFTMAX_TRAITS, "reads_keys": "none"}
    )
    assert failure_of(alone, MIXING) == ""


@pytest.mark.thorough
def test_attention_that_declares_padding_only_is_tested_for_padding(attention: Factory, failure_of: FailureOf) -> None:
    traits = {**SOFTMAX_TRAITS, "documents": False, "padding": True}
    shifting = attention(forward=add_to_output(lambda x: torch.nn.functional.pad(x, (0, 0, 1, -1))), traits=traits)
    assert f"{PADDING} (encoder-tiny): " in failure_of(shifting, PADDING)
    assert failure_of(attention(traits=traits), PADDING) == ""


def test_tokens_hidden_by_the_window_need_not_reach_other_positions(attention: Factory, failure_of: FailureOf) -> None:
    def make_windowed(forward: Any) -> Any:
        def init(self: Any, shape: Shape) -> None:
            torch.nn.Module.__init__(self)
            self.shape = shape
            self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
            self.attend = Attend(shape, Visibility(causal=shape.causal, window=4, dilation=2), ScoreOptions())

        return attention(__init__=init, **forward)

    assert failure_of(make_windowed({}), MIXING) == ""
    alone = {"forward": lambda self, x, ctx: self.heads.o(self.heads.v(x))}
    assert "in a sequence of 3 tokens, changing token 0 changes no output at another position" in failure_of(
        make_windowed(alone), MIXING
    )


def test_examples_that_influence_each_other_are_reported(attention: Factory, failure_of: FailureOf) -> None:
    batched = attention(forward=add_to_output(lambda x: x.mean(0, keepdim=True)))
    assert "example 0 of a batch of 3 with 2 tokens differs by" in failure_of(batched, "batch equals single examples")


def test_random_draws_in_evaluation_are_reported(attention: Factory, failure_of: FailureOf) -> None:
    noisy = attention(forward=add_to_output(torch.rand_like))
    assert "two passes over 12 tokens differ by" in failure_of(noisy, "repeated passes are equal")


def test_output_that_depends_on_the_dropout_in_evaluation_is_reported(
    attention: Factory, failure_of: FailureOf
) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Any:
        return self.heads.merge(self.attend(self.heads, x, ctx)) * (1 - self.attend.dropout)

    message = failure_of(attention(forward=forward), "repeated passes are equal")
    assert "with a dropout of 0.5, the output in evaluation mode changes by" in message


@pytest.mark.few(1)
@pytest.mark.parametrize("check", [PADDING, DOCUMENTS, ORDER])
def test_attention_that_always_reads_the_previous_token_is_reported(
    check: str, attention: Factory, failure_of: FailureOf
) -> None:
    shifting = attention(forward=add_to_output(lambda x: torch.nn.functional.pad(x, (0, 0, 1, -1))))
    assert failure_of(shifting, CAUSALITY) == ""
    assert f"{check} (encoder-tiny): " in failure_of(shifting, check)


@pytest.mark.thorough
def test_checks_of_undeclared_traits_are_skipped(attention: Factory, components: Any) -> None:
    traits = {**SOFTMAX_TRAITS, "documents": False, "order": False}
    report = examine(
        attention(traits=traits),
        registry=components,
        only=[PADDING, DOCUMENTS, ORDER],
    )
    assert not report.findings
    assert not report.ok  # nothing was tried
    assert report.skipped == (
        PADDING,
        DOCUMENTS,
        ORDER,
    )


@pytest.mark.thorough
def test_padding_with_non_finite_gradients_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        mixed: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        documents = ctx.plans[self.attend.plan].k.documents
        hidden = torch.zeros_like(x[..., :1], dtype=torch.bool) if documents is None else (documents < 0).unsqueeze(-1)
        return torch.where(hidden.expand_as(mixed), (x * 0).sqrt(), mixed)  # 0, and its gradient is infinite

    assert "gradients for a sequence of only padding are not finite" in failure_of(attention(forward=forward), PADDING)


def test_non_finite_output_for_padding_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        mixed: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        documents = ctx.plans[self.attend.plan].k.documents
        only_padding = documents is not None and bool((documents < 0).all(1).any())
        return mixed / 0 if only_padding else mixed

    assert "the output for a sequence of only padding is not finite" in failure_of(attention(forward=forward), PADDING)


@pytest.mark.thorough
def test_padding_of_the_source_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        mixed: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        return mixed if ctx.memory is None else mixed + ctx.memory.mean(1, keepdim=True)

    message = failure_of(attention(forward=forward), PADDING)
    assert f"{PADDING} (seq2seq-tiny): the output for 2 tokens changes by" in message
    assert "when the source has 3 padding tokens on the right" in message


@pytest.mark.thorough
def test_source_of_another_document_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        mixed: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        return mixed if ctx.memory is None else mixed + ctx.memory[:, :1]

    message = failure_of(attention(forward=forward), DOCUMENTS)
    assert f"{DOCUMENTS} (seq2seq-tiny): document 2 of 3 differs by" in message


def test_position_without_effect_is_reported(position: Factory, failure_of: FailureOf) -> None:
    constant = position(
        traits={"hooks": ["embed"], "bias": "none", "owner": "stack"}, embed=lambda self, x, positions: x
    )
    assert "expected an output that depends on positions" in failure_of(constant, POSITIONS)


def test_position_with_an_undeclared_effect_is_reported(position: Factory, failure_of: FailureOf) -> None:
    undeclared = position(embed=lambda self, x, positions: x * (1 + positions.unsqueeze(-1)))
    assert "its trait `hooks` is empty, but 3 permuted tokens differ" in failure_of(undeclared, POSITIONS)


def test_positions_continue_through_padding_on_both_sides() -> None:
    token_ids = torch.arange(20, 24).unsqueeze(0)
    for side, start in (("right", 0), ("left", -3)):
        stream, span = pad_tokens(token_ids, side, 9)
        assert torch.equal(stream.tokens[:, span], token_ids)
        assert stream.positions is not None
        assert stream.positions.tolist() == [list(range(start, start + 7))]
        assert stream.documents is not None
        assert (stream.documents[:, span] == 0).all()
        assert int((stream.documents < 0).sum()) == 3
