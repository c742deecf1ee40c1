"""Attention weights of a model."""

from collections.abc import Callable
from functools import partial

import pytest
import torch

from paribus.models.lightning_module import Model

Assemble = Callable[..., Model]
Shake = Callable[[Model], Model]

TINY = ("gpt-tiny", "encoder-tiny", "seq2seq-tiny", "bert-tiny")
same = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


@pytest.mark.parametrize("preset", TINY)
def test_attention_weights_are_returned_per_layer(preset: str, assemble: Assemble, shake: Shake) -> None:
    model, tokens = shake(assemble(preset)), torch.arange(15, 25).view(2, 5)
    source = torch.arange(15, 21).expand(2, 6) if preset == "seq2seq-tiny" else None
    hidden_states = model.hidden(tokens, source=source)
    maps = model.attention(tokens, source=source)
    assert [{name: weights.shape for name, weights in layer.items()} for layer in maps] == [
        {"weights": (2, 4, 5, 5), **({"cross": (2, 4, 5, 6)} if source is not None else {})}
    ] * 2
    for layer in maps:
        for weights in layer.values():
            same(weights.sum(-1), torch.ones(2, 4, 5, dtype=torch.float64))
    same(model.hidden(tokens, source=source), hidden_states)
    if source is not None:
        assert [layer["weights"].shape for layer in model.attention(source, part="encoder")] == [(2, 4, 6, 6)] * 2


def test_attention_weights_of_a_decoding_step_equal_those_of_one_pass(assemble: Assemble, shake: Shake) -> None:
    model, tokens = shake(assemble("gpt-tiny")), torch.arange(15, 25).view(2, 5)
    whole, states = model.attention(tokens), model.start(2)
    model(tokens[:, :4], states)
    for step, layer in zip(model.attention(tokens[:, 4:], states), whole, strict=True):
        same(step["weights"], layer["weights"][:, :, 4:])


def test_unavailable_weights_are_rejected(assemble: Assemble) -> None:
    tokens = torch.arange(15, 25).view(2, 5)
    with pytest.raises(ValueError, match="`weights`, got Linear"):
        assemble("gpt-tiny", "attention=linear").attention(tokens)
    mixed = assemble("gpt-tiny", "attention=[linear, mha]").attention(tokens)
    assert [list(layer) for layer in mixed] == [[], ["weights"]]
    with pytest.raises(ValueError, match="unknown stack `encoder`; valid: body"):
        assemble("gpt-tiny").attention(tokens, part="encoder")
