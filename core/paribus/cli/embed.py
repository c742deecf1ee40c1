"""`paribus embed`: what a layer of a model makes of texts, as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli._inference import asked, given
from paribus.cli.console import STORE, Session, note, out, out_json, table
from paribus.errors import EXIT_OK, Problem, SpecError, StoreError

if TYPE_CHECKING:
    from paribus.inference.embed import Embeddings

_SHOWN = 4  # numbers of a vector that a line has


@click.command("embed")
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--file", type=click.Path(path_type=Path), help="Texts, a line each; without any, stdin is read.")
@click.option(
    "--layer", type=int, default=-1, show_default=True, help="0 is the embedding's rows, -1 the last layer's."
)
@click.option("--pool", default="mean", show_default=True, help="mean, first, last, or none: a vector for each token.")
@click.option("--part", help="Another stack than the one that reads a text, such as the generator.")
@click.option("-o", "--out", "target", type=click.Path(path_type=Path), help="A .npy or .safetensors file.")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Every number, and the tokens.")
@click.pass_obj
def verb(
    session: Session,
    model: str,
    texts: tuple[str, ...],
    file: Path | None,
    layer: int,
    pool: str,
    part: str | None,
    target: Path | None,
    store: Path,
    as_json: bool,
) -> int:
    """Print what a layer of MODEL makes of each TEXT, or write it to a file.

    `paribus embed runs/bert "Two texts." "Both at once." --layer 2 -o vectors.npy`

    MODEL is a trial, by its folder or identity as `status` shows it, or a folder that `train --save` wrote. A file has
    one row a text; with `--pool none` a row a token, text after text, and .safetensors has how many each has.
    """
    if target is not None:
        _writable(target)
    read = given(texts, file, "TEXT")
    import paribus

    found = paribus.embed(asked(session, model, store), read, layer=layer, pool=pool, part=part)  # type: ignore[arg-type]  # it says itself which there are
    if target is not None:
        _write(target, found)
        note(f"written to {target}")
    if as_json:
        vectors = [vector.tolist() for vector in found.vectors]
        rows = zip(read, found.ids, found.tokens, vectors, strict=True)
        told = [{"text": text, "ids": ids, "tokens": tokens, "vectors": made} for text, ids, tokens, made in rows]
        out_json({"layer": found.layer, "pool": pool, "texts": told})
    elif target is None:
        for line in table(_rows(read, found)):
            out(line)
    return EXIT_OK


def _rows(texts: list[str], found: Embeddings) -> list[list[str]]:
    """A line for each vector: what it is of, how long it is, and where it begins."""
    shown: list[list[str]] = []
    for text, tokens, vectors in zip(texts, found.tokens, found.vectors, strict=True):
        named = zip(tokens, vectors, strict=True) if vectors.ndim > 1 else [(text, vectors)]
        for name, vector in named:
            begins = " ".join(f"{number:+.4f}" for number in vector[:_SHOWN].tolist())
            more = " …" if len(vector) > _SHOWN else ""
            shown.append([repr(name), f"{len(vector)} numbers", f"norm {float(vector.norm()):.4f}", begins + more])
    return shown


def _writable(target: Path) -> None:
    """What cannot be written is said before a model is read."""
    if target.suffix not in (".npy", ".safetensors"):
        what = f"`{target}` is no name of a file that vectors are written to"
        raise SpecError(
            Problem(code="usage", path="--out", message=what, valid="a name that ends in .npy or .safetensors")
        )
    if target.exists():
        what = f"`{target}` is there already, and nothing is written over"
        raise StoreError(Problem(code="not-empty", location=str(target), message=what, valid="a new file"))


def _write(target: Path, found: Embeddings) -> None:
    import io

    import numpy as np
    import torch
    from safetensors.torch import save

    from paribus.storage.atomic import write_bytes

    pooled = found.vectors[0].ndim == 1
    vectors = torch.stack(found.vectors) if pooled else torch.cat(found.vectors)
    if target.suffix == ".npy":
        file = io.BytesIO()
        np.save(file, vectors.cpu().numpy())
        write_bytes(target, file.getvalue())
    else:
        lengths = torch.tensor([1 if pooled else len(vector) for vector in found.vectors])
        write_bytes(target, save({"vectors": vectors.cpu().contiguous(), "lengths": lengths}))
