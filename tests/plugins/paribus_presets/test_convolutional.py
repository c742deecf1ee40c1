"""The presets of convolutional systems have the sizes that their papers describe, counted by hand."""

import pytest

import paribus
from paribus.assembly.cost import count_parameters
from paribus.models.assemble import meta_model
from paribus.registry import installed

CONVS2S = {  # 20 layers of 512 on either side, kernels of 3, and 40,000 words
    "tables of both sides, and scores": 3 * 40_000 * 512,
    "positions of both sides": 2 * 1024 * 512,
    "convolutions to 2 D channels": 2 * 20 * (3 * 512 * 1024 + 1024),
    "W_d and b_d": 20 * (512 * 512 + 512),
}

BLOCK = 2 * 1600 * 800 + 3 * 800 * 800 + 2 * 800 + 1600 + 2 * (2 * 800) + 2 * 1600  # maps, biases and three layer norms
BYTENET = {  # 30 blocks of 1600 channels on either side, and 294 tokens: bytes, special tokens and sentinels
    "tables of both sides, and scores": 3 * 294 * 1600,
    "blocks of both sides": 2 * 30 * BLOCK,
    "the map of both outputs in each layer, and a norm before it": 30 * (2 * 1600 * 1600 + 1600 + 2 * 1600),
    "a norm after the last layer of both sides": 2 * 2 * 1600,
}

SIZES = {"convs2s": sum(CONVS2S.values()), "bytenet": sum(BYTENET.values())}


@pytest.mark.parametrize(("name", "count"), SIZES.items(), ids=SIZES)
def test_a_preset_has_the_size_that_its_paper_describes(name: str, count: int) -> None:
    assert count_parameters(meta_model(paribus.spec(name), installed()).children()) == count
