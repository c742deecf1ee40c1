"""Encoder-decoder topology."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paribus import Output, Stream, Topology, memory_of
from paribus_topology.decoder import Decoder
from paribus_topology.encoder_decoder import EncoderDecoder

SOURCE = torch.tensor([[8, 2, 6], [1, 1, 5]])
TARGET = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])


@pytest.fixture
def topology(build: Callable[[type[Topology]], Topology]) -> Topology:
    return build(EncoderDecoder)


def run_both(topology: Topology, source: Tensor, target: Tensor) -> tuple[Output, Output]:
    streams = {"encoder": Stream(source), "body": Stream(target)}
    encoded = topology.run(streams, "encoder")
    return encoded, topology.run(streams, "body", memory=memory_of(encoded))


def changed_positions(updated: Output, original: Output) -> list[list[bool]]:
    result: list[list[bool]] = ((updated.hidden - original.hidden).abs().amax(-1) > 1e-12).tolist()
    return result


def test_every_target_token_depends_on_the_whole_source(topology: Topology) -> None:
    encoded, decoded = run_both(topology, SOURCE, TARGET)
    for s in range(3):
        changed = SOURCE.clone()
        changed[1, s] = 7
        encoded_after, decoded_after = run_both(topology, changed, TARGET)
        assert changed_positions(encoded_after, encoded) == [[False] * 3, [True] * 3]
        assert changed_positions(decoded_after, decoded) == [[False] * 4, [True] * 4]


def test_source_and_target_share_one_table(topology: Topology) -> None:
    tables = [name for name, parameter in topology.named_parameters() if parameter.shape == (11, 4)]
    assert tables == ["embedding.tokens.weight"]
    table = topology.get_parameter("embedding.tokens.weight")
    _, decoded = run_both(topology, SOURCE, TARGET)
    (gradient,) = torch.autograd.grad(decoded.hidden.pow(3).sum(), table)
    used = sorted({*SOURCE.flatten().tolist(), *TARGET.flatten().tolist()})
    assert (gradient.abs().sum(-1) > 0).nonzero().flatten().tolist() == used


def test_decoder_tensor_names_match_a_decoder(topology: Topology, build: Callable[[type[Topology]], Topology]) -> None:
    assert build(Decoder).state_dict().keys() < topology.state_dict().keys()
    assert {name.partition(".")[0] for name, _ in topology.named_parameters()} == {"embedding", "body", "encoder"}


def test_declared_parts_match_the_modules(topology: Topology) -> None:
    body, encoder = EncoderDecoder.parts
    assert (body.path, body.causal, body.cross) == ("body", True, encoder.path)
    assert (encoder.path, encoder.causal, encoder.cross) == ("encoder", False, None)
    with pytest.raises(AssertionError, match="validated"):
        topology.run({"body": Stream(TARGET)}, "generator")


@pytest.mark.parametrize("part", ["body", "encoder"])
def test_the_decoder_needs_a_memory_and_the_encoder_takes_none(topology: Topology, part: str) -> None:
    streams = {"encoder": Stream(SOURCE), "body": Stream(TARGET)}
    memory = memory_of(topology.run(streams, "encoder")) if part == "encoder" else None
    with pytest.raises(AssertionError, match="memory"):
        topology.run(streams, part, memory=memory)
