"""Attention maps in a report: the weights that the model has, cut to what fits, with a note of what is missing."""

from itertools import product
from typing import Any

import torch

from paribus.inference.attention_maps import AttentionMaps
from paribus.report.attention_charts import MAX_TOKENS, MAX_WEIGHTS, MEAN, STEPS, attention_figures, token_limit
from paribus.report.charts import Figure


def maps_of(layers: int, heads: int, tokens: int) -> AttentionMaps:
    weights = torch.rand(layers, heads, tokens, tokens).tril().softmax(-1)
    return AttentionMaps("self", tuple("abc"[index % 3] for index in range(tokens)), ("<b>",) * tokens, tuple(weights))


def rows_of(figure: Figure) -> list[dict[str, Any]]:
    (values,) = figure.chart.to_dict()["datasets"].values()
    rows: list[dict[str, Any]] = values
    return rows


def test_a_chart_has_the_weights_of_every_head_and_their_mean() -> None:
    maps = maps_of(layers=2, heads=3, tokens=5)
    (figure,) = attention_figures({"mqa": maps})
    rows = rows_of(figure)
    assert [(row["layer"], row["head"]) for row in rows] == list(product((0, 1), (MEAN, 0, 1, 2)))
    for row in rows:
        layer = maps.layers[row["layer"]]
        assert layer is not None
        expected = layer.mean(0) if row["head"] == MEAN else layer[row["head"]]
        assert torch.allclose(torch.tensor(row["weight"]) / STEPS, expected.flatten(), atol=0.5 / STEPS)


def test_the_numbers_of_a_chart_describe_each_map() -> None:
    weights = torch.zeros(1, 4, 4)
    weights[0, range(4), [0, 0, 1, 2]] = 1.0  # each query reads the key before it
    (figure,) = attention_figures({"previous": AttentionMaps("self", tuple("abcd"), tuple("abcd"), (None, weights))})
    assert figure.values[-1] == {"layer": 1, "head": 0, "maximum": 1.0, "distance": 0.75, "first": 0.5}
    assert "Layers without weights: 0." in figure.note


def test_maps_are_cut_to_what_fits_into_a_report() -> None:
    large = [maps_of(layers=12, heads=12, tokens=60)] * 5
    limit = token_limit(large)
    assert limit < MAX_TOKENS
    assert 5 * 12 * 13 * limit**2 <= MAX_WEIGHTS
    (figure,) = attention_figures({"mha": maps_of(layers=1, heads=1, tokens=60)})
    assert len(rows_of(figure)[0]["weight"]) == MAX_TOKENS**2
    assert f"Only the first {MAX_TOKENS} tokens are drawn." in figure.note
