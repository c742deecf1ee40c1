"""Page of attention weights: its data, and that it opens offline."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.inference.attention_maps import AttentionMaps
from paribus.report.attention_page import attention_page, token_label

WEIGHTS = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(1)).softmax(-1)
MAPS = AttentionMaps("self", ("</script>", " a", "\n"), ("</script>", " a", "\n"), (None, WEIGHTS), second=2)


def data_of(page: str) -> Any:
    match = re.search(r'<script type="application/json" id="weights">(.*?)</script>', page, flags=re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def test_the_page_has_all_weights_and_what_is_shown_first() -> None:
    document = data_of(attention_page(MAPS, "a & b", head=1))
    assert (document["layer"], document["head"], document["second"]) == (1, 1, 2)
    assert document["layers"][0] is None
    assert torch.allclose(torch.tensor(document["layers"][1]), WEIGHTS, atol=6e-5)
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


@pytest.mark.parametrize(("token", "label"), [("", "∅"), (" x", "·x"), ("a\nb", "a↵b")])
def test_white_space_of_tokens_is_visible(token: str, label: str) -> None:
    assert token_label(token) == label
