"""The presets of recurrent systems have the sizes that their papers describe, counted by hand."""

import pytest

import paribus
from paribus.assembly.cost import count_parameters
from paribus.models.assemble import meta_model
from paribus.registry import installed

LSTM = 4 * (1024 * 1024 + 1024 * 1024 + 2 * 1024)  # four gates, with the two biases of torch
RNNSEARCH = {  # K = 1000, E = 620, R = 500, and 30,000 words on either side, after the appendix of the paper
    "tables of both sides, and W_o": 2 * 30_000 * 620 + 500 * 30_000,
    "W, U and b of three gates, both ways": 2 * 3 * (620 * 1000 + 1000 * 1000 + 1000),
    "W_s": 1000 * 1000 + 1000,
    "W_a, U_a and v_a": 1000 * 1000 + 2000 * 1000 + 1000,
    "W, U, C and b of three gates": 3 * (620 * 1000 + 1000 * 1000 + 2000 * 1000 + 1000),
    "U_o, V_o, C_o and b": 2 * 500 * (1000 + 620 + 2000 + 1),
}

LUONG = {  # four layers of 1000, and 50,000 words on either side
    "tables of both sides, and W_s": 3 * 50_000 * 1000,
    "the encoder, a bias for each gate": 4 * 4 * (2 * 1000 * 1000 + 1000),
    "the decoder, whose first layer is fed": 4 * 4 * (2 * 1000 * 1000 + 1000) + 4 * 1000 * 1000,
    "W_a": 1000 * 1000,
    "W_c and b": 1000 * 2000 + 1000,
}


GNMT = {  # eight layers of 1024 on either side, 32,768 subwords, and a context of 1024 for each layer of the decoder
    "one table, and the softmax": 2 * 32_768 * 1024,
    "the encoder's first layer, both ways": 2 * 4 * (2 * 1024 * 1024 + 1024),
    "its second layer, which reads both": 4 * (3 * 1024 * 1024 + 1024),
    "its other layers": 6 * 4 * (2 * 1024 * 1024 + 1024),
    "W_a, U_a and v_a": 2 * 1024 * 1024 + 1024,
    "the decoder": 8 * 4 * (3 * 1024 * 1024 + 1024),
}
ELMO = {  # 32,768 subwords, and two LSTMs of 512 units in each direction
    "the table, which also scores, and a bias": 32_768 * 512 + 32_768,
    "two layers, both ways": 2 * 2 * 4 * (512 * 512 + 512 * 512 + 2 * 512),
}


SIZES = {
    "elmo": sum(ELMO.values()),
    "gnmt": sum(GNMT.values()),
    "lstm-lm": 32_768 * 1024 + 32_768 + 2 * LSTM,
    "rnnsearch": sum(RNNSEARCH.values()),
    "luong": sum(LUONG.values()),
}


@pytest.mark.parametrize(("name", "count"), SIZES.items(), ids=SIZES)
def test_a_preset_has_the_size_that_its_paper_describes(name: str, count: int) -> None:
    assert count_parameters(meta_model(paribus.spec(name), installed()).children()) == count
