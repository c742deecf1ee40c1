"""`paribus embed`: embeddings of texts from a layer of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paribus.cli.console import Session, load_named_model, note, out, out_json, read_texts, store_option, table
from paribus.errors import EXIT_OK, Problem, SpecError, StoreError

if TYPE_CHECKING:
    from paribus.inference.embed import Embeddings

_SHOWN = 3  # numbers of a vector on a line


@click.command("embed")
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--file", type=click.Path(path_type=Path), help="File with one text a line; default: stdin.")
@click.option(
    "--layers",
    "--layer",
    default="-1",
    show_default=True,
    metavar="LAYERS",
    help="0: the token embedding, -1: the last layer; -4: for the last four, or 1,2 for some.",
)
@click.option(
    "--combine", default="mean", show_default=True, help="Combination of several layers: mean, sum or concat."
)
@click.option(
    "--pool",
    default="mean",
    show_default=True,
    help="Pooling over tokens: mean, first, last, or none for a vector for each token.",
)
@click.option("--pair", "pairs", multiple=True, help="Second text of each TEXT, for a model trained on pairs.")
@click.option("--part", help="Stack of the model, such as encoder or generator; default: its body.")
@click.option("-o", "--out", "target", type=click.Path(path_type=Path), help="New .npy or .safetensors file.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print all numbers and tokens as JSON.")
@click.pass_obj
def verb(
    session: Session,
    /,
    model: str,
    texts: tuple[str, ...],
    file: Path | None,
    layers: str,
    target: Path | None,
    store: Path,
    as_json: bool,
    **options: Any,
) -> int:
    """Print or save embeddings of texts.

    `paribus embed runs/bert "Two texts." "Both at once." --layers -4: --combine concat -o vectors.npy`

    MODEL is a trial (its folder, or its identity as `status` prints it) or a folder written by `train --save`. A file
    has one row for each text, or with `--pool none` for each token; .safetensors also has the lengths.
    """
    if target is not None:
        _writable(target)
    inputs = read_texts(texts, file, "TEXT")
    import paribus

    chosen = _parsed_layers(layers)
    loaded = load_named_model(session, model, store)
    pairs = options.pop("pairs")
    embeddings = paribus.embed(loaded, inputs, pairs or None, layers=chosen, **options)
    if target is not None:
        _write(target, embeddings)
        note(f"written to {target}")
    if as_json:
        vectors = [vector.tolist() for vector in embeddings.vectors]
        rows = zip(inputs, embeddings.ids, embeddings.tokens, vectors, strict=True)
        documents = [
            {"text": text, "ids": ids, "tokens": tokens, "vectors": vector_list}
            for text, ids, tokens, vector_list in rows
        ]
        out_json({"layers": embeddings.layers, **options, "texts": documents})
    elif target is None:
        for line in table(_rows(inputs, embeddings)):
            out(line)
    return EXIT_OK


def _parsed_layers(text: str) -> int | slice | list[int]:
    """Return the layers that a text names: a number, numbers with commas, or a slice as in Python."""
    try:
        if ":" in text:
            return slice(*(int(bound) if bound.strip() else None for bound in text.split(":")))
        numbers = [int(number) for number in text.split(",")]
    except (TypeError, ValueError):
        message, valid = f"expected layers, got `{text}`", "a number, several such as 1,2, or a slice such as -4:"
        raise SpecError(Problem(code="usage", path="--layers", message=message, valid=valid)) from None
    return numbers[0] if len(numbers) == 1 else numbers


def _rows(texts: list[str], embeddings: Embeddings) -> list[list[str]]:
    """Format a line for each vector: its text or token, length, norm and first numbers."""
    lines: list[list[str]] = []
    for text, tokens, vectors in zip(texts, embeddings.tokens, embeddings.vectors, strict=True):
        named = zip(tokens, vectors, strict=True) if vectors.ndim > 1 else [(text, vectors)]
        for name, vector in named:
            begins = " ".join(f"{number:+.4f}" for number in vector[:_SHOWN].tolist())
            ellipsis = " …" if len(vector) > _SHOWN else ""
            lines.append([repr(name), f"{len(vector)} numbers", f"norm {float(vector.norm()):.4f}", begins + ellipsis])
    return lines


def _writable(target: Path) -> None:
    """Validate the output file before a model is loaded."""
    if target.suffix not in (".npy", ".safetensors"):
        message = f"expected a .npy or .safetensors file, got `{target}`"
        raise SpecError(
            Problem(code="usage", path="--out", message=message, valid="a name that ends in .npy or .safetensors")
        )
    if target.exists():
        message = f"`{target}` exists, and files are never overwritten"
        raise StoreError(Problem(code="not-empty", location=str(target), message=message, valid="a new file"))


def _write(target: Path, embeddings: Embeddings) -> None:
    import io

    import numpy as np
    import torch
    from safetensors.torch import save

    from paribus.storage.atomic import write_bytes

    pooled = embeddings.vectors[0].ndim == 1
    vectors = torch.stack(embeddings.vectors) if pooled else torch.cat(embeddings.vectors)
    if target.suffix == ".npy":
        file = io.BytesIO()
        np.save(file, vectors.cpu().numpy())
        write_bytes(target, file.getvalue())
    else:
        lengths = torch.tensor([1 if pooled else len(vector) for vector in embeddings.vectors])
        write_bytes(target, save({"vectors": vectors.cpu().contiguous(), "lengths": lengths}))
