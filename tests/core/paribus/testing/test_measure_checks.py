"""What the kit asks of a measure."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

from paribus import EvaluatedModel, Measure, MeasureTraits, Problem, SpecError, TrialInfo
from paribus.registry import Registry
from paribus.testing import conform, examine


@final
class Writes(Measure):
    """How many pairs a model writes."""

    traits: ClassVar[MeasureTraits] = {"needs": ["pairs"]}

    def names(self, known: TrialInfo) -> Sequence[str]:
        return ("pairs",)

    def measure(self, subject: EvaluatedModel) -> Mapping[str, float | str]:
        return {"pairs": float(len(subject.generate(4, tokens=2)))}


@final
class Lacks(Measure):
    """Nothing, for want of a library."""

    def names(self, known: TrialInfo) -> Sequence[str]:
        raise SpecError(Problem(code="not-installed", message="there is no library", valid="another"))

    def measure(self, subject: EvaluatedModel) -> Mapping[str, float | str]:
        return dict.fromkeys(self.names(subject.trial), 1.0)


@final
class Breaks(Measure):
    """Nothing, for another reason."""

    def names(self, known: TrialInfo) -> Sequence[str]:
        raise SpecError(Problem(code="out-of-range", message="it is 3", valid="2"))

    def measure(self, subject: EvaluatedModel) -> Mapping[str, float | str]:
        return dict.fromkeys(self.names(subject.trial), 1.0)


def test_one_that_has_the_model_write_is_tried_in_a_model_of_pairs(components: Registry) -> None:
    report = conform(Writes, registry=components, only=["measuring"])
    assert "measuring" in report.passed


def test_one_whose_library_is_not_installed_is_not_asked_and_one_that_fails_is_told(components: Registry) -> None:
    assert examine(Lacks, registry=components, only=["measuring"]).skipped == ("measuring",)
    assert "it is 3" in examine(Breaks, registry=components, only=["measuring"]).findings[0].message
