"""HTML page of attention weights: lines between tokens, a matrix, or the neurons of a head. It opens offline."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from importlib import resources
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from paribus.errors import escape_unprintable
from paribus.report.html import generator_tag
from paribus.report.neuron_data import neuron_data

if TYPE_CHECKING:
    from torch import Tensor

    from paribus.inference.attention_maps import AttentionMaps

MAX_TOKENS: Final = 128  # of an axis
MAX_WEIGHTS: Final = 3_000_000  # of all heads, which limits the size of the page
MAX_TITLE: Final = 160  # characters
STEPS: Final = 10_000  # a weight is stored as a multiple of 1 / STEPS
SIDES: Final = {
    "self": ("the query", "the tokens that it attends to"),
    "cross": ("the generated token", "the source tokens that it attends to"),
    "source": ("the query of the source", "the source tokens that it attends to"),
}
VIEWS: Final = {"heads": "lines", "matrix": "matrix", "neurons": "neurons"}
FILTERS: Final = {"AA": "A → A", "AB": "A → B", "BA": "B → A", "BB": "B → B"}
STYLE: Final = """
.controls label[hidden] { display: none; } .view { overflow: auto; max-height: 85vh; } svg#view { display: block; }
#readout { min-height: 1.5em; margin: .4rem 0; font-variant-numeric: tabular-nums; }
.token, .number, .heading { font-size: 13px; fill: var(--ink); cursor: default; } .heading { fill: var(--soft); }
.number { font-variant-numeric: tabular-nums; } .dense .token { font-size: 11px; }
.token:hover, .token:focus { font-weight: 600; outline: none; }
line.weight { stroke: var(--equivalent); stroke-width: 2.5; } rect.weight, .plus { fill: var(--equivalent); }
line.minus { stroke: var(--worse); } rect.minus { fill: var(--worse); }
path.word { stroke: var(--soft); stroke-width: 2; fill: none; } .ground { fill: var(--card); }
"""


def attention_page(maps: AttentionMaps, title: str, *, layer: int | None = None, head: int | None = None) -> str:
    """Return the page, which shows `layer` and `head` at first, and the neurons of layers whose scores are known."""
    first_layer, _ = maps.map(layer, head)
    queries, keys = _size(maps)
    document = {
        "queries": [token_label(token) for token in maps.query_tokens[:queries]],
        "keys": [token_label(token) for token in maps.key_tokens[:keys]],
        "query_words": maps.query_words[:queries],
        "key_words": maps.key_words[:keys],
        "layers": [None if weights is None else _steps(weights[:, :queries, :keys]) for weights in maps.layers],
        "second": maps.second,
        "layer": first_layer,
        "head": head,
        **neuron_data(maps, first_layer, queries, keys),
    }
    has_neurons = any(document["scores"])
    data = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")  # so that no token ends the element
    heading = escape(escape_unprintable(title if len(title) <= MAX_TITLE else f"{title[: MAX_TITLE - 1]}…"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'{generator_tag("attend")}<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{heading}</title><style>{_file('page.css')}{STYLE}</style></head><body><h1>{heading}</h1>"
        f"<p>{escape(' '.join(_sentences(maps, queries, keys, document['reasons'], has_neurons)))}</p>"
        f'<p class="controls">{_controls(maps, has_neurons)}</p><p id="readout" class="small" aria-live="polite"></p>'
        '<div class="view"><svg id="view" role="img" aria-label="attention weights"></svg></div>'
        f'<script type="application/json" id="weights">{data}</script>'
        f"<script>{_file('attention.js')}{_file('neurons.js')}</script></body></html>\n"
    )


def _size(maps: AttentionMaps) -> tuple[int, int]:
    """Return the numbers of queries and keys of the page, so that it has at most `MAX_WEIGHTS` weights."""
    heads = sum(len(weights) for weights in maps.layers if weights is not None)
    limit = max(1, min(MAX_TOKENS, math.isqrt(MAX_WEIGHTS // heads)))
    return min(limit, len(maps.query_tokens)), min(limit, len(maps.key_tokens))


def _steps(weights: Tensor) -> Any:
    return (weights.double() * STEPS).round().int().tolist()


def _sentences(maps: AttentionMaps, queries: int, keys: int, reasons: Sequence[str], has_neurons: bool) -> list[str]:
    left, right = SIDES[maps.kind]
    sentences = [
        f"On the left, and in rows, is {left}; on the right, and in columns, are {right}.",
        "A stronger colour is a larger weight. Point at a token to see its weights alone.",
    ]
    if any(
        one is not None and one == other
        for words in (maps.query_words, maps.key_words)
        for one, other in pairwise(words)
    ):
        sentences.append("A bracket joins the tokens of one word, as the tokenizer splits words.")
    total = len(maps.query_tokens), len(maps.key_tokens)
    if (queries, keys) != total:
        sentences.append(
            f"For its size, this page has the first {queries} of {total[0]} queries and {keys} of {total[1]} keys; "
            "paribus attend --json and paribus.attend have all."
        )
    if has_neurons:
        sentences.append(
            "Neurons are the channels of a query q and of each key k, as they enter the score: "
            "blue is positive, red is negative, and the strongest colour of a column is its largest number."
        )
    elif reasons:
        whys = dict.fromkeys(
            reason for reason, weights in zip(reasons, maps.layers, strict=True) if weights is not None
        )
        sentences.append(f"There is no neuron view of this model: {'; '.join(whys)}.")
    return sentences


def _controls(maps: AttentionMaps, has_neurons: bool) -> str:
    views = {name: label for name, label in VIEWS.items() if name != "neurons" or has_neurons}
    filters = {"all": "all", **(FILTERS if maps.second is not None else {})}
    menus: tuple[tuple[str, str, dict[str, str]], ...] = (
        ("view", "as", views),
        (f"layer (0 to {len(maps.layers) - 1})", "layer", {}),
        ("head", "head", {}),
        ("query", "query", {}),
        ("texts", "filter", filters),
    )
    return " ".join(
        f'<label>{label} <select id="{name}">'
        + "".join(f'<option value="{value}">{escape(text)}</option>' for value, text in options.items())
        + "</select></label>"
        for label, name, options in menus
    )


def token_label(token: str) -> str:
    """Return a token with visible white space."""
    return escape_unprintable(token.replace("\n", "↵")).replace(" ", "·") or "∅"


def _file(name: str) -> str:
    return resources.files("paribus.report").joinpath(name).read_text(encoding="utf-8")
