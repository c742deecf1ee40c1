"""`paribus plugins`: loaded plugins, their sources and their errors."""

from __future__ import annotations

from typing import Any

import click

from paribus.cli.console import Session, out, out_json, table, wrapped
from paribus.errors import EXIT_OK, join_names
from paribus.hookspecs import SLOTS
from paribus.registry import PluginManifest


@click.command("plugins")
@click.option(
    "--json", "as_json", is_flag=True, help="Print plugin, distribution, components, hooks and errors as JSON."
)
@click.pass_obj
def verb(session: Session, as_json: bool) -> int:
    """List the plugins with their components and errors."""
    index = session.index()
    rows = [_row(piece) for piece in index.plugins]
    if as_json:
        out_json({"plugins": rows, "problems": index.warnings()})
        return EXIT_OK
    for line in table([(row["plugin"], row["distribution"], _offers(row)) for row in rows]):
        out(line)
    for warning in index.warnings():
        out("")
        for line in wrapped(warning):
            out(line)
    return EXIT_OK


def _row(piece: PluginManifest) -> dict[str, Any]:
    return {
        "plugin": piece.source.name,
        "distribution": piece.source.label,
        "module": piece.source.value,
        "components": [f"{entry.slot}.{entry.name}" for entry in piece.entries],
        "presets": piece.presets,
        "studies": piece.studies,
        "hooks": list(piece.hooks),
        "broken": [broken.message for broken in piece.broken],
    }


def _offers(row: dict[str, Any]) -> str:
    offers = [*row["components"], *(hook for hook in row["hooks"] if hook not in SLOTS)]
    return join_names(offers) or ("broken" if row["broken"] else "nothing")
