"""`paribus summary`: what a spec comes to, component by component, and against another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from paribus.cli._format import differing
from paribus.cli.console import Session, out, out_json, table
from paribus.cli.list import first_line
from paribus.errors import EXIT_OK

if TYPE_CHECKING:
    from paribus.assembly.cost import ModelCost
    from paribus.registry import Index, Registry

BYTES = 4  # of a float32
HEADS = ("parameters", "FLOPs/token", "cache B/token")
SIDES = (" (left)", " (right)")
WHOLE = "whole"


@click.command("summary")
@click.argument("spec")
@click.argument("overrides", nargs=-1)
@click.option("--versus", multiple=True, metavar="OVERRIDE", help="The same spec with this override, beside it.")
@click.option("--against", metavar="SPEC", help="Another spec, beside it.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def verb(
    session: Session, spec: str, overrides: tuple[str, ...], versus: tuple[str, ...], against: str | None, as_json: bool
) -> int:
    """Count what SPEC has and does: parameters, operations, cache; nothing is allocated, at any size.

    `paribus summary bert-tiny --versus attention=mqa`
    """
    registry = session.registry()
    first = _summary(registry, spec, overrides)
    second = None
    if versus and against is None and not any("=" in word for word in versus):
        against, versus = versus[0], ()
    if versus or against is not None:
        second = _summary(registry, against or spec, (*(overrides if against is None else ()), *versus))
    if as_json:
        out_json(first if second is None else {**first, "versus": second})
        return EXIT_OK
    for line in _lines(first, second, registry.index):
        out(line)
    return EXIT_OK


def _summary(registry: Registry, spec: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    from paribus.assembly.cost import model_cost
    from paribus.specs import resolved
    from paribus.train.assemble import meta_model

    plain = resolved(spec, *overrides, registry=registry)
    model = meta_model(plain, registry)
    length = plain["dims"]["length"]
    counted: ModelCost = model_cost(model, length)
    kernels: dict[str, list[str]] = {}
    for part in model.topology.parts:
        kernels[part.path] = sorted(set(model.topology.stage(part.path).kernels(rows=length)))
    preset = registry.index.presets.get(spec)
    return {
        "about": f"{' '.join([spec, *overrides])}: {first_line(preset)}" if preset else "",
        "parameters": counted.parameters,
        "flops_per_token": counted.flops_per_token,
        "cache_bytes_per_token": counted.cache_bytes_per_token(BYTES),
        "length": length,
        "kernels": kernels,
        "teacher": _teacher(plain, registry),
        "lines": [line._asdict() for line in counted.lines],
        "spec": plain,
    }


def _teacher(spec: Mapping[str, Any], registry: Registry) -> int | None:
    """How many numbers the teacher has, which are not the model's."""
    from paribus.assembly.cost import count_parameters
    from paribus.specs import resolved
    from paribus.storage.saved_model import read_model, unbound
    from paribus.train.assemble import meta_model

    if "name" not in (spec.get("teacher") or {}):
        return None
    own = read_model(spec["teacher"]["name"]).spec
    return count_parameters(meta_model(resolved(unbound(own), registry=registry), registry).children())


def _lines(first: Mapping[str, Any], second: Mapping[str, Any] | None, index: Index) -> list[str]:
    both = [first] if second is None else [first, second]
    paths = list(dict.fromkeys(line["path"] for summary in both for line in summary["lines"]))
    rows = [["component", *(f"{name}{side}" for name in HEADS for side in (SIDES if second is not None else ("",)))]]
    rows += [[path, *_cells(both, path)] for path in [*paths, WHOLE]]
    if second is not None:
        rows.append(["change", *_changes(first, second)])
    shown = [f"{summary['about']}\n" for summary in both if summary["about"]]
    shown += [*table([[*row, ""] for row in _aligned(rows)]), ""]
    for side, summary in zip(SIDES if second is not None else ("",), both, strict=True):
        shown += [f"kernel of {path}{side}: {', '.join(names)}" for path, names in summary["kernels"].items()]
    for side, summary in zip(SIDES if second is not None else ("",), both, strict=True):
        if summary["teacher"] is not None:
            shown.append(f"teacher{side}: {summary['teacher']:,} parameters, frozen, and counted nowhere above")
    shown.append("FLOPs are of a forward pass; a training step costs about three times as many")
    if second is not None:
        shown += ["", "what differs:"]
        told = differing(first["spec"], second["spec"], index)
        shown += [f"  {key}: {left} → {right}" for key, left, right in told]
    return shown


def _aligned(rows: list[list[str]]) -> list[list[str]]:
    """Numbers to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [[row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in rows]


def _cells(both: Sequence[Mapping[str, Any]], path: str) -> list[str]:
    """One row's numbers: each measure of each side."""
    return [_number(_measures(summary, path)[place]) for place in range(len(HEADS)) for summary in both]


def _measures(summary: Mapping[str, Any], path: str) -> Sequence[float | None]:
    if path == WHOLE:
        return [summary["parameters"], summary["flops_per_token"], summary["cache_bytes_per_token"]]
    line = next((line for line in summary["lines"] if line["path"] == path), None)
    if line is None:
        return [None] * len(HEADS)
    return [line["parameters"], line["flops"] / summary["length"], line["state"] * BYTES / summary["length"]]


def _changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[str]:
    """How much more the right side has, beneath its numbers."""
    for left, right in zip(_measures(first, WHOLE), _measures(second, WHOLE), strict=True):
        yield ""
        yield f"{(right or 0) / left - 1:+.1%}" if left else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
