"""Measures of a trained model besides its losses, one file each."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Measure, hookimpl, registered
from paribus_measure.associative_recall import AssociativeRecall as recall
from paribus_measure.attention_entropy import AttentionEntropy as entropy
from paribus_measure.effective_span import EffectiveSpan as span
from paribus_measure.few_shot import FewShot as few_shot
from paribus_measure.induction_score import InductionScore as induction
from paribus_measure.length_extrapolation import LengthExtrapolation as extrapolation
from paribus_measure.other_corpus import OtherCorpus as other_corpus
from paribus_measure.position_sensitivity import PositionSensitivity as positions
from paribus_measure.sink_mass import SinkMass as sink
from paribus_measure.steps_to_threshold import StepsToThreshold as threshold
from paribus_measure.translation import Translation as translation


@hookimpl
def measure() -> Mapping[str, type[Measure]]:
    return registered(globals(), Measure)
