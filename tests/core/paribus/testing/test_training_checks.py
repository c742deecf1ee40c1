"""Failures of initial weights, training steps, learning rates and measures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, final

import pytest
import torch
from torch import Tensor

from paribus import (
    EvaluatedModel,
    Initialisation,
    Measure,
    MeasureTraits,
    Optimizer,
    ParameterInfo,
    Problem,
    Schedule,
    SpecError,
    TrialInfo,
    Vocabulary,
)
from paribus.registry import Registry
from paribus.testing import conform, examine

Factory = Callable[..., Any]
FailureOf = Callable[[type[Any], str], str]
SEED = "initial weights depend on the seed only"
MEASURE = "measured values are reproducible"
LEARNING_RATES = "learning rates are valid"
TRAINING = "loss falls on one batch"
OTHER_WEIGHTS = "other initial weights stay the same"
LETTERS = Vocabulary(200, {"pad": 128, "mask": 129, "cls": 130, "sep": 131, "eos": 132})


def test_optimizer_without_effect_is_reported(component_class: Factory, failure_of: FailureOf) -> None:
    def build(self: Any, tensors: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([tensor.parameter for tensor in tensors], lr=0.0)

    assert "after 8 steps on one batch the loss is" in failure_of(
        component_class(Optimizer, {"build": build}), TRAINING
    )


def test_non_finite_loss_is_reported_with_the_previous_loss(component_class: Factory, failure_of: FailureOf) -> None:
    def build(self: Any, tensors: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([tensor.parameter for tensor in tensors], lr=float("inf"))

    message = failure_of(component_class(Optimizer, {"build": build}), TRAINING)
    assert "the loss at step 1 is nan; previous loss: " in message


def test_invalid_learning_rate_is_reported(component_class: Factory, failure_of: FailureOf) -> None:
    negative = component_class(Schedule, {"factor": lambda self, step, steps: -1.0})
    assert "the factor at step 0 of 1 is -1.0" in failure_of(negative, LEARNING_RATES)
    zero = component_class(Schedule, {"factor": lambda self, step, steps: 0.0})
    assert "the factor of all 1 steps is 0" in failure_of(zero, LEARNING_RATES)


def test_learning_rate_that_depends_on_the_call_count_is_reported(
    component_class: Factory, failure_of: FailureOf
) -> None:
    def factor(self: Any, step: int, steps: int) -> float:
        calls: int = getattr(self, "calls", 0) + 1
        self.calls = calls
        return 1.0 / calls

    assert "give different factors" in failure_of(component_class(Schedule, {"factor": factor}), LEARNING_RATES)


def test_buffer_from_the_global_generator_is_reported(attention: Factory, failure_of: FailureOf) -> None:
    def prepare(self: Any, keyed: Any) -> None:
        self.register_buffer("blocks", torch.randn(3))

    message = failure_of(attention(prepare=prepare), SEED)
    assert "two models of one seed differ in `body.layers.0.attention.blocks`" in message


def test_buffer_from_keyed_draws_passes(attention: Factory, failure_of: FailureOf) -> None:
    def prepare(self: Any, keyed: Any) -> None:
        self.register_buffer("blocks", keyed("blocks", (3,)))

    assert failure_of(attention(prepare=prepare), SEED) == ""


def test_changed_initial_weights_are_reported(attention: Factory, failure_of: FailureOf) -> None:
    def prepare(self: Any, keyed: Any) -> None:
        self.heads.q.weight.data.mul_(2)

    message = failure_of(attention(prepare=prepare), OTHER_WEIGHTS)
    assert "`body.layers.0.attention.heads.q.weight` has other initial weights" in message


def test_initialisation_from_the_global_generator_is_reported(component_class: Factory, failure_of: FailureOf) -> None:
    random = component_class(Initialisation, {"draw": lambda self, unit, info: torch.randn(info.shape)})
    assert "two models of one seed differ in" in failure_of(random, SEED)


def test_initialisation_that_ignores_the_seed_is_reported(component_class: Factory, failure_of: FailureOf) -> None:
    def draw(self: Any, unit: Tensor, info: ParameterInfo) -> Tensor:
        return torch.linspace(-1, 1, unit.numel()).reshape(unit.shape)

    assert "and all other parameters are the same for two seeds" in failure_of(
        component_class(Initialisation, {"draw": draw}), SEED
    )


@final
class GeneratedPairs(Measure):
    """Number of generated outputs."""

    traits: ClassVar[MeasureTraits] = {"needs": ["pairs"]}

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return ("pairs",)

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        return {"pairs": float(len(model.generate(4, tokens=2)))}


@final
class MissingLibrary(Measure):
    """Measure whose library is not installed."""

    def names(self, trial: TrialInfo) -> Sequence[str]:
        raise SpecError(Problem(code="not-installed", message="the library is not installed", valid="another"))

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        return dict.fromkeys(self.names(model.trial), 1.0)


@final
class InvalidOption(Measure):
    """Measure with an invalid option."""

    def names(self, trial: TrialInfo) -> Sequence[str]:
        raise SpecError(Problem(code="out-of-range", message="it is 3", valid="2"))

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        return dict.fromkeys(self.names(model.trial), 1.0)


def test_measure_that_generates_text_is_tested_in_a_seq2seq_model(components: Registry) -> None:
    report = conform(GeneratedPairs, registry=components, only=[MEASURE])
    assert MEASURE in report.passed


@pytest.mark.thorough
def test_measure_without_its_library_is_skipped_and_other_errors_fail(components: Registry) -> None:
    assert examine(MissingLibrary, registry=components, only=[MEASURE]).skipped == (MEASURE,)
    assert "it is 3" in examine(InvalidOption, registry=components, only=[MEASURE]).findings[0].message
