"""`paribus attend`: attention weights of a text, as a heatmap in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paribus.cli._heatmap import heatmap_lines
from paribus.cli._inference import load_named_model
from paribus.cli.console import STORE, Session, out, out_json
from paribus.errors import EXIT_OK

if TYPE_CHECKING:
    from paribus.inference.attention_maps import AttentionMaps

_AXES = {
    "own": "rows are queries, columns are keys",
    "cross": "rows are generated tokens, columns are source tokens",
    "source": "rows are queries of the source, columns are keys of the source",
}


@click.command("attend")
@click.argument("model")
@click.argument("text", required=False)
@click.option("--source", help="Source text of an encoder-decoder; without TEXT the model generates the target.")
@click.option("--of", type=click.Choice(["own", "cross", "source"]), help="Which attention; cross: the alignment.")
@click.option("--layer", type=int, help="Layer, from 0; default: the last with weights.")
@click.option("--head", type=int, help="Head, from 0; default: the mean of all.")
@click.option("--language", help="Target language, if the corpus has languages.")
@click.option("--source-language", help="Source language.")
@click.option("--all", "every", is_flag=True, help="Print a map for each layer and head.")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the weights as JSON.")
@click.pass_obj
def verb(
    session: Session,
    /,
    model: str,
    text: str | None,
    layer: int | None,
    head: int | None,
    every: bool,
    store: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Show the attention weights of TEXT, or between TEXT and a source.

    `paribus attend 1f3a9c "The import statement" --layer 0 --head 2`

    MODEL is a trial (its folder, or its identity as `status` prints it) or a folder written by `train --save`. A
    darker cell is a larger weight. A map wider than the terminal is printed in pages.
    """
    import paribus

    loaded = load_named_model(session, model, store)
    attended = paribus.attend(loaded, text, **options, registry=session.registry())
    if as_json:
        out_json(_document(attended, layer, head))
        return EXIT_OK
    for requested_layer, requested_head in _maps(attended, layer, head, every):
        layer_index, weights = attended.map(requested_layer, requested_head)
        heads = attended.layers[layer_index]
        assert heads is not None, "a shown layer has weights"
        named = (
            f"head {requested_head} of {len(heads)}"
            if requested_head is not None
            else f"the mean of {len(heads)} heads"
        )
        out(f"layer {layer_index} of {len(attended.layers)}, {named}: {_AXES[attended.of]}")
        for line in heatmap_lines(weights.tolist(), attended.rows, attended.columns):
            out(line)
        out()
    return EXIT_OK


def _maps(
    attended: AttentionMaps, layer: int | None, head: int | None, every: bool
) -> list[tuple[int | None, int | None]]:
    """Return the layer and head of each map."""
    if not every:
        return [(layer, head)]
    heads = {layer_index: len(weights) for layer_index, weights in enumerate(attended.layers) if weights is not None}
    return [
        (layer_index, head_index)
        for layer_index in (heads if layer is None else [layer])
        for head_index in (range(heads.get(layer_index, 1)) if head is None else [head])
    ]


def _document(attended: AttentionMaps, layer: int | None, head: int | None) -> dict[str, Any]:
    document: dict[str, Any] = {"of": attended.of, "rows": list(attended.rows), "columns": list(attended.columns)}
    if layer is None and head is None:
        layers = [None if weights is None else weights.tolist() for weights in attended.layers]
        return {**document, "layers": layers}
    layer_index, weights = attended.map(layer, head)
    return {**document, "layer": layer_index, "head": head, "weights": weights.tolist()}
