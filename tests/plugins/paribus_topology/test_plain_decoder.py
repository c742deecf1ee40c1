"""Decoder of attention layers only."""

from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus import SpecError
from paribus.models.lightning_module import Model

TOKENS = torch.tensor([[30, 14, 41, 51, 92], [65, 35, 89, 79, 32]])


def assembled(*overrides: str) -> Model:
    spec = paribus.spec("lstm-lm-tiny", "dims.width=12", "dims.length=8", "dims.vocabulary=300", *overrides)
    return paribus.assemble(spec).double().eval()


def test_with_lstm_attention_it_matches_torch() -> None:
    model = assembled()
    peer = torch.nn.LSTM(12, 12, num_layers=2, batch_first=True).double()
    for layer in range(2):
        for actual, reference in (("reads", "ih"), ("repeats", "hh")):
            for kind in ("weight", "bias"):
                part = model.get_parameter(f"body.layers.{layer}.attention.directions.0.{actual}.{kind}")
                torch.nn.init.normal_(part, std=0.5)
                getattr(peer, f"{kind}_{reference}_l{layer}").data = part.data
    table = model.get_parameter("embedding.tokens.weight")
    scores, _ = model(TOKENS)
    torch.testing.assert_close(scores, peer(table[TOKENS])[0] @ table.T, atol=1e-12, rtol=0)


def test_dropout_applies_to_the_embedding_and_after_each_layer() -> None:
    model = assembled("dropout=0.5", "attention=identity", "dims.layers=3").train()
    torch.nn.init.ones_(model.get_parameter("embedding.tokens.weight"))
    hidden = model.hidden(TOKENS.repeat(500, 4))
    assert set(hidden.unique().tolist()) == {0, 16}  # values that were kept were doubled four times
    assert (hidden > 0).double().mean().item() == pytest.approx(1 / 16, rel=0.02)


@pytest.mark.parametrize("slot", ["norm=layernorm", "placement=pre", "feedforward=mlp"])
def test_unused_slots_are_rejected(slot: str) -> None:
    with raises_problem(SpecError, "unused-option", "plain-decoder", slot.partition("=")[0]):
        paribus.spec("lstm-lm-tiny", slot)


def test_an_embedding_norm_is_rejected() -> None:
    with raises_problem(SpecError, "does-not-fit", "norm", "plain-decoder"):
        assembled("embedding.normed=true")


@pytest.mark.parametrize("attention", ["mha", "gru", "linear"])
def test_every_causal_attention_works(attention: str) -> None:
    model: Any = assembled(f"attention={attention}")
    with torch.no_grad():
        full_output, _ = model(TOKENS)
        states = model.start(2)
        steps = [model(TOKENS[:, t : t + 1], states)[0] for t in range(5)]
    torch.testing.assert_close(torch.cat(steps, dim=1), full_output, atol=1e-12, rtol=0)
