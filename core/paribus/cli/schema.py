"""`paribus schema`: JSON Schemas of study files, and of what commands print with `--json`."""

from __future__ import annotations

import click

from paribus.cli.console import Session, out_json
from paribus.cli.explain import KEY_DOCS
from paribus.cli.output_schemas import DOCUMENTS, output_schema
from paribus.cli.slot_contract import slot_contract
from paribus.errors import EXIT_OK
from paribus.hookspecs import SLOTS

STUDY = "study"


@click.command("schema")
@click.argument("topic", type=click.Choice([STUDY, *DOCUMENTS]))
@click.pass_obj
def verb(session: Session, topic: str) -> int:
    """Print the JSON Schema of a study file, or of the output of a command with --json.

    `paribus schema study > study.schema.json`

    That of a study has the installed components with their options, also those of `--plugin ./mine.py`.
    `paribus schema compare` describes the output of `paribus compare --json`, and `paribus schema plan` that of
    `paribus run --plan --json`.
    """
    if topic != STUDY:
        out_json(output_schema(topic))
        return EXIT_OK
    from paribus.studies.json_schema import study_schema

    slots = {slot: slot_contract(slot).doc.partition("\n")[0] for slot in SLOTS}
    out_json(study_schema(session.index(), {**slots, **KEY_DOCS}))
    return EXIT_OK
