"""`paribus convert`: convert models between Hugging Face and Paribus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paribus.cli.console import Session, note, out, out_json, refuse_full
from paribus.errors import EXIT_OK, Problem, SpecError
from paribus.storage.saved_model import TOKENIZER, read_model


@click.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "-o", "--out", "target", type=click.Path(path_type=Path), required=True, help="New folder for the converted model."
)
@click.option("--to", "family", metavar="FAMILY", help="Hugging Face family of the result; default: the one that fits.")
@click.option(
    "--as", "architecture", metavar="CLASS", help="Hugging Face class of the result, if the family has several."
)
@click.option(
    "--beside",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Folder of a second network, such as the generator of ELECTRA.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
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
    """Convert a model between Hugging Face and Paribus.

    `paribus convert gpt2/ -o ours attn_pdrop=0.1`

    SOURCE is a folder with `config.json`, safetensors and `tokenizer.json`, or a Paribus model; the result is the other
    one. KEY=VALUE overrides one key of `config.json`. Without `tokenizer.json` the tokenizer is unknown, and training
    from the model needs `from.vocabulary=unchecked`.
    """
    from paribus.conversion.source_model import CONFIG

    refuse_full(target)
    if (source / CONFIG).is_file():
        report = _read(session, [source, *beside], changes, target)
    else:
        report = _write(session, source, changes, target, family, architecture)
    if as_json:
        out_json({key: value for key, value in report.items() if key != "reason"})
    else:
        out(f"{report['parameters']:,} parameters: {report['from']} → {report['to']}")
        out(f"written to {target}")
        if report["tokenizer"] is None and report["reason"]:
            note(f"no `{TOKENIZER}` written: {report['reason']}")
        note(f"next: {report['next']}")
    return EXIT_OK


def _read(session: Session, sources: list[Path], changes: tuple[str, ...], target: Path) -> dict[str, Any]:
    import paribus
    from paribus.conversion.source_model import read_source

    sources_read = [read_source(source) for source in sources]
    registry = session.registry()
    model = paribus.convert(sources_read, registry=registry, **_changes(changes))
    paribus.save(model, target, registry=registry)
    command = f'python -c "import paribus; model = paribus.load({str(target)!r})"'
    classes = " and ".join(source_model.architecture for source_model in sources_read)
    return {
        "from": classes,
        "to": "a Paribus model",
        "parameters": _count(model),
        "tokenizer": TOKENIZER if model.tokenizer else None,
        "reason": f"`{sources[0]}` has none; `save_pretrained` of a fast tokenizer writes it",
        "next": command,
    }


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
        message = f"`{changes[0]}` overrides a Hugging Face configuration, but SOURCE is a Paribus model"
        raise SpecError(Problem(code="unused-option", location=str(source), message=message))
    session.add_model_plugins(read_model(source))
    registry = session.registry()
    model = paribus.load(source, registry=registry)
    exported = paribus.export(model, family, architecture=architecture, registry=registry)
    exported.save(target)
    command = f"{exported.architecture}.from_pretrained({str(target)!r})"
    return {
        "from": "a Paribus model",
        "to": exported.architecture,
        "parameters": _count(model),
        "tokenizer": None if exported.tokenizer is None else TOKENIZER,
        "reason": exported.missing_tokenizer,
        "next": command,
    }


def _changes(words: tuple[str, ...]) -> dict[str, Any]:
    """Parse KEY=VALUE words, each value as YAML."""
    import yaml

    changes: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            message = f"expected KEY=VALUE, got `{word}`"
            raise SpecError(
                Problem(code="invalid-override", message=message, valid="KEY=VALUE, such as attn_pdrop=0.1")
            )
        changes[key] = yaml.safe_load(value)
    return changes


def _count(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
