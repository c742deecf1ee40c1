"""Write components.md from the registry, traits.md from the slots, and the table of a study's keys: `make docs`."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

from paribus.cli.explain import describe_option, describe_values
from paribus.cli.slot_contract import TRAITS_DOC, trait_tables
from paribus.hookspecs import SLOTS
from paribus.registry import Entry, Index
from paribus.registry import index as load_index
from paribus.registry.class_reader import group_options, slot_class
from paribus.schema import Option
from paribus.studies import study_keys
from paribus.testing.conformance import checks_of

HEAD = """\
<!-- Written by docs/components.py from the registry; run `make docs` to update it. -->
# Components

All components that come with Paribus, by slot. `paribus list` also lists those of your plugins, and
`paribus explain attention.gqa` shows one in full. Below the components of a slot are the checks that `paribus conform`
runs for them, after two that every slot has: the schema is valid, and models can be built.
"""


TRAITS_HEAD = f"""\
<!-- Written by docs/components.py from core/paribus/slots; run `make docs` to update it. -->
# Traits

{textwrap.fill(TRAITS_DOC, 120)}

A component that does not declare a trait has the default. `paribus explain traits.attention` prints the traits of one
slot, and [Components](components.md) lists the checks.
"""


def traits_page() -> str:
    """Return the page of the traits of every slot."""
    lines = [TRAITS_HEAD]
    for title, fields in trait_tables().items():
        lines += [f"## {title}\n", "| trait | type | default | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{field.name}` | `{cell(field.kind)}` | {cell(field.default)} | {cell(field.meaning)} |"
            for field in fields
        ]
        lines.append("")
    return "\n".join(lines)


STUDIES = Path(__file__).parent / "reference" / "studies.md"
STUDY_TABLES: dict[str, dict[str, type]] = {
    "Keys of a study": {
        "": study_keys.StudyKeys,
        "budget.": study_keys.Budget,
        "stages.NAME.": study_keys.StageKeys,
    },
    "Keys of a study of a program": {"": study_keys.ProgramKeys},
}


def studies_page(text: str) -> str:
    """Return the page of studies with the tables of keys that follow their headings."""
    for title, blocks in STUDY_TABLES.items():
        before, heading, rest = text.partition(f"## {title}\n\n")
        rows = [
            _study_row(f"{prefix}{name}", option)
            for prefix, block in blocks.items()
            for name, option in flat_options(group_options(block))
        ]
        lines = ["| key | meaning | default | example |", "|---|---|---|---|", *rows, "", rest.partition("\n\n")[2]]
        text = before + heading + "\n".join(lines)
    return text


def _study_row(name: str, option: Option) -> str:
    values = "" if option.kind.name in ("any", "mapping") else f" ({describe_values(option)})"
    default = f"`{json.dumps(option.default)}`" if option.default not in (None, [], "") else ""
    example = "" if option.example is None else f"`{option.example_text}`"
    is_required = option.required and not name.startswith("budget.")  # a budget has one of its units
    return f"| `{name}` | {cell(option.doc + values)} | {'required' if is_required else default} | {example} |"


def page(index: Index) -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *(line for slot in SLOTS for line in _slot(index, slot))])


def shipped(index: Index, slot: str) -> list[Entry]:
    """Return the components of a slot that come with Paribus."""
    return [entry for entry in index.entries[slot].values() if entry.source.distribution == "paribus"]


def definition(slot: str) -> str:
    """Return the first line of the docstring of the slot's abstract class."""
    return (inspect.getdoc(slot_class(slot)) or "").splitlines()[0]


def check_lines(slot: str) -> Iterator[str]:
    """Yield the conformance checks of a slot, as a list."""
    for name, check in checks_of(slot).items():
        yield f"- **{name}**: {cell(check.summary)}"


def _slot(index: Index, slot: str) -> Iterator[str]:
    entries = shipped(index, slot)
    if not entries:
        return
    yield f"## {slot}\n"
    yield f"{definition(slot)}\n"
    yield "| name | description | options |"
    yield "|---|---|---|"
    for entry in entries:
        yield f"| `{entry.name}` | {cell(entry.summary)} | {_options(entry)} |"
    yield f"\n### Checks of {slot}\n"
    yield from check_lines(slot)
    yield ""


def _options(entry: Entry) -> str:
    return "<br>".join(cell(f"`{name}`: {describe_option(option)}") for name, option in flat_options(entry.options))


def flat_options(options: tuple[Option, ...], prefix: str = "") -> Iterator[tuple[str, Option]]:
    """Yield the options with their dotted names, those of a group one by one."""
    for option in options:
        if group := [kind.options for kind in (option.kind, *option.kind.items) if kind.name == "group"]:
            yield from flat_options(group[0], f"{prefix}{option.name}.")
        else:
            yield f"{prefix}{option.name}", option


def cell(text: str) -> str:
    """Return a text as a cell of a table, or as text in which `<` is no markup."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page(load_index(no_plugins=True)))
    Path(__file__).with_name("traits.md").write_text(traits_page())
    STUDIES.write_text(studies_page(STUDIES.read_text()))
