"""Decoder-only topology."""

from collections.abc import Callable

import pytest
import torch

from paribus import Memory, Stream, TokenLayout, Topology
from paribus_topology.decoder import Decoder
from paribus_topology.encoder import Encoder

TOKENS = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
Build = Callable[[type[Topology]], Topology]


def test_tensor_names_and_draws_match_an_encoder(build: Build) -> None:
    actual, reference = build(Decoder).state_dict(), build(Encoder).state_dict()
    assert actual.keys() == reference.keys()
    assert all(torch.equal(actual[name], reference[name]) for name in actual)


def test_captured_weights_come_from_every_layer(build: Build) -> None:
    decoder = build(Decoder)
    assert decoder.run({"body": Stream(TOKENS)}, "body").captured == ()
    assert len(decoder.run({"body": Stream(TOKENS)}, "body", capture=True).captured) == 2


def test_an_unknown_part_is_rejected(build: Build) -> None:
    with pytest.raises(AssertionError, match="validated"):
        build(Decoder).run({"body": Stream(TOKENS)}, "encoder")


def test_a_memory_is_rejected(build: Build) -> None:
    memory = Memory(torch.zeros(2, 3, 4), TokenLayout(torch.arange(3).unsqueeze(0)))
    with pytest.raises(AssertionError, match="memory"):
        build(Decoder).run({"body": Stream(TOKENS)}, "body", memory=memory)
