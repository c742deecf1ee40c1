"""`paribus summary`: what a spec comes to, component by component, and against another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from paribus.cli.console import Session, out, out_json, table
from paribus.errors import EXIT_OK

if TYPE_CHECKING:
    from paribus.assembly.cost import Costs

BYTES = 4  # of a float32


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
    first = _summary(session, spec, overrides)
    second = None
    if versus and against is None and not any("=" in word for word in versus):
        against, versus = versus[0], ()
    if versus or against is not None:
        second = _summary(session, against or spec, (*(overrides if against is None else ()), *versus))
    if as_json:
        out_json(first if second is None else {**first, "versus": second})
        return EXIT_OK
    for line in _lines(first, second):
        out(line)
    return EXIT_OK


def _summary(session: Session, spec: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    from paribus.assembly.cost import costs
    from paribus.parts.stack import Stack
    from paribus.specs import resolved
    from paribus.train.assemble import shapes_of

    registry = session.registry()
    plain = resolved(spec, *overrides, registry=registry)
    model = shapes_of(plain, registry)
    length = plain["dims"]["length"]
    counted: Costs = costs(model, length)
    kernels: dict[str, list[str]] = {}
    for part in model.topology.parts:
        stack = model.topology.get_submodule(part.path)
        assert isinstance(stack, Stack)
        kernels[part.path] = sorted(set(stack.kernels(rows=length)))
    return {
        "parameters": counted.parameters,
        "flops_per_token": counted.flops_per_token,
        "cache_bytes_per_token": counted.cache_bytes_per_token(BYTES),
        "length": length,
        "kernels": kernels,
        "lines": [line._asdict() for line in counted.lines],
        "spec": plain,
    }


def _lines(first: Mapping[str, Any], second: Mapping[str, Any] | None) -> list[str]:
    both = [first] if second is None else [first, second]
    rows: list[list[str]] = [["component", *(["parameters", "FLOPs/token", "cache B/token"] * len(both)), ""]]
    paths = list(dict.fromkeys(line["path"] for summary in both for line in summary["lines"]))
    rows += [[path, *(cell for summary in both for cell in _cells(summary, path)), ""] for path in paths]
    rows.append(["whole", *(cell for summary in both for cell in _whole(summary)), ""])
    shown = table(_aligned(rows))
    shown.append("")
    for number, summary in enumerate(both):
        name = "kernel" if second is None else f"kernel ({'left' if number == 0 else 'right'})"
        text = ", ".join(f"{path}: {' '.join(names)}" for path, names in summary["kernels"].items())
        shown.append(f"{name}: {text}; a training step costs about three times the FLOPs shown, which are forward")
    if second is not None:
        shown += ["", "what differs, left → right:"]
        shown += [f"  {key}: {left} → {right}" for key, left, right in _differences(first["spec"], second["spec"])]
    return shown


def _aligned(rows: list[list[str]]) -> list[list[str]]:
    """Numbers to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [[row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in rows]


def _cells(summary: Mapping[str, Any], path: str) -> list[str]:
    line = next((line for line in summary["lines"] if line["path"] == path), None)
    if line is None:
        return ["-", "-", "-"]
    length = summary["length"]
    return [
        f"{line['parameters']:,}",
        f"{line['flops'] / length:,.0f}",
        f"{line['state'] * BYTES / length:,.0f}",
    ]


def _whole(summary: Mapping[str, Any]) -> list[str]:
    return [
        f"{summary['parameters']:,}",
        f"{summary['flops_per_token']:,.0f}",
        f"{summary['cache_bytes_per_token']:,.0f}",
    ]


def _differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What two resolved specs differ in: a slot whose component differs is told as a whole."""
    from paribus.studies.designs import said

    found: list[tuple[str, str, str]] = []
    for key in left:
        if left[key] == right.get(key):
            continue
        one, other = left[key], right.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping) and one.get("name") == other.get("name"):
            found += [(f"{key}.{name}", said(one[name]), said(other[name])) for name in one if one[name] != other[name]]
        else:
            found.append((key, said(one), said(other)))
    return found
