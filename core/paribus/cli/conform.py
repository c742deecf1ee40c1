"""`paribus conform`: a component held against all that its slot and its own declarations promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from paribus.cli.console import Session, out, out_json, table
from paribus.errors import EXIT_FAILED, EXIT_OK, Problem, SpecError, closest_match, join_names
from paribus.hookspecs import SLOTS

if TYPE_CHECKING:
    from paribus.registry import Index
    from paribus.testing import Report


@click.command("conform")
@click.argument("topics", nargs=-1, metavar="[COMPONENT]...")
@click.option("--base", metavar="SPEC", help="A spec to put it in; without one, the tiny presets.")
@click.option("--only", multiple=True, metavar="CHECK", help="Make this check alone; may be given again.")
@click.option("--json", "as_json", is_flag=True, help="What was found of each, as data.")
@click.pass_obj
def verb(session: Session, topics: tuple[str, ...], base: str | None, only: tuple[str, ...], as_json: bool) -> int:
    """Try a COMPONENT (attention.gqa), or all of a slot (attention), in small models: does it do what it declares?

    `paribus conform attention.gqa` · `paribus conform --plugin ./mine.py` tries what that file offers.
    """
    from paribus.testing import examine

    _known(only)
    registry = session.registry()
    asked = _asked(registry.index, topics)
    reports = [examine(topic, registry=registry, base=base, only=only or None) for topic in asked]
    if as_json:
        out_json([report.to_json() for report in reports])
    else:
        for report in reports:
            _show(report, alone=len(reports) == 1)
    return EXIT_OK if all(report.ok for report in reports) else EXIT_FAILED


def _known(only: tuple[str, ...]) -> None:
    from paribus.testing.check_table import CHECKS

    for name in only:
        if name not in CHECKS:
            what, valid = f'unknown check "{name}"', join_names(CHECKS, limit=len(CHECKS))
            raise SpecError(
                Problem(code="unknown-check", message=what, valid=valid, suggestion=closest_match(name, CHECKS))
            )


def _asked(index: Index, topics: tuple[str, ...]) -> list[str]:
    """Every component that was named; none named: those of the files that were."""
    if not topics:
        found = [
            f"{entry.slot}.{entry.name}"
            for piece in index.plugins
            for entry in piece.entries
            if not piece.source.distribution
        ]
        if not found:
            raise click.UsageError("name a component, such as attention.gqa, a slot, or a file with --plugin")
        return found
    whole = {slot: [f"{slot}.{name}" for name in index.entries[slot]] for slot in SLOTS}
    return [component for topic in topics for component in whole.get(topic, [topic])]


def _show(report: Report, *, alone: bool) -> None:
    from paribus.testing.check_table import CHECKS

    if alone:
        failed = {finding.check for finding in report.findings}
        said = {name: (check.run.__doc__ or "").strip().splitlines()[0] for name, check in CHECKS.items()}
        rows = [(name, "fails" if name in failed else "holds", said[name]) for name in CHECKS if name in said]
        shown = {*report.passed, *failed}
        for line in table([row for row in rows if row[0] in shown]):
            out(line)
        out()
    for line in str(report).splitlines():
        out(line)
