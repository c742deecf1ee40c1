"""Measures: what is asked of a trained model besides its losses, a file each."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Measure, hookimpl, offered
from paribus_measure.attention_entropy import AttentionEntropy as entropy
from paribus_measure.effective_span import EffectiveSpan as span
from paribus_measure.sink_mass import SinkMass as sink


@hookimpl
def measure() -> Mapping[str, type[Measure]]:
    return offered(globals(), Measure)
