"""`paribus check`: validate a spec or a study and print the resolved spec."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from paribus.cli._spec_source import parse_source
from paribus.cli.console import Session, memory_warning, note, out, out_versioned, refuse_repeated
from paribus.errors import EXIT_OK, ParibusError, Problem, SpecError


@click.command("check")
@click.argument("spec")
@click.argument("overrides", nargs=-1, callback=refuse_repeated)
@click.option("--json", "as_json", is_flag=True, help="Print ok, problems, warnings, hash and resolved spec as JSON.")
@click.pass_obj
def verb(session: Session, spec: str, overrides: tuple[str, ...], as_json: bool) -> int:
    """Validate a spec or a study, and print the resolved spec.

    `paribus check bert-tiny attention=gqa attention.kv_heads=2`

    SPEC is the name of a preset or study, or a path. All problems are reported at once, and no file is written. The
    printed spec has every default and is itself a valid spec. For a study, every variant is validated and listed.
    A warning says if a training step needs more memory than is free.
    """
    from paribus.specs import resolved, spec_hash
    from paribus.specs.attention_rules import partly_read_positions

    if "=" not in spec and _is_study(session, spec):
        return _study(session, spec, overrides, as_json)
    source, words = parse_source(spec, overrides)
    session.add_spec_plugins(source, words)
    resolved_spec = resolved(source, *words, registry=session.index())
    validate_training(session, resolved_spec)
    warnings = _memory_warnings(session, {"": resolved_spec})
    if as_json:
        document = {"ok": True, "problems": [], "warnings": warnings}
        out_versioned({**document, "hash": spec_hash(resolved_spec), "spec": resolved_spec})
        return EXIT_OK
    out(f"# {spec_hash(resolved_spec)}")
    for text in partly_read_positions(resolved_spec, session.index()):
        out(f"# position {text}; the other layers read none")
    out(_yaml(resolved_spec).rstrip())
    for warning in warnings:
        note(f"! {warning}")
    return EXIT_OK


def validate_training(session: Session, spec: Mapping[str, Any]) -> None:
    """Raise the errors that a training would have before its first step."""
    from paribus.assembly.metric_names import placeholder_vocabulary
    from paribus.models.assemble import validate_training

    registry = session.registry()
    validate_training(spec, registry, placeholder_vocabulary(spec, registry.index))


def _memory_warnings(session: Session, specs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a warning for each spec whose training step needs more memory than is free, by the name of the spec.

    No corpus is read, and files of a tokenizer or teacher may be missing here.
    """
    from paribus.assembly.metric_names import STAND_IN
    from paribus.models.assemble import needs_corpus
    from paribus.train.step_memory import memory_shortage

    registry, warnings = session.registry(), []
    for name, spec in specs.items():
        with suppress(ParibusError):
            size = STAND_IN if needs_corpus(spec, registry) else spec["dims"]["vocabulary"]
            shortage = memory_shortage({**spec, "dims": {**spec["dims"], "vocabulary": size}}, registry)
            if shortage is not None:
                warnings.append(f"{name}: {memory_warning(*shortage)}" if name else memory_warning(*shortage))
    return warnings


def _is_study(session: Session, source: str) -> bool:
    """Return whether a source is a study, by keys that specs do not have. Names of presets take precedence."""
    from paribus.specs.yaml_reader import read_file
    from paribus.studies.study import available_studies, locate_study

    if source in session.index().presets:
        return False
    if not os.path.exists(source) and source not in available_studies(session.index()):  # noqa: PTH110  # Path's fails on long names
        return False
    return bool({"base", "vary", "variants", "changes"} & set(read_file(locate_study(source, session.index())[0]).data))


def _study(session: Session, source: str, overrides: tuple[str, ...], as_json: bool) -> int:
    from paribus.planning.worth import OWN
    from paribus.program.command import command_of
    from paribus.program.input_files import check_program
    from paribus.runner.match_time import unsolved_matches

    if overrides:
        message = f"{source} is a study, and a study takes no overrides"
        raise SpecError(
            Problem(
                code="overrides-not-allowed",
                path=overrides[0],
                message=message,
                valid="no overrides; edit the study file",
            )
        )
    planned = session.study(source)
    trials = {(trial.variant, trial.setting): trial for trial in planned.plan.trials}
    warnings, commands = planned.warnings(), {}
    if planned.plan.study.program is None:
        for trial in trials.values():
            validate_training(session, trial.spec)
        specs = {", ".join(filter(None, names)): trial.spec for names, trial in trials.items()}
        warnings += _memory_warnings(session, specs)
    else:
        check_program(planned.plan.study.program["command"], Path.cwd())
        commands = {trial.variant: command_of(trial.spec).text for trial in reversed(planned.plan.trials)}
    settings = [setting.name for setting in planned.plan.settings]
    excluded = [{"variant": exclusion.variant, "reason": exclusion.reason} for exclusion in planned.plan.excluded]
    if as_json:
        names = [variant.name for variant in planned.plan.variants]
        settings_entry = {"settings": settings} if len(settings) > 1 else {}
        document = {"ok": True, "problems": [], "warnings": warnings, "study": planned.name}
        command_entry = {"commands": commands} if commands else {}
        out_versioned({**document, "variants": names, "excluded": excluded, **settings_entry, **command_entry})
        return EXIT_OK
    out(f"# study {planned.name}: {len(planned.plan.variants)} variants, {len(planned.plan.trials)} trials")
    for variant in planned.plan.variants:
        out(f"{variant.name}: {commands[variant.name]}" if commands else variant.name)
    at_budgets = [
        trials[0] for curve in planned.plan.curves for factor, trials in curve.trials.items() if factor != OWN
    ]
    for trial in at_budgets:
        out(f"{trial.variant}, {trial.setting}" + (f": {command_of(trial.spec).text}" if commands else ""))
    if len(settings) > 1:
        out(f"in {len(settings)} settings: {'; '.join(settings)}")
    for line in unsolved_matches(planned):
        out(line)
    for exclusion in excluded:
        out(f"excluded: {exclusion['variant']}: {exclusion['reason']}")
    for warning in warnings:
        note(f"! {warning}")
    return EXIT_OK


def _yaml(spec: Mapping[str, Any]) -> str:
    """Format a spec as YAML with one line for each key."""
    import yaml

    text = ""
    for key, value in spec.items():
        flat = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
        text += f"{key}: {flat.removesuffix('...' + chr(10)).rstrip()}\n"
    return text
