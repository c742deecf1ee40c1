"""Attention maps of trained models as charts with a slider for the layer and one for the head."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

import altair as alt
import torch
from torch import Tensor

from paribus.analysis.formatting import clean
from paribus.inference.attention_maps import AttentionMaps
from paribus.report.charts import Figure, rounded

MAX_TOKENS: Final = 40  # tokens per axis of a map: more are too small to read
MAX_WEIGHTS: Final = 300_000  # weights of all maps of a report, which limits its size
MEAN: Final = -1  # number of the head that stands for the mean of all heads
STEPS: Final = 1000  # a weight is stored as a multiple of 1 / STEPS
MIN_VERTICAL_LENGTH: Final = 3  # characters from which on token labels are vertical
MAP_COLOR: Final = "10, 132, 181"
AXES: Final = {
    "self": ("key", "query"),
    "cross": ("source token", "generated token"),
    "source": ("key of the source", "query of the source"),
}


@final
class HeadMap(NamedTuple):
    """Attention weights (T, S) of one head, or the mean of all heads of a layer."""

    layer: int
    head: int  # MEAN for the mean
    weights: Tensor

    def summary(self) -> dict[str, Any]:
        """Return the largest weight, the mean distance, and the mean weight of the first token."""
        queries, keys = (torch.arange(size, dtype=torch.float32) for size in self.weights.shape)
        distances = (queries[:, None] - keys).abs()
        return {
            "layer": self.layer,
            "head": "mean" if self.head == MEAN else self.head,
            "maximum": rounded(float(self.weights.max())),
            "distance": rounded(float((self.weights.abs() * distances).sum(1).mean())),
            "first": rounded(float(self.weights[:, 0].mean())),
        }

    def row(self, queries: int, keys: int) -> dict[str, Any]:
        """Return the weights of the first queries and keys as one row of data, rounded to multiples of 1 / STEPS."""
        steps = (self.weights[:queries, :keys] * STEPS).round().flatten().tolist()
        return {"layer": self.layer, "head": self.head, "weight": [int(step) for step in steps]}


def attention_figures(maps: Mapping[str, AttentionMaps]) -> Iterator[Figure]:
    """Yield a heatmap of the attention weights of each variant; the sliders of all of them move together."""
    limit = token_limit(maps.values())
    for index, (variant, variant_maps) in enumerate(maps.items()):
        yield _figure(variant, variant_maps, limit, f"attention-{index}")


def token_limit(maps: Iterable[AttentionMaps]) -> int:
    """Return the maximum number of queries and keys of a map, so that all maps have at most `MAX_WEIGHTS` weights."""
    count = sum(len(weights) + 1 for variant_maps in maps for weights in variant_maps.layers if weights is not None)
    return max(1, min(MAX_TOKENS, math.isqrt(MAX_WEIGHTS // max(count, 1))))


def _figure(variant: str, maps: AttentionMaps, limit: int, name: str) -> Figure:
    title, (key, query) = f"Attention of {clean(variant)}", AXES[maps.kind]
    heads = list(_head_maps(maps))
    return Figure(
        name=name,
        title=title,
        description=f"{title}: the weight of each {key} for each {query}.",
        chart=_heatmap(maps, heads, limit),
        values=[head.summary() for head in heads],
        columns={
            "layer": "layer",
            "head": "head",
            "maximum": "largest weight",
            "distance": "mean distance",
            "first": "mean weight of the first token",
        },
        note=_note(maps, limit),
        page_note="Layers and heads count from 0.",
        print_note=f"Layer {max(head.layer for head in heads)} of {len(maps.layers)}, from 0; mean of its heads.",
    )


def _head_maps(maps: AttentionMaps) -> Iterator[HeadMap]:
    for layer, weights in enumerate(maps.layers):
        if weights is not None:
            yield HeadMap(layer, MEAN, weights.float().mean(0))
            yield from (HeadMap(layer, head, map_) for head, map_ in enumerate(weights.float()))


def _note(maps: AttentionMaps, limit: int) -> str:
    key, query = AXES[maps.kind]
    lines = [f"A row is a {query}, a column a {key}."]
    if limit < max(len(maps.query_tokens), len(maps.key_tokens)):
        lines.append(f"Only the first {limit} tokens are drawn.")
    if missing_layers := [str(layer) for layer, weights in enumerate(maps.layers) if weights is None]:
        lines.append(f"Layers without weights: {', '.join(missing_layers)}.")
    return " ".join(lines)


def _heatmap(maps: AttentionMaps, heads: Sequence[HeadMap], limit: int) -> alt.Chart:
    """Return a chart of the map that the sliders select. Each row of its data is the whole map of one head."""
    queries, keys = maps.query_tokens[:limit], maps.key_tokens[:limit]
    rows = [head.row(len(queries), len(keys)) for head in heads]
    layers = [head.layer for head in heads]
    layer = alt.param(name="layer", value=max(layers), bind=_slider("layer ", min(layers), max(layers)))
    last_head = max(head.head for head in heads)
    head = alt.param(name="head", value=MEAN, bind=_slider(f"head ({MEAN}: mean) ", MEAN, last_head))
    axis: dict[str, Any] = {"labelOverlap": True, "labelLimit": 80, "ticks": False, "domain": False, "grid": False}
    angle = 0 if max(map(len, keys), default=0) < MIN_VERTICAL_LENGTH else -90
    key, query = AXES[maps.kind]
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_rect()
        .add_params(layer, head)
        .transform_filter("datum.layer == layer && datum.head == head")
        .transform_flatten(["weight"])
        .transform_window(number="row_number()")
        .transform_calculate(
            key=f"(datum.number - 1) % {len(keys)}",
            query=f"floor((datum.number - 1) / {len(keys)})",
            share=f"datum.weight / {STEPS}",
            key_token=f"{_labels(keys)}[(datum.number - 1) % {len(keys)}]",
            query_token=f"{_labels(queries)}[floor((datum.number - 1) / {len(keys)})]",
        )
        .encode(
            x=alt.X(
                "key:O",
                title=key,
                axis=alt.Axis(labelExpr=f"{_labels(keys)}[datum.value]", labelAngle=angle, orient="top", **axis),
            ),
            y=alt.Y("query:O", title=query, axis=alt.Axis(labelExpr=f"{_labels(queries)}[datum.value]", **axis)),
            color=alt.Color(
                "share:Q",
                title="weight",
                scale=alt.Scale(type="sqrt", range=[f"rgba({MAP_COLOR}, 0)", f"rgba({MAP_COLOR}, 1)"]),
                legend=alt.Legend(orient="bottom", title="weight", gradientLength=160),
            ),
            tooltip=[
                alt.Tooltip("query_token:N", title=query),
                alt.Tooltip("key_token:N", title=key),
                alt.Tooltip("share:Q", title="weight", format=".3f"),
            ],
        )
        .properties(width="container", height=len(queries) * max(10, min(18, 420 // len(queries))))
    )
    return chart


def _slider(name: str, low: int, high: int) -> alt.BindRange:
    return alt.BindRange(input="range", name=name, min=low, max=high, step=1)


def _labels(tokens: Sequence[str]) -> str:
    """Return tokens as an array of a Vega expression, with visible white space."""
    return json.dumps([clean(token.replace("\n", "↵")).replace(" ", "·") or "∅" for token in tokens])
