"""Decoder-only topology."""

from collections.abc import Callable

import pytest
import torch

from paribus import Memory, Stream, TokenLayout, Topology
from paribus_topology.decoder import Decoder
from paribus_topology.encoder import Encoder

TOKENS = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
Build = Callable[[type[Topology]], Topology]


def test_outputs_depend_on_the_past_only(build: Build) -> None:
    decoder = build(Decoder)
    original = decoder.run({"body": Stream(TOKENS)}, "body").hidden
    for t in range(4):
        changed = TOKENS.clone()
        changed[0, t] = 7
        has_changed = (decoder.run({"body": Stream(changed)}, "body").hidden - original).abs().amax(-1) > 1e-12
        assert has_changed.tolist() == [[row >= t for row in range(4)], [False] * 4]


@pytest.mark.parametrize("chunks", [[4], [1, 1, 1, 1], [2, 1, 1]])
def test_decoding_continues_from_its_state(build: Build, chunks: list[int]) -> None:
    decoder = build(Decoder)
    full_output = decoder.run({"body": Stream(TOKENS)}, "body").hidden
    states = decoder.start(batch=2, length=4)
    outputs = []
    for size in chunks:
        tokens = TOKENS[:, states.past : states.past + size]
        outputs.append(decoder.run({"body": Stream(tokens)}, "body", states=states).hidden)
    torch.testing.assert_close(torch.cat(outputs, dim=1), full_output, atol=1e-12, rtol=0)


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
