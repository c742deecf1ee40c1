"""What the kit says of weights that are not as they are declared."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from paribus import SOFTMAX_TRAITS, Context
from paribus.registry import Registry
from paribus.testing import examine

Faulty = Callable[..., Any]
Found = Callable[[type[Any], str], str]


def changed(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """A forward that shows other weights than it has."""

    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        merged: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        if ctx.captured is not None:
            ctx.captured["weights"] = change(ctx.captured["weights"])
        return merged

    return forward


def test_weights_that_sum_to_more_than_1_are_shown(attention: Faulty, found: Found) -> None:
    said = found(attention(forward=changed(lambda weights: weights * 2)), "weights")
    assert said == "weights (encoder-tiny): layer 0: `weights` of a row sum to 2; expected: 1"


def test_weights_below_0_are_shown(attention: Faulty, found: Found) -> None:
    said = found(attention(forward=changed(lambda weights: -weights)), "weights")
    assert "`weights` have a minimum of -1; expected: at least 0" in said


def test_weights_of_rows_that_come_later_are_shown(attention: Faulty, found: Found) -> None:
    traits = {**SOFTMAX_TRAITS, "normalized": False, "documents": False}
    late = attention(forward=changed(lambda weights: weights.flip(-1)), traits=traits)
    assert "(gpt-tiny): layer 0: `weights` weigh rows that come later by" in found(late, "weights")


def test_weights_of_padding_are_shown(attention: Faulty, found: Found) -> None:
    traits = {**SOFTMAX_TRAITS, "causal": False}
    even = attention(forward=changed(lambda weights: weights * 0 + 1 / weights.shape[-1]), traits=traits)
    assert "layer 0: padding on the right is weighed by 0.14" in found(even, "weights")


def test_weights_of_another_shape_are_shown(attention: Faulty, found: Found) -> None:
    said = found(attention(forward=changed(lambda weights: weights[:, 0])), "weights")
    assert "`weights` are (2, 1, 1); expected: (B, H, T, S) of (2, 1) keys" in said


def test_weights_that_are_declared_and_never_given_are_named(attention: Faulty, found: Found) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        merged: Tensor = self.heads.merge(self.attend(self.heads, x, ctx._replace(captured=None)))
        return merged

    assert "its trait `weights` is True, but there are no `weights`" in found(attention(forward=forward), "weights")


def test_a_pass_that_is_another_where_weights_are_asked_for_is_shown(attention: Faulty, found: Found) -> None:
    def forward(self: Any, x: Tensor, ctx: Context) -> Tensor:
        merged: Tensor = self.heads.merge(self.attend(self.heads, x, ctx))
        return merged if ctx.captured is None else merged * 2

    assert "when weights are captured" in found(attention(forward=forward), "weights")


def test_no_weights_are_declared_and_none_are_given(attention: Faulty, components: Registry) -> None:
    silent = attention(traits={**SOFTMAX_TRAITS, "weights": False, "cross": False})
    report = examine(silent, registry=components, only=["weights"])
    assert [finding.message for finding in report.findings] == [
        "layer 0: its trait `weights` is False, but there are `weights`"
    ]
    report = examine("attention.linear", registry=components, only=["weights"])
    assert report.skipped == ("weights",)
