"""`paribus check`: everything that is wrong with a spec, or the spec with every default filled in; a study as well."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from paribus.cli.console import Session, out, out_json
from paribus.errors import EXIT_OK, Problem, SpecError


@click.command("check")
@click.argument("spec")
@click.argument("overrides", nargs=-1)
@click.option(
    "--json", "as_json", is_flag=True, help="Whether it is ok, its problems, its hash, and what it resolves to."
)
@click.pass_obj
def verb(session: Session, spec: str, overrides: tuple[str, ...], as_json: bool) -> int:
    """Check a SPEC, the name of a preset or a path, with OVERRIDES such as attention=gqa attention.kv_heads=2.

    Tells of all problems at once, and writes no file. What it prints is the resolved spec, which is a spec again. Of a
    study's file it checks every variant, and prints them.
    """
    from paribus.specs import resolved, spec_hash

    if _is_study(session, spec):
        return _study(session, spec, overrides, as_json)
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
    from paribus.assembly.metric_names import placeholder_vocabulary
    from paribus.kernels import KERNELS

    registry = session.registry()
    build(spec, registry, placeholder_vocabulary(spec, registry.index), KERNELS)


def _is_study(session: Session, source: str) -> bool:
    """Whether it is the file of a study, by keys that no spec has. A name is that of a preset, if there is one."""
    from paribus.specs.yaml_reader import read_file
    from paribus.studies.locate import available_studies, locate_study

    if source in session.index().presets:
        return False
    if not os.path.exists(source) and source not in available_studies(session.index()):  # noqa: PTH110  # Path's fails on long names
        return False
    return bool({"base", "vary", "variants", "changes"} & set(read_file(locate_study(source, session.index())[0]).data))


def _study(session: Session, source: str, overrides: tuple[str, ...], as_json: bool) -> int:
    import paribus
    from paribus.runner.match_time import unsolved_matches

    if overrides:
        what = f"{source} is a study, and what differs in one is said in its file"
        raise SpecError(
            Problem(code="no-overrides", path=overrides[0], message=what, valid="check it without overrides")
        )
    planned = paribus.study(source, registry=session.index())
    for trial in {(trial.variant, trial.setting): trial for trial in planned.plan.trials}.values():
        _builds(session, trial.spec)
    settings = [setting.name for setting in planned.plan.settings]
    left_out = [{"variant": each.variant, "why": each.reason} for each in planned.plan.excluded]
    if as_json:
        names = [variant.name for variant in planned.plan.variants]
        several = {"settings": settings} if len(settings) > 1 else {}
        found = {"ok": True, "problems": [], "study": planned.name, "variants": names, "excluded": left_out}
        out_json({**found, **several})
        return EXIT_OK
    out(f"# a study, {planned.name}: {len(planned.plan.variants)} variants, {len(planned.plan.trials)} trials")
    for variant in planned.plan.variants:
        out(variant.name)
    if len(settings) > 1:
        out(f"in {len(settings)} settings: {'; '.join(settings)}")
    for line in unsolved_matches(planned):
        out(line)
    for each in left_out:
        out(f"excluded: {each['variant']}: {each['why']}")
    return EXIT_OK


def _yaml(spec: Mapping[str, Any]) -> str:
    """A line for each key, as a person would write it."""
    import yaml

    text = ""
    for key, value in spec.items():
        flat = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
        text += f"{key}: {flat.removesuffix('...' + chr(10)).rstrip()}\n"
    return text
