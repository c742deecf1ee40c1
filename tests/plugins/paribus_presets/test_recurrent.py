"""The presets of recurrent systems have the sizes that their papers describe, counted by hand."""

import pytest

import paribus
from paribus.assembly.cost import parameters
from paribus.registry import installed
from paribus.train.assemble import shapes_of

LSTM = 4 * (1024 * 1024 + 1024 * 1024 + 2 * 1024)  # four gates, with the two biases of torch


@pytest.mark.parametrize(("name", "count"), [("lstm-lm", 32_768 * 1024 + 32_768 + 2 * LSTM)])
def test_a_preset_has_the_size_that_its_paper_describes(name: str, count: int) -> None:
    assert parameters(shapes_of(paribus.spec(name), installed()).children()) == count
