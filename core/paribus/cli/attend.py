"""`paribus attend`: what each row of a text weighs, as a map in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paribus.cli._heatmap import shaded
from paribus.cli._inference import asked
from paribus.cli.console import STORE, Session, out, out_json
from paribus.errors import EXIT_OK

if TYPE_CHECKING:
    from paribus.inference.attention_maps import AttentionMaps

_SAID = {
    "own": "each row is a token that is read, each column one that it weighs",
    "cross": "each row is a token that is written, each column one of the source",
    "source": "each row is a token of the source, each column one that it weighs",
}


@click.command("attend")
@click.argument("model")
@click.argument("text", required=False)
@click.option("--source", help="What a model reads that writes something else; without TEXT it writes that itself.")
@click.option("--of", type=click.Choice(["own", "cross", "source"]), help="Whose rows; cross: the alignment.")
@click.option("--layer", type=int, help="Counted from 0; the last that has weights unless said.")
@click.option("--head", type=int, help="Counted from 0; the mean of all unless said.")
@click.option("--language", help="The language to be written, where the corpus tells any apart.")
@click.option("--source-language", help="That of the source.")
@click.option("--all", "every", is_flag=True, help="A map for each layer and each head.")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The weights of all layers and heads, unless one is named.")
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
    **said: Any,
) -> int:
    """Show how much each row of TEXT weighs each other, or those of a source.

    `paribus attend 1f3a9c "The import statement" --layer 0 --head 2`

    MODEL is a trial, by its folder or identity as `status` shows it, or a folder that `train --save` wrote. The darker
    a cell, the more its row weighs its column; a map that is wider than the terminal is shown in pages.
    """
    import paribus

    found = asked(session, model, store)
    shown = paribus.attend(found, text, **said, registry=session.registry())
    if as_json:
        out_json(_document(shown, layer, head))
        return EXIT_OK
    for at, which in _maps(shown, layer, head, every):
        place, weights = shown.map(at, which)
        heads = shown.layers[place]
        assert heads is not None, "it was just shown"
        named = f"head {which} of {len(heads)}" if which is not None else f"the mean of {len(heads)} heads"
        out(f"layer {place} of {len(shown.layers)}, {named}: {_SAID[shown.of]}")
        for line in shaded(weights.tolist(), shown.rows, shown.columns):
            out(line)
        out()
    return EXIT_OK


def _maps(
    shown: AttentionMaps, layer: int | None, head: int | None, every: bool
) -> list[tuple[int | None, int | None]]:
    """Which layer and which head each map is of."""
    if not every:
        return [(layer, head)]
    heads = {place: len(weights) for place, weights in enumerate(shown.layers) if weights is not None}
    return [
        (place, which)
        for place in (heads if layer is None else [layer])
        for which in (range(heads.get(place, 1)) if head is None else [head])
    ]


def _document(shown: AttentionMaps, layer: int | None, head: int | None) -> dict[str, Any]:
    document: dict[str, Any] = {"of": shown.of, "rows": list(shown.rows), "columns": list(shown.columns)}
    if layer is None and head is None:
        every = [None if weights is None else weights.tolist() for weights in shown.layers]
        return {**document, "layers": every}
    place, weights = shown.map(layer, head)
    return {**document, "layer": place, "head": head, "weights": weights.tolist()}
