"""`paribus fill-mask`: what may stand behind each mask of a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli._inference import asked, given
from paribus.cli.console import STORE, Session, out, out_json, table
from paribus.errors import EXIT_OK

if TYPE_CHECKING:
    from paribus.inference.fill_mask import Candidate


@click.command("fill-mask")
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--file", type=click.Path(path_type=Path), help="Texts, a line each; without any, stdin is read.")
@click.option("--top", type=int, default=5, show_default=True, help="Candidates for each mask.")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Candidates with their ids and probabilities.")
@click.pass_obj
def verb(
    session: Session, model: str, texts: tuple[str, ...], file: Path | None, top: int, store: Path, as_json: bool
) -> int:
    """Say which tokens may stand behind each <mask> of TEXT, and how probable each is.

    `paribus fill-mask 1f3a9c "The <mask> statement" --top 3`

    MODEL is a trial, by its folder or identity as `status` shows it, or a folder that `train --save` wrote.
    """
    import paribus

    read = given(texts, file, "TEXT")
    found = asked(session, model, store)
    filled = [paribus.fill(found, text, top=top, registry=session.registry()) for text in read]
    if as_json:
        out_json(
            [
                {"text": text, "masks": [[candidate._asdict() for candidate in mask] for mask in masks]}
                for text, masks in zip(read, filled, strict=True)
            ]
        )
        return EXIT_OK
    for number, (text, masks) in enumerate(zip(read, filled, strict=True)):
        for line in ([""] if number else []) + ([text] if len(read) > 1 else []):
            out(line)
        for place, mask in enumerate(masks, start=1):
            of = [f"mask {place}"] if len(masks) > 1 else []
            for line in table([[*of, f"{each.probability:.4f}", _quoted(each)] for each in mask]):
                out(line)
    return EXIT_OK


def _quoted(candidate: Candidate) -> str:
    """Its text, so that a space is seen."""
    return "'" + (candidate.text or "").replace("\n", "\\n") + "'"
