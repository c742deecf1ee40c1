"""Seeded faults, which test the conformance kit; README.md describes the format of the files in `faults/`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from paribus.testing.conformance import REFERENCE

FOLDER: Final = Path(__file__).with_name("faults")
HEADER: Final = re.compile(r"@@ (?P<source>[^\s,]+)(, tested in (?P<component>\S+))? @@")


class Fault(NamedTuple):
    """Changes of a source, with the check that finds them or the reason why none does."""

    name: str
    source: str
    component: str  # component to test
    changes: Sequence[tuple[str, str]]  # pieces of the source, and their replacements
    check: str
    reason: str

    @property
    def slot(self) -> str:
        return "attention" if self.component == "by_hand" else self.component.split(".")[0]

    def __str__(self) -> str:
        return f"{self.source}: {self.name}"

    def apply(self, text: str) -> str:
        """Return the source with the fault."""
        for original, replacement in self.changes:
            count = text.count(original)
            assert count == 1, f"{self}: expected `{original}` once in the source, got {count}"
            text = text.replace(original, replacement)
        return text


def read_faults(pattern: str) -> tuple[Fault, ...]:
    """Return the faults of the files that match a pattern, such as `kit/*.diff`."""
    return tuple(fault for file in sorted(FOLDER.glob(pattern)) for fault in parse_faults(file.read_text()))


def parse_faults(text: str) -> Iterator[Fault]:
    """Yield the faults of a file; its paragraphs are headers, which name a source, and faults in that source."""
    source = component = ""
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        if header := HEADER.fullmatch(paragraph):
            source = header["source"]
            component = header["component"] or source
        else:
            name, *lines, result = paragraph.split("\n")
            kind, _, value = result.partition(": ")
            assert source, f"{name}: expected a line `@@ component @@` above the first fault"
            assert kind in ("found by", "missed"), f"{name}: the last line must be `found by: …` or `missed: …`"
            check, reason = (value, "") if kind == "found by" else ("", value)
            yield Fault(name, source, component, parse_changes(name, lines), check, reason)


def parse_changes(name: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return pieces and replacements: lines of `-`, followed by lines of `+`, are one change."""
    changes: list[tuple[list[str], list[str]]] = []
    previous = "+"
    for line in lines:
        sign, text = line[0], line[1:].removeprefix(" ")
        assert sign in ("-", "+"), f"{name}: a line of a change starts with - or +, got `{line}`"
        if sign == "-" and previous == "+":
            changes.append(([], []))
        assert changes, f"{name}: the first line must be the piece to replace, and start with -"
        changes[-1][sign == "+"].append(text)
        previous = sign
    assert changes, f"{name}: no change"
    return [("\n".join(original), "\n".join(replacement)) for original, replacement in changes]


KIT: Final = read_faults("kit/*.diff")
INDEPENDENT: Final = read_faults("independent/*.diff")
NEWCOMER: Final = read_faults("newcomer.diff")
PLUGINS: Final = read_faults("independent_plugins.diff")
AUTHORS: Final = {"kit": [fault for fault in KIT if fault.check != REFERENCE], "independent": INDEPENDENT}
"""Counted faults; of those of the kit's author, a reference finds some that are other valid components."""


def table(slots: Sequence[str]) -> list[str]:
    """Return the counts by slot and author as Markdown, and the faults that no check finds, with reasons."""
    lines = ["| slot | faults of the kit's author | found | faults of others | found |", "| --- |" + " ---: |" * 4]
    for slot in slots:
        cells = [slot]
        for faults in AUTHORS.values():
            slot_faults = [fault for fault in faults if fault.slot == slot]
            cells += [str(len(slot_faults)), str(sum(not fault.reason for fault in slot_faults))]
        lines.append(f"| {' | '.join(cells)} |")
    by_reference = sum(fault.check == REFERENCE for fault in INDEPENDENT)
    lines += ["", f"Of the faults of others, {by_reference} are found by a reference of the author only.", ""]
    lines += ["No check finds these:", ""]
    missed = [fault for faults in AUTHORS.values() for fault in faults if fault.reason]
    return lines + [f"- {fault.slot}: `{fault}`: {fault.reason}." for fault in missed]


def newcomer_table() -> list[str]:
    """Return the faults of a newcomer with the check that finds each, as Markdown."""
    lines = ["| slot | planted fault | found by |", "| --- | --- | --- |"]
    lines += [f"| {fault.slot} | {fault.name} | {fault.check} |" for fault in NEWCOMER]
    by_reference = sum(fault.check == REFERENCE for fault in NEWCOMER)
    return [
        *lines,
        "",
        f"All {len(NEWCOMER)} are found, {by_reference} of them only by a reference. Their author wrote neither the",
        "references nor the kit. The checks of the day found 12; the others were added for these faults, so the",
        "table does not tell how many faults of the next author are found.",
    ]


def plugin_table() -> list[str]:
    """Return the mistakes in plugins of other authors by slot, and those that no check finds, as Markdown."""
    lines = ["| slot | mistakes | found |", "| --- | ---: | ---: |"]
    for slot in dict.fromkeys(fault.slot for fault in PLUGINS):
        mistakes = [fault for fault in PLUGINS if fault.slot == slot]
        lines.append(f"| {slot} | {len(mistakes)} | {sum(not fault.reason for fault in mistakes)} |")
    found = sum(not fault.reason for fault in PLUGINS)
    lines += ["", f"{found} of {len(PLUGINS)} are found, without a reference. No check finds these:", ""]
    return lines + [f"- {fault.slot}: `{fault}`: {fault.reason}." for fault in PLUGINS if fault.reason]
