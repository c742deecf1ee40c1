"""Parity of `paribus.embed` with the hidden states of transformers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.hf_parity.cases import CASES, VOCABULARY
from tests.hf_parity.float64 import keep_float64
from torch import nn

import paribus

pytest.importorskip("transformers")

TEXTS = [[11, 20, 8], [30, 7, 9, 33, 12, 40, 8], [21], [9, 9, 31, 10]]


@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["albert", "bert", "gpt2", "llama", "modernbert", "t5", "xlnet"])
def test_embeddings_of_every_layer_match(
    family: str, randomise: Callable[[nn.Module], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_float64(monkeypatch)
    hf_model = randomise(CASES[family][0].hf_model)
    model = paribus.convert(hf_model)
    assert max(token for text in TEXTS for token in text) < VOCABULARY
    reads = hf_model.encoder if family == "t5" else hf_model
    expected = []
    with torch.no_grad():
        for text in TEXTS:
            states = reads(torch.tensor([text]), output_hidden_states=True).hidden_states
            expected.append([state.reshape(len(text), -1) for state in states])
    layers = len(expected[0]) - 1
    for layer in (*range(layers + 1), -1):
        embeddings = paribus.embed(model, TEXTS, layers=layer, pool="none", batch=3)
        assert embeddings.layers == ((layers if layer == -1 else layer),)
        for vectors, states in zip(embeddings.vectors, expected, strict=True):
            torch.testing.assert_close(vectors, states[layer], rtol=0, atol=1e-9)
