"""Page of attention weights: its data, and that it opens offline."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.inference.attention_maps import AttentionMaps
from paribus.inference.attention_scores import AttentionScores
from paribus.report import attention_page as pages
from paribus.report import neuron_data as neurons
from paribus.report.attention_page import STEPS, attention_page, token_label

WEIGHTS = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(1)).softmax(-1)
MAPS = AttentionMaps("self", ("</script>", " a", "\n"), ("</script>", " a", "\n"), (None, WEIGHTS), second=2)


GENERATOR = torch.Generator().manual_seed(2)
SCORES = AttentionScores(
    torch.randn(2, 3, 5, generator=GENERATOR),
    torch.randn(2, 3, 5, generator=GENERATOR),
    scale=0.5,
    scores=torch.randn(2, 3, 3, generator=GENERATOR),
    sinks=torch.tensor([0.5, -1.0]),
    has_other_terms=True,
)
NEURONS = MAPS._replace(scores=(None, SCORES), reasons=("it has no weights", ""))


def data_of(page: str) -> Any:
    match = re.search(r'<script type="application/json" id="weights">(.*?)</script>', page, flags=re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def test_the_page_has_all_weights_and_what_is_shown_first() -> None:
    document = data_of(attention_page(MAPS, "a & b", head=1))
    assert (document["layer"], document["head"], document["second"]) == (1, 1, 2)
    assert document["layers"][0] is None
    assert torch.allclose(torch.tensor(document["layers"][1]) / STEPS, WEIGHTS, atol=6e-5)
    assert document["queries"] == document["keys"] == ["</script>", "·a", "↵"]


def test_pairs_have_filters_and_other_texts_none() -> None:
    assert [f'value="{name}"' in attention_page(MAPS, "") for name in ("AA", "AB", "BA", "BB")] == [True] * 4
    assert 'value="AB"' not in attention_page(MAPS._replace(second=None), "")


def test_the_page_opens_offline_and_no_token_is_markup() -> None:
    page = attention_page(MAPS, "<b>title")
    assert "<b>title" not in page
    assert not re.search(r"(src|href)=|https?://(?!www\\.w3\\.org)", page.replace("http://www.w3.org/2000/svg", ""))


def test_an_unknown_layer_is_refused() -> None:
    with raises_problem(SpecError, "out-of-range", "layer", "1"):
        attention_page(MAPS, "", layer=0)


def numbers(text: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype)


def test_the_page_has_queries_keys_and_scores_to_four_digits() -> None:
    document = data_of(attention_page(NEURONS, ""))
    assert document["scores"][0] is None
    layer = document["scores"][1]
    assert (layer["queries"], layer["keys"], layer["width"], layer["scale"]) == (3, 3, 5, 0.5)
    for name, vectors in (("q", SCORES.q), ("k", SCORES.k)):
        written = numbers(layer[name], torch.int16) * layer[f"{name}_step"]
        assert torch.allclose(written, vectors.flatten(), atol=5e-5 * float(vectors.abs().max()), rtol=0)
    assert torch.equal(numbers(layer["scores"], torch.float32), SCORES.scores.flatten())
    assert torch.equal(numbers(layer["others"], torch.float32), SCORES.other_terms.flatten())
    assert layer["sinks"] == [0.5, -1.0]
    assert torch.allclose(torch.tensor(layer["sink_weights"]), 1 - WEIGHTS.sum(-1), atol=1e-6)


def test_the_page_says_why_a_model_has_no_neuron_view() -> None:
    maps = MAPS._replace(scores=(None, None), reasons=("it has no weights", "its score is a sum"))
    page = attention_page(maps, "")
    assert "There is no neuron view of this model: its score is a sum." in page
    assert 'value="neurons"' not in page
    assert 'value="neurons"' not in attention_page(MAPS, "")  # without scores
    assert 'value="neurons"' in attention_page(NEURONS, "")


def test_vectors_that_do_not_fit_are_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = NEURONS._replace(layers=(WEIGHTS,) * 3, scores=(SCORES,) * 3, reasons=("",) * 3)
    monkeypatch.setattr(neurons, "MAX_BYTES", 600)
    document = data_of(attention_page(maps, "", layer=1))
    assert [layer is not None for layer in document["scores"]] == [True, True, False]
    assert "`--layer 2`" in document["reasons"][2]
    monkeypatch.setattr(neurons, "MAX_TOKENS", 2)
    layer = data_of(attention_page(maps, "", layer=2))["scores"][2]
    assert (layer["queries"], len(numbers(layer["scores"], torch.float32))) == (2, 2 * 2 * 2)


def test_a_long_text_is_cut_and_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "this page has the first" not in attention_page(MAPS, "")
    monkeypatch.setattr(pages, "MAX_WEIGHTS", 2 * 2 * 2)
    page = attention_page(MAPS, "")
    assert "this page has the first 2 of 3 queries and 2 of 3 keys" in page
    document = data_of(page)
    assert (len(document["queries"]), len(document["keys"])) == (2, 2)
    assert torch.allclose(torch.tensor(document["layers"][1]) / STEPS, WEIGHTS[:, :2, :2], atol=6e-5)


@pytest.mark.parametrize(("token", "label"), [("", "∅"), (" x", "·x"), ("a\nb", "a↵b")])
def test_white_space_of_tokens_is_visible(token: str, label: str) -> None:
    assert token_label(token) == label
