"""Norm components."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Norm, hookimpl, registered
from paribus_norm.dynamic_erf import DynamicErf as derf
from paribus_norm.dynamic_tanh import DynamicTanh as dyt
from paribus_norm.gated_norm import GatedNorm as gated
from paribus_norm.identity import Identity as none
from paribus_norm.layer_norm import LayerNorm as layernorm
from paribus_norm.root_mean_square_norm import RootMeanSquareNorm as rmsnorm
from paribus_norm.scale_norm import ScaleNorm as scalenorm


@hookimpl
def norm() -> Mapping[str, type[Norm]]:
    return registered(globals(), Norm)
