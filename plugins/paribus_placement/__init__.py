"""Norm placement components: the order of norms, sublayers and residual connections."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Placement, hookimpl, registered
from paribus_placement.attention_residual import AttentionResidual as attention_residual
from paribus_placement.canon import Canon as canon
from paribus_placement.deep_norm import DeepNorm as deepnorm
from paribus_placement.dense_former import DenseFormer as denseformer
from paribus_placement.embedding_residual import EmbeddingResidual as x0
from paribus_placement.hyper_connections import HyperConnections as hyper
from paribus_placement.layer_scale import LayerScale as layerscale
from paribus_placement.multiway_dense import MultiwayDense as mudd
from paribus_placement.normalised_transformer import NormalisedTransformer as ngpt
from paribus_placement.parallel import Parallel as parallel
from paribus_placement.peripheral_norm import PeripheralNorm as peri
from paribus_placement.post_norm import PostNorm as post
from paribus_placement.pre_norm import PreNorm as pre
from paribus_placement.re_zero import ReZero as rezero
from paribus_placement.sandwich_norm import SandwichNorm as sandwich
from paribus_placement.scaled_residual import ScaledResidual as scaled_residual
from paribus_placement.u_net import UNet as u_net


@hookimpl
def placement() -> Mapping[str, type[Placement]]:
    return registered(globals(), Placement)
