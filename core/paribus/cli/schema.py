"""`paribus schema`: the JSON Schema of a study file."""

from __future__ import annotations

import click

from paribus.cli.console import Session, out_json
from paribus.cli.explain import KEY_DOCS
from paribus.cli.slot_contract import slot_contract
from paribus.errors import EXIT_OK
from paribus.hookspecs import SLOTS


@click.command("schema")
@click.argument("topic", type=click.Choice(["study"]))
@click.pass_obj
def verb(session: Session, topic: str) -> int:
    """Print the JSON Schema of a study file, for editors and for programs that write studies.

    `paribus schema study > study.schema.json`

    It has the installed components with their options, also those of `--plugin ./mine.py`.
    """
    from paribus.studies.json_schema import study_schema

    slots = {slot: slot_contract(slot).doc.partition("\n")[0] for slot in SLOTS}
    out_json(study_schema(session.index(), {**slots, **KEY_DOCS}))
    return EXIT_OK
