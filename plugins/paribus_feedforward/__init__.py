"""Feed-forward components, applied to each token separately."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import FeedForward, hookimpl, registered
from paribus_feedforward.gated_linear_unit import GatedLinearUnit as glu
from paribus_feedforward.mixture_of_experts import MixtureOfExperts as moe
from paribus_feedforward.multi_layer_perceptron import MultiLayerPerceptron as mlp


@hookimpl
def feedforward() -> Mapping[str, type[FeedForward]]:
    return registered(globals(), FeedForward)
