"""`paribus adapt`: swap parts of a saved model and measure the loss change before any training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli.console import Session, note, out, out_json, refuse_full, refuse_repeated, table
from paribus.errors import EXIT_OK
from paribus.storage.saved_model import read_model

if TYPE_CHECKING:
    from paribus.models.adapt import AdaptationReport
    from paribus.models.warm_start import Kind, TensorTransfer


@click.command("adapt")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, callback=refuse_repeated, metavar="[OVERRIDE]...")
@click.option("-o", "--out", "target", type=click.Path(path_type=Path), help="New folder for the adapted model.")
@click.option("--json", "as_json", is_flag=True, help="Print every tensor and metric as JSON.")
@click.pass_obj
def verb(session: Session, source: Path, overrides: tuple[str, ...], target: Path | None, as_json: bool) -> int:
    """Swap parts of a saved model, and print the loss change.

    `paribus adapt runs/gpt attention=gqa attention.kv_heads=2 -o runs/gqa`

    SOURCE is the folder of a trial, or one written by `train --save`. The output lists which tensors are kept,
    converted, new or dropped, and the loss before and after the swap, without any training.
    """
    import paribus

    if target is not None:
        refuse_full(target)
    session.add_model_plugins(read_model(source))
    registry = session.registry()
    model, report = paribus.adapt(source, *overrides, registry=registry)
    if target is not None:
        paribus.save(model, target, registry=registry)
    if as_json:
        out_json(report.to_json())
    else:
        for line in lines(report):
            out(line)
    for text in report.notes:
        note(f"note: {text}")
    if target is not None:
        note(f"written to {target}")
    return EXIT_OK


def lines(report: AdaptationReport) -> list[str]:
    """Format a table of the transferred tensors, and the loss changes below it."""
    rows = [
        [label, f"{len(fates)} tensors", f"({sum(fate.size for fate in fates):,} numbers)", paths]
        for kind, label_text in _LABELS.items()
        for label, fates, paths in _grouped(kind, label_text, report.tensors.of(kind))
    ]
    return [*table(rows), "", *map(str, report.loss_changes)]


_LABELS: dict[Kind, str] = {"kept": "kept bitwise", "converted": "converted", "new": "new", "dropped": "dropped"}


def _grouped(
    kind: Kind, label: str, fates: tuple[TensorTransfer, ...]
) -> Iterator[tuple[str, list[TensorTransfer], str]]:
    """Yield a line for each kind of conversion and of new initial weights."""
    from paribus.analysis.tensor_comparison import short_names

    groups: dict[str, list[TensorTransfer]] = {}
    for fate in fates:
        groups.setdefault(fate.how, []).append(fate)
    for conversion, group in groups.items():
        paths = "" if kind == "kept" else short_names(fate.path for fate in group)
        yield label if kind != "kept" or not conversion else "kept", group, ": ".join(filter(None, (paths, conversion)))
