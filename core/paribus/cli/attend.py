"""`paribus attend`: attention weights of a text, as a heatmap in the terminal."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from paribus.cli.console import (
    Session,
    load_named_model,
    out,
    out_json,
    refuse_other_file,
    store_option,
    terminal_columns,
)
from paribus.errors import EXIT_OK, escape_unprintable

if TYPE_CHECKING:
    from paribus.inference.attention_maps import AttentionMaps

_AXES = {
    "self": "rows are queries, columns are keys",
    "cross": "rows are generated tokens, columns are source tokens",
    "source": "rows are queries of the source, columns are keys of the source",
}

SHADES: Final = " ░▒▓█"
PLAIN: Final = " .:*#"  # for a terminal without block characters
_WIDEST: Final = 80  # columns, where the output is not a terminal
_ROOM: Final = 12  # characters of a row label
_HEIGHT: Final = 8  # characters of a column label, which is written vertically
_CELL: Final = 2  # characters of a cell: a character is twice as high as wide


@click.command("attend")
@click.argument("model")
@click.argument("text", required=False)
@click.argument("pair", required=False)
@click.option("--source", help="Source text of an encoder-decoder.")
@click.option(
    "--kind",
    type=click.Choice(["self", "cross", "source"]),
    help="Self-attention of the body (own) or of the encoder (source), or cross-attention (cross).",
)
@click.option("--layer", type=int, help="Layer, from 0; default: the last with weights.")
@click.option("--head", type=int, help="Head, from 0; default: the mean of all.")
@click.option("--language", help="Target language, if the corpus has languages.")
@click.option("--source-language", help="Source language, if the corpus has languages.")
@click.option("--all", "every", is_flag=True, help="Print a map for each layer and head.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write an HTML page with lines between the tokens, a matrix and neurons of each layer and head.",
)
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the weights as JSON.")
@click.pass_obj
def verb(
    session: Session,
    /,
    model: str,
    text: str | None,
    pair: str | None,
    layer: int | None,
    head: int | None,
    every: bool,
    output: Path | None,
    store: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Print attention maps of a text.

    `paribus attend 1f3a9c "The import statement" --layer 0 --head 2`

    MODEL is a trial (its folder, or its identity as `status` prints it) or a folder written by `train --save`. Without
    TEXT, an encoder-decoder generates the target of --source. PAIR is a second text, for a model that was trained on
    pairs. Darker cells are larger weights. A map wider than the terminal is printed in pages.
    """
    import paribus

    if output is not None:
        refuse_other_file(output, "attend")
    loaded = load_named_model(session, model, store)
    maps = paribus.attend(loaded, text, pair, **options, scores=output is not None, registry=session.registry())
    if output is not None:
        _write_page(maps, layer, head, output, " · ".join(filter(None, (text, pair, options["source"]))))
        return EXIT_OK
    if as_json:
        out_json(_document(maps, layer, head))
        return EXIT_OK
    for requested_layer, requested_head in _selected_maps(maps, layer, head, every):
        layer_index, weights = maps.map(requested_layer, requested_head)
        heads = maps.layers[layer_index]
        assert heads is not None, "a shown layer has weights"
        named = (
            f"head {requested_head} of {len(heads)}"
            if requested_head is not None
            else f"the mean of {len(heads)} heads"
        )
        out(f"layer {layer_index} of {len(maps.layers)}, {named}: {_AXES[maps.kind]}")
        for line in heatmap_lines(weights.tolist(), maps.query_tokens, maps.key_tokens):
            out(line)
        out()
    return EXIT_OK


def _write_page(maps: AttentionMaps, layer: int | None, head: int | None, output: Path, title: str) -> None:
    from paribus.report.attention_page import attention_page
    from paribus.storage.atomic import write_bytes

    write_bytes(output, attention_page(maps, title, layer=layer, head=head).encode())
    out(f"attention weights: {output}")


def _selected_maps(
    maps: AttentionMaps, layer: int | None, head: int | None, every: bool
) -> list[tuple[int | None, int | None]]:
    """Return the layer and head of each map."""
    if not every:
        return [(layer, head)]
    heads = {layer_index: len(weights) for layer_index, weights in enumerate(maps.layers) if weights is not None}
    return [
        (layer_index, head_index)
        for layer_index in (heads if layer is None else [layer])
        for head_index in (range(heads.get(layer_index, 1)) if head is None else [head])
    ]


def _document(maps: AttentionMaps, layer: int | None, head: int | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "kind": maps.kind,
        "query_tokens": list(maps.query_tokens),
        "key_tokens": list(maps.key_tokens),
        "query_words": list(maps.query_words),
        "key_words": list(maps.key_words),
    }
    if layer is None and head is None:
        layers = [None if weights is None else weights.tolist() for weights in maps.layers]
        return {**document, "layers": layers}
    layer_index, weights = maps.map(layer, head)
    return {**document, "layer": layer_index, "head": head, "weights": weights.tolist()}


def heatmap_lines(
    weights: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str], width: int | None = None
) -> Iterator[str]:
    """Format a (T, S) matrix as lines of at most `width` characters, in pages of columns."""
    width = min(terminal_columns(), _WIDEST) if width is None else width
    row_labels, column_labels = [_label(row, _ROOM) for row in rows], [_label(column, _HEIGHT) for column in columns]
    margin = max(map(len, row_labels))
    columns_per_page = max(1, (width - margin - 1) // _CELL)
    maximum = max(max(row) for row in weights)
    pages = range(0, len(columns), columns_per_page)
    shades = _shades()
    for number, start in enumerate(pages, start=1):
        page = slice(start, start + columns_per_page)
        if len(pages) > 1:
            end = min(start + columns_per_page, len(columns))
            yield f"columns {start + 1} to {end} of {len(columns)} (page {number} of {len(pages)})"
        yield from _column_headings(column_labels[page], margin)
        for label, row in zip(row_labels, weights, strict=True):
            cells = "".join(_shade(weight, maximum, shades) * _CELL for weight in row[page])
            yield f"{label:>{margin}} {cells}".rstrip()
    legend = (f"{shades[step]} {maximum * ((step - 0.5) / 4) ** 2:.2g}" for step in range(1, len(shades)))
    yield f"{'':>{margin}} from {', '.join(legend)}; maximum {maximum:.2g}"


def _column_headings(labels: Sequence[str], margin: int) -> Iterator[str]:
    """Yield the column labels, written vertically and aligned at the bottom."""
    height = max(map(len, labels))
    padded = [label.rjust(height) for label in labels]
    for line in range(height):
        yield (" " * (margin + 1) + "".join(f"{label[line]:<{_CELL}}" for label in padded)).rstrip()


def _label(text: str, room: int) -> str:
    """Format a token as a label with visible white space."""
    label = escape_unprintable(text.replace("\n", "↵")).replace(" ", "·") or "∅"
    return label if len(label) <= room else f"{label[: room - 1]}…"


def _shade(weight: float, maximum: float, shades: str) -> str:
    """Return one of five shades by the square root of the share of the maximum, so that small weights are visible."""
    return shades[int(4 * math.sqrt(weight / maximum) + 0.5)] if maximum > 0 and weight > 0 else shades[0]


def _shades() -> str:
    try:
        SHADES.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return PLAIN
    return SHADES
