"""`paribus conform`: test a component against the contract of its slot and its declared traits."""

from __future__ import annotations

import runpy
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paribus.cli.console import Session, out, out_versioned, table
from paribus.errors import EXIT_FAILED, EXIT_OK, Problem, SpecError, closest_match, join_names
from paribus.hookspecs import SLOTS

if TYPE_CHECKING:
    from paribus.registry import Index
    from paribus.testing import Report


@click.command("conform")
@click.argument("topics", nargs=-1, metavar="[COMPONENT]...")
@click.option("--base", metavar="SPEC", help="Spec of the model to test it in; default: the tiny presets.")
@click.option("--only", multiple=True, metavar="CHECK", help='Run only this check, e.g. "kernels agree"; repeatable.')
@click.option(
    "--reference",
    "reference_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Python file with `reference`, the formula of the component.",
)
@click.option("--list", "list_checks", is_flag=True, help="Print the checks of the slots, and run none.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.pass_obj
def verb(
    session: Session,
    topics: tuple[str, ...],
    base: str | None,
    only: tuple[str, ...],
    reference_file: Path | None,
    list_checks: bool,
    as_json: bool,
) -> int:
    """Test components against the contract of their slot.

    `paribus conform attention.gqa`

    COMPONENT is a component, or a slot for all of its components. They are tested in small models.
    `paribus conform --plugin ./mine.py` tests the components of that file. `paribus conform corpus --list` prints the
    checks of a slot. With --reference, the output of one component is also compared with a slow function of yours.
    """
    from paribus.testing import examine

    _validate_checks(only)
    if base is not None:
        session.add_spec_plugins(base)
    registry = session.registry()
    components = _selected_components(registry.index, topics)
    if list_checks:
        return _list_checks(dict.fromkeys(component.partition(".")[0] for component in components), as_json=as_json)
    if reference_file is not None and len(components) != 1:
        raise click.UsageError(f"--reference compares one component, got {len(components)}")
    reference = None if reference_file is None else _reference(reference_file)
    reports = [
        examine(topic, registry=registry, base=base, only=only or None, reference=reference) for topic in components
    ]
    if as_json:
        out_versioned({"reports": [report.to_json() for report in reports]})
    else:
        for report in reports:
            _show(report, alone=len(reports) == 1)
    return EXIT_OK if all(report.ok for report in reports) else EXIT_FAILED


def _reference(file: Path) -> Any:
    """Return the function `reference` of a Python file, or functions by name."""
    from paribus.registry.plugin_loading import summarize_error

    if not file.is_file():
        message, valid = "this file does not exist", "a Python file that defines `reference`"
        raise SpecError(Problem(code="bad-reference", location=str(file), message=message, valid=valid))
    try:
        names = runpy.run_path(str(file))
    except Exception as error:
        message = f"cannot run the file: {summarize_error(error, file=str(file))}"
        raise SpecError(Problem(code="bad-reference", location=str(file), message=message)) from error
    if "reference" not in names:
        message, valid = "it defines no `reference`", "a function, or functions by the name of their method"
        raise SpecError(Problem(code="bad-reference", location=str(file), message=message, valid=valid))
    return names["reference"]


def _list_checks(slots: Iterable[str], *, as_json: bool) -> int:
    """Print the checks of each slot, with what they test."""
    from paribus.testing.conformance import checks_of

    summaries = {slot: {name: check.summary for name, check in checks_of(slot).items()} for slot in slots}
    if as_json:
        out_versioned({"checks": summaries})
        return EXIT_OK
    for slot, checks in summaries.items():
        out(f"{slot}\n")
        for line in table(list(checks.items()), indent=2):
            out(line)
    return EXIT_OK


def _validate_checks(only: tuple[str, ...]) -> None:
    from paribus.testing.conformance import CHECKS

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
            for plugin in index.plugins
            for entry in plugin.entries
            if not plugin.source.distribution
        ]
        if not components:
            raise click.UsageError("name a component, such as attention.gqa, a slot, or a file with --plugin")
        return components
    by_slot = {slot: [f"{slot}.{name}" for name in index.entries[slot]] for slot in SLOTS}
    return [component for topic in topics for component in by_slot.get(topic, [topic])]


def _show(report: Report, *, alone: bool) -> None:
    from paribus.testing.conformance import BUILD, CHECKS, SCHEMA

    if alone:
        failed = {finding.check for finding in report.findings}
        completed = {*report.passed, *failed}
        summaries = {
            SCHEMA: "The class has the arguments, options, traits and methods that its slot declares.",
            BUILD: "Small models that contain the component can be built.",
            **{name: check.summary for name, check in CHECKS.items()},
        }
        rows = [(name, "fails" if name in failed else "passes", summary) for name, summary in summaries.items()]
        for line in table([row for row in rows if row[0] in completed]):
            out(line)
        out()
    for line in str(report).splitlines():
        out(line)
