"""Attention components: one file a variant, and one line here that registers it."""

from collections.abc import Mapping

from paribus import Attention, hookimpl, registered
from paribus_attention.additive import Additive as additive
from paribus_attention.bilinear import Bilinear as bilinear
from paribus_attention.block_sparse import BlockSparse as block_sparse
from paribus_attention.bottleneck_convolution import BottleneckConvolution as bottleneck_conv
from paribus_attention.convolution import Convolution as conv
from paribus_attention.delta import Delta as delta
from paribus_attention.delta_product import DeltaProduct as delta_product
from paribus_attention.differential import Differential as differential
from paribus_attention.dilated import Dilated as dilated
from paribus_attention.dilated_convolution import DilatedConvolution as dilated_conv
from paribus_attention.dot import Dot as dot
from paribus_attention.fixed import Fixed as fixed
from paribus_attention.fourier import Fourier as fourier
from paribus_attention.full_convolution import FullConvolution as full_conv
from paribus_attention.gated_delta import GatedDelta as gated_delta
from paribus_attention.gated_linear import GatedLinear as gated_linear
from paribus_attention.gated_recurrent_unit import GatedRecurrentUnit as gru
from paribus_attention.grouped_query import GroupedQuery as gqa
from paribus_attention.identity import Identity as identity
from paribus_attention.kimi_delta import KimiDelta as kimi_delta
from paribus_attention.linear import Linear as linear
from paribus_attention.linformer import Linformer as linformer
from paribus_attention.local_monotonic import LocalMonotonic as local_m
from paribus_attention.local_predictive import LocalPredictive as local_p
from paribus_attention.long_short_term_memory import LongShortTermMemory as lstm
from paribus_attention.mamba2 import Mamba2 as mamba2
from paribus_attention.mixture_of_block_attention import MixtureOfBlockAttention as moba
from paribus_attention.multi_head import MultiHead as mha
from paribus_attention.multi_head_latent import MultiHeadLatent as mla
from paribus_attention.multi_layer_perceptron_score import MultiLayerPerceptronScore as mlp_score
from paribus_attention.multi_query import MultiQuery as mqa
from paribus_attention.multi_step import MultiStep as multi_step
from paribus_attention.quasi_recurrent_neural_network import QuasiRecurrentNeuralNetwork as qrnn
from paribus_attention.rectified_linear_unit import RectifiedLinearUnit as relu
from paribus_attention.restricted import Restricted as restricted
from paribus_attention.retention import Retention as retention
from paribus_attention.same_position import SamePosition as same_position
from paribus_attention.sigmoid import Sigmoid as sigmoid
from paribus_attention.softpick import Softpick as softpick
from paribus_attention.sparsemax import Sparsemax as sparsemax
from paribus_attention.stick_breaking import StickBreaking as stick_breaking
from paribus_attention.talking_heads import TalkingHeads as talking_heads
from paribus_attention.uniform import Uniform as uniform


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return registered(globals(), Attention)
