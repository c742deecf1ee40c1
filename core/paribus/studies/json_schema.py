"""JSON Schema (draft 2020-12) of a study file, from the declarations of its keys and the installed components.

A file that it refuses is refused by `paribus check`. The reverse is not true: `paribus check` also has the rules that
relate values to each other, such as a number of key/value heads that does not divide the heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from paribus.program.command import RESERVED
from paribus.registry import Index
from paribus.registry.class_reader import group_options
from paribus.specs import fields
from paribus.specs.json_schema import (
    DRAFT,
    NULL,
    TEXT,
    Schema,
    SpecKeys,
    any_of,
    block_schema,
    closed,
    component_schemas,
    list_of,
    spec_keys,
)
from paribus.specs.program_spec import EFFECTS, PROGRAM
from paribus.studies import study_keys
from paribus.studies.designs import NAME
from paribus.studies.parse_options import MAX_TUNING_SEEDS, MIN_SCALES, PRESET, SCALE_NAME, logger_options
from paribus.studies.parse_vary import REASON
from paribus.studies.stages import STAGE_NAME
from paribus.studies.study import MAX_SEEDS
from paribus.train.trial_options import LOGGERS

_WORDS: Final = rf"(?:{'|'.join((*fields.KEYS, *fields.META))})(?:\.|$)"
_WHEN: Final[Schema] = {"$ref": "#/$defs/when"}
_METRIC: Final[Schema] = {"type": "string", "pattern": f"^(?:{study_keys.METRIC[0]})$"}
_FILE: Final[Schema] = {"type": "string", "pattern": r"/|\.ya?ml$"}
_PLUGINS: Final[Schema] = {"type": "array", "items": TEXT, "description": "plugins that the file needs"}
_FRACTION: Final = any_of(
    {"type": "string", "pattern": r"^(1/[0-9]+|0?\.[0-9]+)$"},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
)


def study_schema(index: Index, docs: Mapping[str, str]) -> Schema:
    """Return the JSON Schema of a study with the components of an index; `docs` describes the keys of a spec."""
    keys = spec_keys(index, docs)
    preset = {"enum": sorted(index.presets)}
    name, budget = STAGE_NAME.pattern, block_schema(group_options(study_keys.Budget), in_spec=False)
    stage = rf"(?!{_WORDS}){name}\.(?:{name}\.)?"
    definitions = {
        **component_schemas(index),
        **keys.definitions(list=list_of, axis=_axis),
        "spec": keys.mapping(_meta(preset)),
        "change": {**keys.mapping({"name": TEXT}, prefix=stage), "minProperties": 1},
        "vary": keys.mapping({}, prefix=stage, kind="axis"),
        "when": {"type": "object", "propertyNames": {"pattern": rf"^(?:{stage})?{_WORDS}"}},
        "budget": {**budget, "required": [], "minProperties": 1, "maxProperties": 1},
    }
    return {
        "$schema": DRAFT,
        "type": "object",
        "if": {"required": [PROGRAM]},
        "then": {"$ref": "#/$defs/program-study"},
        "else": {"$ref": "#/$defs/study"},
        "$defs": {**definitions, "study": _study(keys, preset, stage), "program-study": _program_study()},
    }


def _study(keys: SpecKeys, preset: Schema, stage: str) -> Schema:
    """Return the schema of a study of specs."""
    sections: dict[str, Schema] = {
        "base": any_of(preset, _FILE, {"$ref": "#/$defs/spec"}),
        "vary": {"$ref": "#/$defs/vary"},
        "variants": {"type": "array", "items": {"$ref": "#/$defs/change"}},
        "changes": {"type": "array", "items": {"$ref": "#/$defs/change"}},
        "exclude": {"type": "array", "items": keys.mapping({REASON: TEXT})},
        "scales": _scales(preset, {"$ref": "#/$defs/spec"}),
        "tune": keys.mapping({"seeds": _seeds(MAX_TUNING_SEEDS)}, prefix=stage, kind="list"),
        "stages": _stages(keys),
        "budget": {"$ref": "#/$defs/budget"},
        "match": _match(),
        "metric": any_of(_METRIC, _metric_block()),
        "loggers": any_of(_logger(), {"type": "array", "items": _logger()}),
        "evaluate": keys.names["evaluate"],
        "measure": keys.names["measure"],
    }
    block = block_schema(group_options(study_keys.StudyKeys), in_spec=False, **_common(), **sections)
    words = {"pattern": rf"^(?:{'|'.join(fields.KEYS)}|{NAME}|{REASON}|seeds)(?:\.|$)"}
    plain = {"propertyNames": words}
    changes = {"items": plain}
    single = {"vary": plain, "tune": plain, "variants": changes, "changes": changes, "exclude": changes}
    return {**block, "if": {"not": {"required": ["stages"]}}, "then": {"properties": single}}


def _program_study() -> Schema:
    """Return the schema of a study of a program, whose options are free."""
    options: Schema = {"type": "object", "propertyNames": {"not": {"pattern": rf"^(?:{'|'.join(RESERVED)})(?:\.|$)"}}}
    effect: Schema = {"enum": list(EFFECTS)}
    sections: dict[str, Schema] = {
        "base": options,
        "vary": {**options, "additionalProperties": _axis({}, when={"type": "object"})},
        "variants": {"type": "array", "items": options},
        "changes": {"type": "array", "items": options},
        "exclude": {"type": "array", "items": {"type": "object", "properties": {REASON: TEXT}}},
        "scales": _scales(None, options),
        "effects": {"type": "object", "additionalProperties": any_of(effect, list_of(effect))},
        "tune": {**options, "properties": {"seeds": _seeds(MAX_TUNING_SEEDS)}, "additionalProperties": list_of({})},
    }
    return block_schema(group_options(study_keys.ProgramKeys), in_spec=False, **_common(), **sections)


def _common() -> dict[str, Schema]:
    """Return the schemas of keys of every study whose declarations do not describe their values."""
    stop = block_schema(group_options(study_keys.Stop), in_spec=False)
    when = {"enum": stop["properties"]["when"]["enum"]}
    return {"fraction": _FRACTION, "seeds": _seeds(MAX_SEEDS), "stop": any_of(stop, when), "plugins": _PLUGINS}


def _meta(preset: Schema) -> dict[str, Schema]:
    version = {"const": fields.SCHEMA, "description": "version of the format of specs"}
    return {PRESET: {**preset, "description": "spec that this one changes"}, "paribus": version, "plugins": _PLUGINS}


def _seeds(limit: int) -> Schema:
    seed = {"type": "integer", "minimum": 0}
    return any_of({"type": "integer", "minimum": 1, "maximum": limit}, {**list_of(seed), "uniqueItems": True})


def _axis(value: Schema, when: Schema = _WHEN) -> Schema:
    """Return the schema of the values of an axis, each perhaps with a condition."""
    conditional = closed({"value": value, "when": when}, required=["value", "when"])
    values = list_of(any_of(value, conditional) if value else {})
    return any_of(values, closed({"values": values, "when": when}, required=["values"]))


def _scales(preset: Schema | None, changes: Schema) -> Schema:
    named = {"propertyNames": {"pattern": f"^(?:{SCALE_NAME.pattern})$"}, "minProperties": MIN_SCALES}
    by_name = {"type": "object", **named, "additionalProperties": {**changes, "minProperties": 1}}
    if preset is None:
        return by_name
    return any_of({"type": "array", "items": preset, "minItems": MIN_SCALES}, by_name)


def _match() -> Schema:
    block = block_schema(group_options(study_keys.Match), in_spec=False)
    return any_of(block, list_of(any_of(block, {"const": "none"}, NULL)))


def _metric_block() -> Schema:
    """Return the schema of the block `metric`, which has a name, or the metrics of several tasks."""
    tasks = {"type": "object", "additionalProperties": any_of(_METRIC, list_of(_METRIC)), "minProperties": 2}
    block = block_schema(group_options(study_keys.Metric), in_spec=False, tasks=tasks)
    return {**block, "required": [], "anyOf": [{"required": ["name"]}, {"required": ["tasks"]}]}


def _logger() -> Schema:
    forms = [block_schema(logger_options(name), in_spec=False, name={"const": name}) for name in LOGGERS]
    return any_of({"enum": list(LOGGERS)}, *forms)


def _stages(keys: SpecKeys) -> Schema:
    names = {"propertyNames": {"pattern": f"^(?:{STAGE_NAME.pattern})$"}, "minProperties": 1}
    source = block_schema(group_options(study_keys.StageSource), in_spec=False)
    own = block_schema(
        group_options(study_keys.StageKeys),
        in_spec=False,
        budget={"$ref": "#/$defs/budget"},
        tasks={"type": "object", **names, "additionalProperties": keys.mapping({"budget": {"$ref": "#/$defs/budget"}})},
        **{"from": any_of(source, keys.names["from"])},
    )["properties"]
    return {"type": "object", **names, "additionalProperties": keys.mapping(own)}
