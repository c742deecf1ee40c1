"""`paribus list`: installed components, by slot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import paribus
from paribus.cli.console import Session, out, out_json, table
from paribus.errors import EXIT_OK, Problem, SpecError, closest_match, join_names
from paribus.hookspecs import SLOTS
from paribus.schema import to_json

if TYPE_CHECKING:
    from paribus.registry import Index

_FILES = ("presets", "studies")


@click.command("list")
@click.argument("slot", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print slot, name, summary, distribution and options as JSON.")
@click.pass_obj
def verb(session: Session, slot: str | None, as_json: bool) -> int:
    """List the installed components, presets and studies.

    `paribus list attention` lists one slot, `paribus list presets` and `paribus list studies` the specs and studies of
    the plugins.
    """
    if slot is not None and slot not in (*SLOTS, *_FILES):
        valid_names = (*SLOTS, *_FILES)
        message = f'unknown slot "{slot}"'
        raise SpecError(
            Problem(
                code="unknown-slot",
                message=message,
                valid=join_names(valid_names),
                suggestion=closest_match(slot, valid_names),
            )
        )
    index = session.index()
    if as_json:
        out_json([row for name in ([slot] if slot else SLOTS) for row in _rows(index, name)])
        return EXIT_OK
    for number, name in enumerate([slot] if slot else [*SLOTS, *_FILES]):
        rows = _rows(index, name)
        if rows or slot:
            out(f"{'' if number == 0 else chr(10)}{name}")
        for line in table([(row["name"], row["distribution"], row["summary"]) for row in rows], indent=2):
            out(line)
    return EXIT_OK


def _rows(index: Index, slot: str) -> list[dict[str, Any]]:
    if slot in SLOTS:
        return [
            {
                "slot": slot,
                "name": name,
                "summary": entry.summary,
                "distribution": entry.source.label,
                "options": [to_json(option) for option in entry.options],
            }
            for name, entry in index.entries[slot].items()
        ]
    return [
        {"slot": slot, "name": name, "summary": first_line(file), "distribution": source, "options": []}
        for name, source, file in (_presets(index) if slot == "presets" else _studies(index))
    ]


def _presets(index: Index) -> Iterator[tuple[str, str, Path]]:
    for name, claimants in index.files("preset").items():
        for door, file in claimants:
            yield name, door.label, file


def _studies(index: Index) -> Iterator[tuple[str, str, Path]]:
    from paribus.studies.study import available_studies

    offered = {file: door for claimants in index.files("study").values() for door, file in claimants}
    for name, file in available_studies(index).items():
        yield name, offered[file].label if file in offered else f"paribus {paribus.__version__}", file


def first_line(file: Path) -> str:
    """Return the first line of a YAML file if it is a comment."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        line = lines.readline().strip()
    return line.lstrip("# ") if line.startswith("#") else ""
