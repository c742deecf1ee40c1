"""Maximal update parametrisation, µP, and CompleteP (`mup`)."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, NamedTuple, final

from torch import Tensor

from paribus import Example, Initialisation, InitialisationTraits, OptimizerFactors, ParameterInfo, Range

TABLES = frozenset({"embedding", "vector", "bias", "gain"})


class Scales(NamedTuple):
    """Factors of a tensor's standard deviation and learning rate, against those of a model of the base size."""

    std: float
    lr: float


@final
class MaximalUpdate(Initialisation):
    """Maximal update parametrisation, whose best learning rate does not depend on the width (Yang et al. 2022).

    "Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer", table 3, for Adam. With m
    the width over `base_width`, matrices of layers have std / √m and lr / m, and scores of tokens std / m and lr / m;
    tables, biases and gains keep both. At `base_width` it is `normal`. With `base_layers` also the depth, "CompleteP"
    (Dey et al. 2025) with alpha = 1: residual projections and their biases are divided by layers / `base_layers`, as if
    each branch was. No forward pass changes: a factor of an output is one of the initial weights and the rate. Weight
    decay is divided by the factor of the rate, so that a step decays as much at each size; eps is divided by m, and
    in layers by the depth, as gradients are.

    Everything that is not of the width of the stream should have the same size at each width, or grow with it: more
    heads (see `base_head_width`), wider feed-forwards. Use it with `embedding.tie: false`, and for CompleteP with a
    placement that adds residual projections to the stream as they are, such as `pre`.
    """

    traits: ClassVar[InitialisationTraits] = {"rate_factors": True}

    def __init__(
        self,
        *,
        base_width: Annotated[int, "width at which the learning rate was chosen", Range(1), Example(64)],
        base_layers: Annotated[
            int | None, "number of layers at which it was chosen (CompleteP); null: depth has no effect", Range(1)
        ] = None,
        base_head_width: Annotated[
            int | None,
            "head width at which it was chosen, for heads that become wider: scores are then divided by the head width "
            "and not by its root, except with `scores.qk_norm`; null: all widths have heads of the same width",
            Range(1),
        ] = None,
        std: Annotated[float, "standard deviation at the base size", Range(above=0)] = 0.02,
    ) -> None:
        self.base_width, self.base_layers, self.base_head_width = base_width, base_layers, base_head_width
        self.std = std

    def draw(self, unit: Tensor, about: ParameterInfo) -> Tensor:
        return unit * (self.std * about.gain * self._scales(about).std)

    def optimizer_factors(self, about: ParameterInfo) -> OptimizerFactors:
        scales, gradient = self._scales(about), 1.0 / (self._width(about) * self._depth(about))
        absorbed = self._absorbed(about)
        return OptimizerFactors(scales.lr, 1.0 / scales.lr, gradient / absorbed)

    def _scales(self, about: ParameterInfo) -> Scales:
        absorbed, fan_in = self._absorbed(about), self._width(about) if _is_hidden(about) else 1.0
        return Scales(absorbed / math.sqrt(fan_in), absorbed / fan_in)

    def _absorbed(self, about: ParameterInfo) -> float:
        """Return the factor of an output that the weights contain: of scores, of logits, or of a residual branch."""
        if "residual" in (about.role, about.bias_of):
            return 1.0 / self._depth(about)
        if "query" in (about.role, about.bias_of) and self.base_head_width is not None:
            return math.sqrt(self.base_head_width / (about.head_width or self.base_head_width))
        return 1.0 / self._width(about) if _is_output(about) else 1.0

    def _width(self, about: ParameterInfo) -> float:
        """Return the width of the stream over the base width; 1 for a bias outside of stacks."""
        if about.width == 0 and about.role == "bias":
            return 1.0
        return (about.width or about.fan_in) / self.base_width

    def _depth(self, about: ParameterInfo) -> float:
        """Return the number of layers over the base number, for a tensor of a layer."""
        return about.layers / self.base_layers if self.base_layers is not None and _is_in_layer(about) else 1.0


def _is_in_layer(about: ParameterInfo) -> bool:
    return "layers" in about.path.split(".")


def _is_hidden(about: ParameterInfo) -> bool:
    """Return True for a matrix of a layer, and for a head that maps vectors of the stream's width to such vectors."""
    if about.role == "head":
        return about.fan_in == about.fan_out
    return _is_in_layer(about) and about.role not in TABLES


def _is_output(about: ParameterInfo) -> bool:
    return about.role == "head" and not _is_hidden(about)
