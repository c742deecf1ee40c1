"""`paribus check`: everything that is wrong with a spec, or the spec with every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from paribus.cli.console import Session, out, out_json
from paribus.errors import EXIT_OK


@click.command("check")
@click.argument("spec")
@click.argument("overrides", nargs=-1)
@click.option(
    "--json", "as_json", is_flag=True, help="Whether it is ok, its problems, its hash, and what it resolves to."
)
@click.pass_obj
def verb(session: Session, spec: str, overrides: tuple[str, ...], as_json: bool) -> int:
    """Check a SPEC, the name of a preset or a path, with OVERRIDES such as attention=gqa attention.kv_heads=2.

    Tells of all problems at once, and writes no file. What it prints is the resolved spec, which is a spec again.
    """
    from paribus.specs import resolved, spec_hash

    found = resolved(spec, *overrides, registry=session.index())
    _builds(session, found)
    if as_json:
        out_json({"ok": True, "problems": [], "hash": spec_hash(found), "spec": found})
        return EXIT_OK
    out(f"# {spec_hash(found)}")
    out(_yaml(found).rstrip())
    return EXIT_OK


def _builds(session: Session, spec: Mapping[str, Any]) -> None:
    """What only components can say of their options, they say when they are built: shapes alone, nothing allocated."""
    from paribus.assembly.build import build
    from paribus.assembly.measured import stand_in
    from paribus.kernels import KERNELS

    registry = session.registry()
    build(spec, registry, stand_in(spec, registry.index), KERNELS)


def _yaml(spec: Mapping[str, Any]) -> str:
    """A line for each key, as a person would write it."""
    import yaml

    text = ""
    for key, value in spec.items():
        flat = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
        text += f"{key}: {flat.removesuffix('...' + chr(10)).rstrip()}\n"
    return text
