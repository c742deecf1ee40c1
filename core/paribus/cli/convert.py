"""`paribus convert`: a model of another library becomes a spec and our weights, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paribus.cli.console import Session, note, out, out_json, refuse_full
from paribus.errors import EXIT_OK, Problem, SpecError


@click.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("-o", "--out", "target", type=click.Path(path_type=Path), required=True, help="The folder to write.")
@click.option(
    "--to", "family", metavar="FAMILY", help="Of one of ours: what it is to become. Left out: what it can be."
)
@click.option("--as", "architecture", metavar="CLASS", help="Of one of ours that is several there: which of them.")
@click.option(
    "--beside", type=click.Path(path_type=Path), multiple=True, help="A network that was trained together with SOURCE."
)
@click.option("--json", "as_json", is_flag=True, help="What was written.")
@click.pass_obj
def verb(
    session: Session,
    source: Path,
    changes: tuple[str, ...],
    target: Path,
    family: str | None,
    architecture: str | None,
    beside: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Convert SOURCE, a folder with `config.json` and safetensors, or one of ours, into the other kind.

    KEY=VALUE reads one key of its configuration otherwise: `paribus convert gpt2/ -o ours attn_pdrop=0.1`
    """
    from paribus.conversion.source_model import CONFIG

    refuse_full(target)
    if (source / CONFIG).is_file():
        said = _read(session, [source, *beside], changes, target)
    else:
        said = _write(session, source, changes, target, family, architecture)
    if as_json:
        out_json(said)
    else:
        out(f"{said['parameters']:,} parameters: {said['from']} → {said['to']}")
        out(f"written to {target}")
        note(f"next: {said['next']}")
    return EXIT_OK


def _read(session: Session, sources: list[Path], changes: tuple[str, ...], target: Path) -> dict[str, Any]:
    import paribus
    from paribus.conversion.source_model import read_source

    found = [read_source(source) for source in sources]
    model = paribus.convert(found, registry=session.registry(), **_changes(changes))
    paribus.save(model, target)
    then = f'python -c "import paribus; model = paribus.load({str(target)!r})"'
    classes = " and ".join(each.architecture for each in found)
    return {"from": classes, "to": "a spec and its weights", "parameters": _count(model), "next": then}


def _write(
    session: Session,
    source: Path,
    changes: tuple[str, ...],
    target: Path,
    family: str | None,
    architecture: str | None,
) -> dict[str, Any]:
    import paribus

    if changes:
        what = f"`{changes[0]}` changes a configuration of another library, and this is a model of ours"
        raise SpecError(Problem(code="not-read", location=str(source), message=what))
    model = paribus.load(source, registry=session.registry())
    made = paribus.export(model, family, architecture=architecture, registry=session.registry())
    made.save(target)
    then = f"{made.architecture}.from_pretrained({str(target)!r})"
    return {"from": "a spec and its weights", "to": made.architecture, "parameters": _count(model), "next": then}


def _changes(words: tuple[str, ...]) -> dict[str, Any]:
    """KEY=VALUE, each value as YAML has it."""
    import yaml

    found: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            what = f"`{word}` says nothing of a key"
            raise SpecError(Problem(code="no-override", message=what, valid="KEY=VALUE, such as attn_pdrop=0.1"))
        found[key] = yaml.safe_load(value)
    return found


def _count(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
