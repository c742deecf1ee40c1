"""HTML page of attention weights: lines between the tokens of a layer and a head, or a matrix. It opens offline."""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from paribus.errors import escape_unprintable
from paribus.report.html import GENERATOR_TAG

if TYPE_CHECKING:
    from paribus.inference.attention_maps import AttentionMaps

SIDES: Final = {
    "self": ("the query", "the tokens that it attends to"),
    "cross": ("the generated token", "the source tokens that it attends to"),
    "source": ("the query of the source", "the source tokens that it attends to"),
}
FILTERS: Final = (("AA", "A → A"), ("AB", "A → B"), ("BA", "B → A"), ("BB", "B → B"))
STYLE: Final = """
svg#view { width: 100%; max-width: 60rem; height: auto; }
.token { font-size: 13px; fill: var(--ink); cursor: default; }
.token:hover, .token:focus { font-weight: 600; outline: none; }
line.weight { stroke: var(--equivalent); stroke-width: 2.5; } rect.weight { fill: var(--equivalent); }
"""


def attention_page(maps: AttentionMaps, title: str, *, layer: int | None = None, head: int | None = None) -> str:
    """Return the page, which shows `layer` and `head` at first."""
    first_layer, _ = maps.map(layer, head)
    document = {
        "queries": [token_label(token) for token in maps.query_tokens],
        "keys": [token_label(token) for token in maps.key_tokens],
        "layers": [
            None
            if weights is None
            else [[[round(value, 4) for value in row] for row in rows] for rows in weights.tolist()]
            for weights in maps.layers
        ],
        "second": maps.second,
        "layer": first_layer,
        "head": head,
    }
    left, right = SIDES[maps.kind]
    filters = FILTERS if maps.second is not None else ()
    options = "".join(f'<option value="{value}">{escape(text)}</option>' for value, text in (("all", "all"), *filters))
    data = json.dumps(document).replace("<", "\\u003c")  # so that no token ends the element
    heading = escape(escape_unprintable(title))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'{GENERATOR_TAG}<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{heading}</title><style>{_file('page.css')}{STYLE}</style></head><body><h1>{heading}</h1>"
        f"<p>On the left, and in rows, is {left}; on the right, and in columns, are {right}. "
        "What is darker is a larger weight. Point at a token to see its weights alone.</p>"
        '<p class="controls"><label>view <select id="as"><option value="heads">lines</option>'
        '<option value="matrix">matrix</option></select></label> '
        f'<label>layer (0 to {len(maps.layers) - 1}) <select id="layer"></select></label>'
        ' <label>head <select id="head"></select></label> '
        f'<label>texts <select id="filter">{options}</select></label></p>'
        '<svg id="view" role="img" aria-label="attention weights"></svg>'
        f'<script type="application/json" id="weights">{data}</script><script>{_file("attention.js")}</script>'
        "</body></html>\n"
    )


def token_label(token: str) -> str:
    """Return a token with visible white space."""
    return escape_unprintable(token.replace("\n", "↵")).replace(" ", "·") or "∅"


def _rounded(value: Any) -> Any:
    return [_rounded(item) for item in value] if isinstance(value, list) else round(value, 4)


def _file(name: str) -> str:
    return resources.files("paribus.report").joinpath(name).read_text(encoding="utf-8")
