"""Topology components: one file a variant, and one line here that registers it."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Topology, hookimpl, registered
from paribus_topology.bidirectional_decoder import BidirectionalDecoder as bidirectional_decoder
from paribus_topology.convolutional_encoder_decoder import ConvolutionalEncoderDecoder as convolutional_encoder_decoder
from paribus_topology.decoder import Decoder as decoder
from paribus_topology.deep_recurrent_encoder_decoder import (
    DeepRecurrentEncoderDecoder as deep_recurrent_encoder_decoder,
)
from paribus_topology.encoder import Encoder as encoder
from paribus_topology.encoder_decoder import EncoderDecoder as encoder_decoder
from paribus_topology.generator_discriminator import GeneratorDiscriminator as generator_discriminator
from paribus_topology.plain_decoder import PlainDecoder as plain_decoder
from paribus_topology.plain_encoder import PlainEncoder as plain_encoder
from paribus_topology.recurrent_encoder_decoder import RecurrentEncoderDecoder as recurrent_encoder_decoder
from paribus_topology.scalar_mix import ScalarMix as scalar_mix
from paribus_topology.two_stream import TwoStream as two_stream


@hookimpl
def topology() -> Mapping[str, type[Topology]]:
    return registered(globals(), Topology)
