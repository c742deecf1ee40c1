"""Data of the neuron view of the page of attention weights: queries, keys and scores, as base64 of their bytes."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch import Tensor

    from paribus.inference.attention_maps import AttentionMaps
    from paribus.inference.attention_scores import AttentionScores

MAX_TOKENS: Final = 64  # whose vectors the page has
MAX_BYTES: Final = 8_000_000  # of all vectors and scores
LARGEST: Final = 32_767  # vectors are 16-bit integers


def neuron_data(maps: AttentionMaps, shown: int, queries: int, keys: int) -> dict[str, Any]:
    """Return `scores` and `reasons` of each layer: those of the layer `shown`, and then of the first that fit."""
    scores: list[dict[str, Any] | None] = [None] * len(maps.scores)
    reasons = list(maps.reasons)
    left = MAX_BYTES
    size = min(queries, MAX_TOKENS), min(keys, MAX_TOKENS)
    for index in sorted(range(len(scores)), key=lambda index: (index != shown, index)):
        layer, weights = maps.scores[index], maps.layers[index]
        if layer is None or weights is None:
            continue
        heads, width = len(layer.q), layer.q.shape[-1]
        left -= heads * (2 * width * sum(size) + 4 * (1 + layer.has_other_terms) * size[0] * size[1])
        if left < 0 and index != shown:
            reasons[index] = f"it is left out for the size of this page, and `--layer {index}` writes one with it"
        else:
            scores[index] = _layer(layer, weights, *size)
    return {"scores": scores, "reasons": reasons}


def _layer(layer: AttentionScores, weights: Tensor, queries: int, keys: int) -> dict[str, Any]:
    q, k = layer.q[:, :queries], layer.k[:, :keys]
    others = layer.other_terms[:, :queries, :keys] if layer.has_other_terms else None
    document: dict[str, Any] = {
        "queries": queries,
        "keys": keys,
        "width": q.shape[-1],
        "scale": layer.scale,
        "softmax": layer.is_softmax,
        "scores": _floats(layer.scores[:, :queries, :keys]),
        "others": None if others is None else _floats(others),
        "sinks": None,
    }
    for name, vectors in (("q", q), ("k", k)):
        step = float(vectors.abs().max()) / LARGEST or 1.0
        document |= {name: _integers(vectors.double() / step), f"{name}_step": step}
    if layer.sinks is not None:
        missing = 1 - weights[:, :queries].double().sum(-1)
        document |= {"sinks": layer.sinks.tolist(), "sink_weights": missing.tolist()}
    return document


def _floats(values: Tensor) -> str:
    return base64.b64encode(values.float().cpu().contiguous().numpy().astype("<f4").tobytes()).decode()


def _integers(values: Tensor) -> str:
    return base64.b64encode(values.round().cpu().contiguous().numpy().astype("<i2").tobytes()).decode()
