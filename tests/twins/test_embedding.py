"""What a layer makes of texts, against the hidden states of the `transformers` library."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.twins.cases import CASES, VOCABULARY
from tests.twins.double import keep_double
from torch import nn

import paribus

pytest.importorskip("transformers")

TEXTS = [[11, 20, 8], [30, 7, 9, 33, 12, 40, 8], [21], [9, 9, 31, 10]]


@pytest.mark.parametrize("family", ["albert", "bert", "gpt2", "llama", "modernbert", "t5", "xlnet"])
def test_every_layer_of_ragged_texts_is_the_twins(
    family: str, shake: Callable[[nn.Module], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_double(monkeypatch)
    theirs = shake(CASES[family][0].made)
    ours = paribus.convert(theirs)
    assert max(token for text in TEXTS for token in text) < VOCABULARY
    reads = theirs.encoder if family == "t5" else theirs
    alone = []
    with torch.no_grad():
        for text in TEXTS:
            states = reads(torch.tensor([text]), output_hidden_states=True).hidden_states
            alone.append([state.reshape(len(text), -1) for state in states])
    layers = len(alone[0]) - 1
    for layer in (*range(layers + 1), -1):
        found = paribus.embed(ours, TEXTS, layer=layer, pool="none", batch=3)
        assert found.layer == (layers if layer == -1 else layer)
        for vectors, states in zip(found.vectors, alone, strict=True):
            torch.testing.assert_close(vectors, states[layer], rtol=0, atol=1e-9)
