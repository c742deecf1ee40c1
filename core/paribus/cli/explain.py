"""`paribus explain`: a slot, or a component with its paper, options and traits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import paribus
from paribus.cli import _format as words
from paribus.cli.console import Session, out, out_json, table, wrapped
from paribus.errors import EXIT_OK, Problem, SpecError, closest_match, join_names
from paribus.hookspecs import SLOTS
from paribus.schema import Option, to_json

if TYPE_CHECKING:
    from paribus.registry import Entry, Index


@click.command("explain")
@click.argument("topic")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def verb(session: Session, topic: str, as_json: bool) -> int:
    """Explain a TOPIC: a slot (attention), a component (attention.gqa), or another section of a spec (dims)."""
    from paribus.specs import fields

    sections = {"dims": fields.DIMS, "data": fields.DATA, "dropout": (fields.DROPOUT,), "seed": (fields.SEED,)}
    if topic in sections:
        return _section(topic, sections[topic], as_json)
    index = session.index()
    slot, dot, name = topic.partition(".")
    if slot not in SLOTS:
        slot, name = _bare(index, topic, [*SLOTS, *sections])
    if name or dot:
        return _component(index.find(slot, name), as_json)
    return _slot(index, slot, as_json)


def _bare(index: Index, topic: str, topics: list[str]) -> tuple[str, str]:
    """Find a component by its name without the slot."""
    slots = [slot for slot in SLOTS if topic in index.entries[slot]]
    if len(slots) == 1:
        return slots[0], topic
    if slots:
        message, valid = f"`{topic}` is in several slots", join_names(f"{slot}.{topic}" for slot in slots)
        raise SpecError(Problem(code="ambiguous", message=message, valid=valid))
    components = [f"{slot}.{name}" for slot in SLOTS for name in index.entries[slot]]
    message, valid = f'unknown topic "{topic}"', f"{join_names(topics)}, or slot.name, such as {components[0]}"
    suggestion = closest_match(topic, [*topics, *components, *(name.partition(".")[2] for name in components)])
    raise SpecError(Problem(code="unknown-topic", message=message, valid=valid, suggestion=suggestion))


def _section(topic: str, options: tuple[Option, ...], as_json: bool) -> int:
    if as_json:
        out_json({"topic": topic, "options": [to_json(option) for option in options]})
        return EXIT_OK
    out(topic)
    _options(options)
    return EXIT_OK


def _slot(index: Index, slot: str, as_json: bool) -> int:
    doc = _contract(slot)
    entries = index.entries[slot]
    if as_json:
        out_json({"slot": slot, "doc": doc, "components": list(entries)})
        return EXIT_OK
    out(f"{slot}\n")
    out(doc)
    out(f"\n{len(entries)} installed")
    for line in table([(f"{slot}.{name}", entry.summary) for name, entry in entries.items()], indent=2):
        out(line)
    return EXIT_OK


def _contract(slot: str) -> str:
    """Read the docstring of a slot's abstract class without importing torch."""
    file = Path(paribus.__file__).parent / "slots" / f"{slot}.py"
    classes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    return next(ast.get_docstring(node) or "" for node in classes if node.name.lower() == slot)


def _component(entry: Entry, as_json: bool) -> int:
    if as_json:
        out_json(_data(entry))
        return EXIT_OK
    out(f"{entry.slot}.{entry.name}\n")
    out(entry.doc)
    _options(entry.options)
    declarations = [*words.traits(entry.traits), *words.stacks(entry.parts), *words.reads(entry.reads)]
    if declarations:
        out("\ntraits")
    for line in declarations:
        for text in wrapped(line, indent=2):
            out(text)
    out("")
    for line in table([("plugin", str(entry.source)), ("file", entry.file or "none")]):
        out(line)
    return EXIT_OK


def _data(entry: Entry) -> dict[str, Any]:
    return {
        "slot": entry.slot,
        "name": entry.name,
        "doc": entry.doc,
        "distribution": entry.source.label,
        "plugin": entry.source.name,
        "file": entry.file,
        "traits": dict(entry.traits),
        "parts": [part._asdict() for part in entry.parts],
        "reads": list(entry.reads),
        "options": [to_json(option) for option in entry.options],
    }


def _options(options: tuple[Option, ...]) -> None:
    out("\noptions" if options else "\nno options")
    for line in table(list(_lines(options, "")), indent=2):
        out(line)


def _lines(options: tuple[Option, ...], prefix: str) -> Iterator[tuple[str, str]]:
    for option in options:
        yield f"{prefix}{option.name}", words.option(option)
        if option.kind.name == "group":
            yield from _lines(option.kind.options, f"{prefix}{option.name}.")
