"""Attention weights of any layer and head, with the tokens of their rows and columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus.errors import DataError, SpecError
from paribus.models.lightning_module import Model

Assembled = Callable[..., Model]
TEXT, SOURCE = "The 3rd", "A paragraph"


def test_a_decoder_returns_its_self_attention(assembled: Assembled) -> None:
    model = assembled("gpt-tiny")
    assert model.text is not None
    maps = paribus.attend(model, TEXT)
    assert (maps.kind, maps.query_tokens, maps.key_tokens) == ("self", tuple(TEXT), tuple(TEXT))
    with torch.inference_mode():
        expected = model.eval().attention(torch.tensor([model.text.encode(TEXT)]))
    for weights, layer in zip(maps.layers, expected, strict=True):
        assert weights is not None
        torch.testing.assert_close(weights, layer["weights"][0], rtol=0, atol=0)
    place, mean = maps.map()
    assert place == 1
    torch.testing.assert_close(mean, expected[1]["weights"][0].mean(0), rtol=0, atol=0)
    place, one = maps.map(0, 2)
    assert place == 0
    torch.testing.assert_close(one, expected[0]["weights"][0, 2], rtol=0, atol=0)


@pytest.mark.few(1)
@pytest.mark.parametrize("preset", ["seq2seq-tiny", "rnnsearch-tiny", "luong-tiny"])
def test_rows_of_cross_attention_are_named_by_the_predicted_tokens(assembled: Assembled, preset: str) -> None:
    model = assembled(preset, "objective=span-corruption")
    maps = paribus.attend(model, TEXT, source=SOURCE)
    assert (maps.kind, maps.query_tokens, maps.key_tokens) == ("cross", (*TEXT, "<eos>"), (*SOURCE, "<eos>"))
    assert model.text is not None
    pad, eos = (model.text.vocabulary.specials[name] for name in ("pad", "eos"))
    body, source = torch.tensor([[pad, *model.text.encode(TEXT)]]), torch.tensor([[*model.text.encode(SOURCE), eos]])
    with torch.inference_mode():
        expected = model.eval().attention(body, source=source)
    for weights, layer in zip(maps.layers, expected, strict=True):
        assert weights is not None
        torch.testing.assert_close(weights, layer["cross"][0], rtol=0, atol=0)
    generated = paribus.generate(model, SOURCE)
    maps_of_generated = paribus.attend(model, source=SOURCE)
    assert maps_of_generated.query_tokens[:-1] == tuple(
        model.text.decode([token]) for token in generated.results[0][0].ids
    )


def test_an_encoder_decoder_returns_all_three_attentions(assembled: Assembled) -> None:
    model = assembled("seq2seq-tiny")
    sizes: dict[Any, Any] = {}
    for kind in ("self", "cross", "source"):
        maps = paribus.attend(model, TEXT, source=SOURCE, kind=kind)
        assert maps.layers[0] is not None
        sizes[kind] = tuple(maps.layers[0].shape[1:])
        assert sizes[kind] == (len(maps.query_tokens), len(maps.key_tokens))
        torch.testing.assert_close(maps.layers[0].sum(-1), torch.ones_like(maps.layers[0][..., 0]))
    assert sizes == {"self": (8, 8), "cross": (8, 12), "source": (12, 12)}
    assert paribus.attend(model, TEXT, source=SOURCE, kind="self").query_tokens == ("<pad>", *TEXT)


def test_layers_without_weights_are_skipped(assembled: Assembled) -> None:
    model = assembled("gpt-tiny", "attention=[mha, linear]", "position=none")
    maps = paribus.attend(model, TEXT)
    assert maps.layers[1] is None
    assert maps.map()[0] == 0
    with raises_problem(SpecError, "out-of-range", "layer", "0", "1"):
        maps.map(1)
    with raises_problem(SpecError, "out-of-range", "layer", "0", "7"):
        maps.map(7)
    with raises_problem(SpecError, "out-of-range", "head", "0, 1, 2, 3", "4"):
        maps.map(0, 4)


@pytest.mark.thorough
def test_an_invalid_selection_is_refused(assembled: Assembled) -> None:
    gpt, seq2seq = assembled("gpt-tiny"), assembled("seq2seq-tiny")
    cases: list[tuple[Model, str | None, dict[str, Any], tuple[str, ...]]] = [
        (gpt, TEXT, {"source": SOURCE}, ("invalid-source", "source", "none")),
        (gpt, None, {}, ("no-text", "text")),
        (gpt, TEXT, {"kind": "cross"}, ("missing-weights", "kind", "cross", "self")),
        (seq2seq, TEXT, {}, ("invalid-source", "source", "a text")),
        (seq2seq, TEXT, {"source": SOURCE, "kind": "all"}, ("missing-weights", "kind", "all")),
        (
            assembled("gpt-tiny", "attention=linear", "position=none"),
            TEXT,
            {},
            ("missing-weights", "attention", "Linear"),
        ),
        (
            assembled("rnnsearch-tiny", "objective=span-corruption"),
            TEXT,
            {"source": SOURCE, "kind": "self"},
            ("missing-weights", "kind", "cross, source"),
        ),
    ]
    for model, text, options, (code, *values) in cases:
        with raises_problem(SpecError, code, *values):
            paribus.attend(model, text, **options)
    with raises_problem(DataError, "empty-prompt", "text"):
        paribus.attend(gpt, "")
