"""`paribus fill-mask`: the most probable tokens for each mask of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paribus.cli.console import Session, load_named_model, out, out_json, read_texts, store_option, table
from paribus.errors import EXIT_OK

if TYPE_CHECKING:
    from paribus.inference.fill_mask import Candidate


@click.command("fill-mask")
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--file", type=click.Path(path_type=Path), help="File with one text a line; default: stdin.")
@click.option("--pair", help="Second text of the only TEXT, for a model trained on pairs.")
@click.option("--top", type=int, default=5, show_default=True, help="Number of tokens for each mask.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print candidates with ids and probabilities as JSON.")
@click.pass_obj
def verb(
    session: Session,
    /,
    model: str,
    texts: tuple[str, ...],
    file: Path | None,
    store: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Predict the masked tokens of a text.

    `paribus fill-mask 1f3a9c "The <mask> statement" --top 3`

    MODEL is a trial (its folder, or its identity as `status` prints it) or a folder written by `train --save`.
    """
    import paribus

    inputs = read_texts(texts, file, "TEXT")
    if options["pair"] is not None and len(inputs) != 1:
        raise click.UsageError(f"--pair is the second text of one TEXT, got {len(inputs)}")
    loaded = load_named_model(session, model, store)
    filled = [paribus.fill(loaded, text, **options, registry=session.registry()) for text in inputs]
    if as_json:
        out_json(
            [
                {"text": text, "masks": [[candidate._asdict() for candidate in mask] for mask in masks]}
                for text, masks in zip(inputs, filled, strict=True)
            ]
        )
        return EXIT_OK
    for number, (text, masks) in enumerate(zip(inputs, filled, strict=True)):
        for line in ([""] if number else []) + ([text] if len(inputs) > 1 else []):
            out(line)
        for mask_number, mask in enumerate(masks, start=1):
            prefix = [f"mask {mask_number}"] if len(masks) > 1 else []
            for line in table(
                [[*prefix, f"{candidate_line.probability:.4f}", _quoted(candidate_line)] for candidate_line in mask]
            ):
                out(line)
    return EXIT_OK


def _quoted(candidate: Candidate) -> str:
    """Quote the text of a candidate, so that spaces are visible."""
    return "'" + (candidate.text or "").replace("\n", "\\n") + "'"
