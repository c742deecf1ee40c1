"""Position components: one file a variant, and one line here that registers it."""

from collections.abc import Mapping

from paribus import Position, hookimpl, registered
from paribus_position.contextual import Contextual as cope
from paribus_position.disentangled import Disentangled as disentangled
from paribus_position.extrapolatable import Extrapolatable as xpos
from paribus_position.functional_interpolation import FunctionalInterpolation as fire
from paribus_position.kernelized import Kernelized as kerple
from paribus_position.learned import Learned as learned
from paribus_position.linear_biases import LinearBiases as alibi
from paribus_position.no_position import NoPosition as none
from paribus_position.relative_buckets import RelativeBuckets as t5
from paribus_position.rotary import Rotary as rope
from paribus_position.shaw import Shaw as shaw
from paribus_position.sinusoidal import Sinusoidal as sinusoidal
from paribus_position.transformer_xl import TransformerXL as transformer_xl


@hookimpl
def position() -> Mapping[str, type[Position]]:
    return registered(globals(), Position)
