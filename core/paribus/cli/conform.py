"""`paribus conform`: test a component against its slot's contract and its own declarations."""

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
@click.option("--base", metavar="SPEC", help="Spec to test it in; default: the tiny presets.")
@click.option("--only", multiple=True, metavar="CHECK", help="Run only this check; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.pass_obj
def verb(session: Session, topics: tuple[str, ...], base: str | None, only: tuple[str, ...], as_json: bool) -> int:
    """Test a COMPONENT (attention.gqa), or all of a slot (attention), in small models.

    `paribus conform attention.gqa` · `paribus conform --plugin ./mine.py` tests the components of that file.
    """
    from paribus.testing import examine

    _validate_checks(only)
    registry = session.registry()
    components = _selected_components(registry.index, topics)
    reports = [examine(topic, registry=registry, base=base, only=only or None) for topic in components]
    if as_json:
        out_json([report.to_json() for report in reports])
    else:
        for report in reports:
            _show(report, alone=len(reports) == 1)
    return EXIT_OK if all(report.ok for report in reports) else EXIT_FAILED


def _validate_checks(only: tuple[str, ...]) -> None:
    from paribus.testing.check_table import CHECKS

    for name in only:
        if name not in CHECKS:
            message, valid = f'unknown check "{name}"', join_names(CHECKS, limit=len(CHECKS))
            raise SpecError(
                Problem(code="unknown-check", message=message, valid=valid, suggestion=closest_match(name, CHECKS))
            )


def _selected_components(index: Index, topics: tuple[str, ...]) -> list[str]:
    """Return the named components, or those of the plugin files if none is named."""
    if not topics:
        components = [
            f"{entry.slot}.{entry.name}"
            for piece in index.plugins
            for entry in piece.entries
            if not piece.source.distribution
        ]
        if not components:
            raise click.UsageError("name a component, such as attention.gqa, a slot, or a file with --plugin")
        return components
    by_slot = {slot: [f"{slot}.{name}" for name in index.entries[slot]] for slot in SLOTS}
    return [component for topic in topics for component in by_slot.get(topic, [topic])]


def _show(report: Report, *, alone: bool) -> None:
    from paribus.testing.check_table import CHECKS

    if alone:
        failed = {finding.check for finding in report.findings}
        summaries = {name: (check.run.__doc__ or "").strip().splitlines()[0] for name, check in CHECKS.items()}
        rows = [(name, "fails" if name in failed else "holds", summaries[name]) for name in CHECKS if name in summaries]
        run_checks = {*report.passed, *failed}
        for line in table([row for row in rows if row[0] in run_checks]):
            out(line)
        out()
    for line in str(report).splitlines():
        out(line)
