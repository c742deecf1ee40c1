"""Encoder-only topology."""

from collections.abc import Callable

import pytest
import torch

from paribus import Memory, Stream, TokenLayout, Topology
from paribus_topology.encoder import Encoder

TOKENS = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])


@pytest.fixture
def encoder(build: Callable[[type[Topology]], Topology]) -> Topology:
    return build(Encoder)


def test_outputs_depend_on_the_whole_sequence(encoder: Topology) -> None:
    original = encoder.run({"body": Stream(TOKENS)}, "body").hidden
    for t in range(4):
        changed = TOKENS.clone()
        changed[0, t] = 7
        has_changed = (encoder.run({"body": Stream(changed)}, "body").hidden - original).abs().amax(-1) > 1e-12
        assert has_changed.tolist() == [[True] * 4, [False] * 4]


def test_matches_embedding_and_stack(encoder: Encoder) -> None:
    positions = torch.tensor([[0, 1, 0, 1], [5, 6, 7, 8]])
    output = encoder.run({"body": Stream(TOKENS, positions=positions)}, "body")
    x = encoder.get_parameter("embedding.tokens.weight")[TOKENS] + positions.unsqueeze(-1) * torch.arange(4)
    torch.testing.assert_close(output.hidden, encoder.body(x, TokenLayout(positions)).hidden)
    assert output.layout.positions is positions


def test_tensors_are_in_embedding_and_body(encoder: Topology) -> None:
    assert {name.partition(".")[0] for name, _ in encoder.named_parameters()} == {"embedding", "body"}
    assert [part.path for part in Encoder.parts] == ["body"]


def test_an_unknown_part_is_rejected(encoder: Topology) -> None:
    with pytest.raises(AssertionError, match="validated"):
        encoder.run({"body": Stream(TOKENS)}, "encoder")


def test_a_memory_is_rejected(encoder: Topology) -> None:
    memory = Memory(torch.zeros(2, 3, 4), TokenLayout(torch.arange(3).unsqueeze(0)))
    with pytest.raises(AssertionError, match="memory"):
        encoder.run({"body": Stream(TOKENS)}, "body", memory=memory)
