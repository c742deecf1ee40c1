"""Writes components.md from what is installed: `python docs/components.py`, or `make docs`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from paribus.cli import _format as words
from paribus.hookspecs import SLOTS
from paribus.registry import Entry, Index, index
from paribus.registry.class_reader import slot_class
from paribus.schema import Option

HEAD = """\
<!-- Written by docs/components.py from the registry; `make docs` writes it anew. -->
# Components

What paribus brings along, slot by slot. `paribus list` shows the same with your own plugins in it, and
`paribus explain attention.gqa` tells more of one.
"""


def page(found: Index) -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for slot in SLOTS for line in _slot(found, slot))])


def _slot(found: Index, slot: str) -> Iterator[str]:
    entries = [entry for entry in found.entries[slot].values() if entry.source.distribution == "paribus"]
    if not entries:
        return
    yield f"## {slot}\n"
    yield f"{(inspect.getdoc(slot_class(slot)) or '').splitlines()[0]}\n"
    yield "| name | what it is | options |"
    yield "|---|---|---|"
    for entry in entries:
        yield f"| `{entry.name}` | {_cell(entry.summary)} | {_options(entry)} |"
    yield ""


def _options(entry: Entry) -> str:
    return "<br>".join(_cell(f"`{name}`: {words.option(option)}") for name, option in _flat(entry.options, ""))


def _flat(options: tuple[Option, ...], before: str) -> Iterator[tuple[str, Option]]:
    for option in options:
        if option.kind.name == "group":
            yield from _flat(option.kind.options, f"{before}{option.name}.")
        else:
            yield f"{before}{option.name}", option


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page(index(no_plugins=True)))
