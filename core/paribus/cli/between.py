"""`paribus between`: studies of what makes the difference between two specs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from paribus.cli.console import Session, out, out_json, refuse_repeated, table
from paribus.errors import EXIT_OK, ParibusError, Problem, SpecError, StoreError, join_names

if TYPE_CHECKING:
    from paribus.planning.between import Ladder
    from paribus.specs.tree import Tree

MAX_NAME: Final = 50  # of a study, without `-without`
Matching = Literal["auto", "none", "params", "flops"]


@click.command("between")
@click.argument("first")
@click.argument("second")
@click.argument("overrides", nargs=-1, callback=refuse_repeated)
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), default=".", help="Folder of the studies.")
@click.option("--seeds", type=click.IntRange(2, 10_000), default=5, show_default=True, help="Seeds of each variant.")
@click.option(
    "--match",
    type=click.Choice(["auto", "none", "params", "flops"]),
    default="auto",
    show_default=True,
    help="What every rung has as much of as FIRST; auto: parameters, if a rung changes them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the rungs and the files as JSON.")
@click.pass_obj
def verb(
    session: Session,
    first: str,
    second: str,
    overrides: tuple[str, ...],
    folder: Path,
    seeds: int,
    match: Matching,
    *,
    as_json: bool,
) -> int:
    """Write the studies that show which differences between two specs matter.

    `paribus between bert-tiny modernbert-tiny tokenizer=bytes dims.vocabulary=null`

    FIRST and SECOND are presets, files, or folders of saved and converted models, of which only the architecture is
    used. OVERRIDES apply to both. One study is a ladder: each rung gives one more slot the value that SECOND has. The
    other one leaves each of these changes out. Every rung is checked. Data, tokenizer and steps are those of FIRST.
    """
    from paribus.planning.between import between, study_documents
    from paribus.train.spec_costs import count_quantity

    before, after = (_load(session, source, overrides) for source in (first, second))
    ladder = between(before, after, session.index(), partial(count_quantity, "params", classes=session.registry()))
    name = f"{_name(first)}-to-{_name(second)}"[:MAX_NAME]
    make = partial(study_documents, ladder, name=name, seeds=seeds)
    on = ("params" if ladder.changes_size else "") if match == "auto" else match.replace("none", "")
    documents, unmatched = make(match=on), ""
    try:
        _check_studies(session, documents)
    except ParibusError as error:
        if not on:
            raise
        unmatched = f"Not matched on {on}: {error.problems[0].message}."
        if match != "auto":
            raise SpecError(Problem(code="cannot-match", message=unmatched, valid="--match none")) from error
        documents = make(match="")
        _check_studies(session, documents)
    lines = [*_lines(ladder), *filter(None, [unmatched])]
    about = [f"From {first} to {second}.", *lines]
    files = {folder / f"{study}.yaml": _yaml(document, about) for study, document in documents.items()}
    _write(files)
    if as_json:
        rungs = [{"name": rung.name, "changes": rung.changes, "parameters": rung.parameters} for rung in ladder.rungs]
        held = [{"path": it.path, "first": it.before, "second": it.after} for it in ladder.held]
        out_json({"rungs": rungs, "held": held, "files": [str(path) for path in files]})
        return EXIT_OK
    rows = [("rung", "parameters", "change"), (first, f"{ladder.parameters:,}", "")]
    rows += [(f"+ {rung.name}", f"{rung.parameters:,}", _changes(rung.changes)) for rung in ladder.rungs]
    for line in table(rows):
        out(line)
    out()
    for line in lines:
        out(line)
    out(f"written: {', '.join(map(str, files))}")
    out(f"next: paribus run {next(iter(files))}")
    return EXIT_OK


def _name(source: str) -> str:
    """Return the last part of a source as a part of a study's name."""
    return re.sub(r"[^a-z0-9]+", "-", Path(source).stem.lower() if "/" in source else source.lower()).strip("-")


def _load(session: Session, source: str, overrides: tuple[str, ...]) -> Tree:
    """Return the values of a preset, of a file, or of the architecture of a saved model."""
    from paribus.specs.load import load
    from paribus.storage.saved_model import read_model, unbound

    if not Path(source).is_dir():
        session.add_spec_plugins(source, overrides)
        return load(source, overrides, session.index())
    session.add_spec_plugins({"from": source}, overrides)
    spec = unbound(read_model(source).spec)
    return load({key: value for key, value in spec.items() if key != "from"}, overrides, session.index())


def _check_studies(session: Session, documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Plan the studies, so that every rung is known to be valid."""
    from paribus.cli.check import validate_training
    from paribus.planning.api import study

    for document in documents.values():
        planned = study(document, registry=session.registry(), read_only=True)
        for trial in {trial.variant: trial for trial in planned.plan.trials}.values():
            validate_training(session, trial.spec)


def _lines(ladder: Ladder) -> Iterator[str]:
    """Yield what a reader must know about the rungs."""
    for rung in ladder.rungs:
        if len(rung.keys) > 1:
            yield f"`{rung.keys[0]}` is valid there only together with {join_names(rung.keys[1:])}: they are one rung."
        if rung.follows:
            yield f"{rung.name} also changes {join_names(rung.follows)}."
    if ladder.held:
        yield "Held at the value of the first, so that all rungs read the same batches for as many steps:"
        yield from (f"  {item.path}: {item.after!r} in the second" for item in ladder.held)


def _changes(changes: Mapping[str, Any]) -> str:
    from paribus.studies.designs import format_value

    return " ".join(f"{key}={format_value(value)}" for key, value in changes.items())


def _yaml(document: Mapping[str, Any], about: list[str]) -> str:
    """Return a study as YAML: a line for each change, and comments first."""
    import yaml

    def dump(value: Any) -> str:
        text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
        return str(text).removesuffix("...\n").strip()

    text = "".join(f"# {line}\n" for line in about)
    for key, value in document.items():
        if key == "changes":
            text += "changes:\n" + "".join(f"  - {dump(change)}\n" for change in value)
        elif key == "base":
            text += "base:\n" + "".join(f"  {dump({inner: it})[1:-1]}\n" for inner, it in value.items())
        else:
            text += f"{key}: {dump(value)}\n"
    return text


def _write(files: Mapping[Path, str]) -> None:
    """Write new files; an existing one is an error."""
    for path in files:
        if path.exists():
            raise StoreError(
                Problem(code="exists", location=str(path), message="this file exists", valid="--output FOLDER")
            )
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
