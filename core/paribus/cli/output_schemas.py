"""JSON Schemas of what commands print with `--json`, from the types that it is made of."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from paribus.cli.console import JSON_VERSION
from paribus.cli.slot_contract import field_comments
from paribus.errors import Problem
from paribus.specs.json_schema import DRAFT, NULL, TEXT, Schema, any_of, closed

_PLAIN: Final[Mapping[Any, Schema]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: TEXT,
    types.NoneType: NULL,
    Any: {},
}
_NUMBER: Final[Schema] = any_of(_PLAIN[float], NULL)  # null where it is unknown or not finite
_INTERVAL: Final[Schema] = {"type": "array", "items": _PLAIN[float], "minItems": 2, "maxItems": 2}
_TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
_COUNT: Final[Schema] = _PLAIN[int]
_VALUES: Final[Schema] = {"type": "object", "description": "values by dotted key of a spec"}


def output_schema(topic: str) -> Schema:
    """Return the JSON Schema of the output of a command: its document, or the problems of an error."""
    definitions = {"document": _versioned(DOCUMENTS[topic]()), "error": _versioned(_error())}
    parts = _parts_of_tables() if DOCUMENTS[topic] is _verdicts else {}
    return {"$schema": DRAFT, "anyOf": [_part("document"), _part("error")], "$defs": {**definitions, **parts}}


def type_schema(annotation: Any) -> Schema:
    """Return the schema of the values of a type, as JSON."""
    if annotation in _PLAIN:
        return dict(_PLAIN[annotation])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        schema: Schema = {"enum": list(arguments)}
    elif origin in (Union, types.UnionType):
        schema = any_of(*map(type_schema, arguments))
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        schema = _by_name(type_schema(arguments[1]))
    elif origin is tuple and Ellipsis not in arguments:
        items = [type_schema(item) for item in arguments]
        schema = {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    elif isinstance(origin, type) and issubclass(origin, Sequence):
        schema = _list(type_schema(arguments[0]))
    else:
        schema = _record(_fields(annotation))
    return schema


def _fields(
    cls: type, *, without: Sequence[str] = (), only: Sequence[str] = (), finite: bool = True
) -> dict[str, Schema]:
    """Return the schema of each field of a class, with its comment; numbers that may not be finite may be null."""
    comments, fields = field_comments(cls), {}
    for name, annotation in get_type_hints(cls).items():
        if name not in without and (not only or name in only):
            schema = type_schema(annotation)
            schema = any_of(schema, NULL) if not finite and schema == _PLAIN[float] else schema
            fields[name] = {**schema, **({"description": comments[name]} if comments.get(name) else {})}
    return fields


def _record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of a mapping with these keys and no others."""
    return closed({**required, **(optional or {})}, required=list(required))


def _part(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _list(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def _by_name(value: Schema) -> Schema:
    return {"type": "object", "additionalProperties": value}


def _versioned(schema: Schema) -> Schema:
    """Return the schema of a document with the version of its format."""
    version = {"const": JSON_VERSION, "description": "version of the output of --json; a newer one has other keys"}
    forms = [_versioned(form) for form in schema.get("anyOf", [])]
    if forms:
        return any_of(*forms)
    return {
        **schema,
        "properties": {"schema": version, **schema["properties"]},
        "required": ["schema", *schema["required"]],
    }


def _error() -> Schema:
    return _record({"ok": {"const": False}, "problems": _list(type_schema(Problem))})


# --- compare, run ---


def _verdicts() -> Schema:
    """Return the schema of the verdicts of a study, which refers to `_parts_of_tables`."""
    from paribus.analysis.verdicts import Better

    last = {**_COUNT, "description": "evaluations whose mean is the metric of a trial; 1 if it is missing"}
    metric = _record({"name": TEXT, "better": type_schema(Better), "margin": _NUMBER}, {"stage": TEXT, "last": last})
    test = {"alpha": _PLAIN[float], "open_ended": _PLAIN[bool]}
    shared = {"study": TEXT, "metric": metric, **test, "seeds": _list(_COUNT)}
    table = {
        "baseline": _part("row"),
        "caption": {**_TEXTS, "description": "how to read the table, and what it generalises over"},
        "warnings": {**_TEXTS, "description": "facts that weaken the table"},
        "notes": {**_TEXTS, "description": "trials that are not in the table, and why"},
        "certificates": _by_name(_part("certificate")),
    }
    families = dict.fromkeys(("steps", "main_effects", "interactions", "shapley"), _part("family"))
    settings = _list(_record({"setting": TEXT, **table}, families))
    gates = _list(_record({"gate": TEXT, "tripped": _TEXTS, "inconclusive": _TEXTS}))
    optional = {**families, "settings": settings, **_sections(), "gates": gates}
    return _record({**shared, "rows": _list(_part("row")), **table}, optional)


def _parts_of_tables() -> dict[str, Schema]:
    """Return the schemas of a row with its costs, of a family of rows, and of a certificate."""
    from paribus.analysis.certificates import Certificate
    from paribus.analysis.costs import INFERENCE_LABELS, LABELS
    from paribus.analysis.table import CLAIM_FIELDS, OPTIONAL_FIELDS, Row

    costs: dict[str, Schema] = {}
    for name, label in {**LABELS, **INFERENCE_LABELS}.items():
        costs[name] = {**_NUMBER, "description": label}
        costs[f"{name}_ratio"] = {**_NUMBER, "description": "ratio to that of the baseline"}
        costs[f"{name}_interval"] = {**_INTERVAL, "description": "interval of the ratio"}
    contended = {**_PLAIN[bool], "description": "speeds are rough: other trials shared the machine"}
    fields = _fields(Row, without=("label", "costs", *OPTIONAL_FIELDS))
    claim = _record({"name": TEXT, **_fields(Row, only=CLAIM_FIELDS)}, _fields(Row, only=OPTIONAL_FIELDS))
    return {
        "row": _record(
            {**fields, "metric": TEXT, "contended": contended},
            {"setting": TEXT, **_fields(Row, only=("outliers", "across", "answers")), **costs},
        ),
        "certificate": _record({**_fields(Certificate), "ok": _PLAIN[bool], "text": TEXT}),
        "family": _record({"rows": _list(claim), "caption": _TEXTS}, {"certificates": _by_name(_part("certificate"))}),
    }


def _sections() -> dict[str, Schema]:
    """Return the sections about all settings of a study."""
    from paribus.analysis.scale_transfer import RankAgreement, Transfer
    from paribus.analysis.scaling_laws import PowerLaw

    matching = {"matching": TEXT}
    transfer = _record({"variant": TEXT, "transfer": type_schema(Transfer), "verdicts": _by_name(TEXT)}, matching)
    verdict = {"enum": ["agree", "reverse", "undecided"]}
    order = _record({"scales": _TEXTS, "verdict": verdict, **_fields(RankAgreement)}, matching)
    loss = _record({"seed": _COUNT, "loss": _PLAIN[float]})
    law = _record(
        {
            "variant": TEXT,
            **_fields(PowerLaw, without=("lines", "points", "against_baseline")),
            "lines": _list(_record({"seed": _COUNT, "exponent": _PLAIN[float], "log_factor": _PLAIN[float]})),
            "points": _list(_record({"parameters": _PLAIN[float], "losses": _list(loss)})),
            "against_baseline": any_of({"type": "array", "items": _NUMBER, "minItems": 3, "maxItems": 3}, NULL),
        }
    )
    return {
        "matching": _record({"unmatched": _TEXTS}),
        "transfer": _record({"comparisons": _list(any_of(transfer, order))}),
        "scaling": _record({"laws": _list(law)}),
        "tuning": _tuning(),
        "worth": _worth(),
    }


def _worth() -> Schema:
    """Return the schema of what each variant is worth in compute, by unit: steps, FLOPs, seconds."""
    from paribus.analysis.worth import Multiplier, Trend

    values = _list(_record({"seed": _COUNT, "value": _NUMBER}))
    variant = _record({"variant": TEXT, "units": _by_name(_record(_fields(Multiplier)))})
    curve = _list(_record({"budget": _PLAIN[float], "values": values}))
    return _record(
        {
            "settings": _list(_record({"baseline": curve, "variants": _list(variant)}, {"setting": TEXT})),
            "trends": _list(_record({"variant": TEXT, **_fields(Trend)})),
            "missing": {**_COUNT, "description": "trials of the baseline at other budgets without a record"},
        }
    )


def _tuning() -> Schema:
    from paribus.analysis.sensitivity import Sensitivity

    counts = dict.fromkeys(("diverged", "failed", "pending"), _COUNT)
    choice = _record(
        {
            "setting": TEXT,
            "variant": TEXT,
            "chosen": any_of(_VALUES, NULL),
            "default": _VALUES,
            "edges": {**_TEXTS, "description": "keys whose best value is at the edge of the tried ones"},
            "within_noise": {
                "type": "array",
                "items": {"type": "object"},
                "description": "values not told apart from it",
            },
            "tried": _list(_record({"values": _VALUES, "mean": _NUMBER, **counts})),
        }
    )
    costs = {"trials": _COUNT, "records": _COUNT, "total_flops": _NUMBER, "seconds": _PLAIN[float]}
    sensitivity = _list(_record(_fields(Sensitivity)))
    return _record({"seeds": _list(_COUNT), **costs, "choices": _list(choice), "sensitivity": sensitivity})


# --- other commands ---


def _excluded() -> Schema:
    return _list(_record({"variant": TEXT, "reason": TEXT}))


def _plan() -> Schema:
    """Return the schema of a plan: of models with their costs, or of a program with its commands."""
    from paribus.planning.estimate import Row

    optional = _fields(Row, only=("stage", "setting", "free_bytes"))
    row = _record({**_fields(Row, without=tuple(optional), finite=False), "seconds_per_trial": _NUMBER}, optional)
    seconds = {"loading_seconds": _PLAIN[float], "seconds": {**_NUMBER, "description": "time of all pending trials"}}
    jobs = {"jobs": {**_COUNT, "description": "concurrent trials"}}
    command = _record({"variant": TEXT, "trials": _COUNT, "pending": _COUNT, "command": TEXT}, {"setting": TEXT})
    of_models = {"variants": _list(row), "excluded": _excluded(), **seconds, **jobs}
    of_program = {"variants": _list(command), "excluded": _excluded(), "pending": _COUNT, **jobs}
    return any_of(_record(of_models, {"not_known": _TEXTS}), _record(of_program))


def _status() -> Schema:
    from paribus.cli.status import NOT_NEEDED
    from paribus.storage.store import State

    state = {"enum": [*get_args(State), NOT_NEEDED]}
    reason = {**TEXT, "description": "why the trial failed; empty if it did not"}
    trial = {"variant": TEXT, "seed": _COUNT, "state": state, "identity": TEXT, "reason": reason}
    step = {**_COUNT, "description": "last step of an interrupted trial"}
    return _record({"study": TEXT, "trials": _list(_record(trial, {"setting": TEXT, "stage": TEXT, "step": step}))})


def _calibration() -> Schema:
    from paribus.analysis.calibration_table import Calibration, Spread

    spread = _record(_fields(Spread, finite=False))
    spreads = {"baseline": spread, "independent": spread, "rows": _list(spread)}
    fields = _fields(Calibration, without=(*spreads, "setting", "family", "other_settings"))
    setting = {"setting": TEXT}
    return _record({**fields, **spreads}, {**setting, "other_settings": _list(_record({**fields, **spreads}, setting))})


def _conformance() -> Schema:
    """Return the schema of reports on components, or with `--list` of the checks of slots."""
    from paribus.testing.conformance import Report

    report = _record({"component": TEXT, **_fields(Report, without=("topic",)), "ok": _PLAIN[bool]})
    return any_of(_record({"reports": _list(report)}), _record({"checks": _by_name(_by_name(TEXT))}))


def _check() -> Schema:
    """Return the schema of a valid spec, or of a valid study."""
    valid: dict[str, Schema] = {"ok": {"const": True}, "problems": {"type": "array", "maxItems": 0}, "warnings": _TEXTS}
    spec = _record({**valid, "hash": TEXT, "spec": {"type": "object", "description": "resolved spec"}})
    study: dict[str, Schema] = {**valid, "study": TEXT, "variants": _TEXTS, "excluded": _excluded()}
    return any_of(spec, _record(study, {"settings": _TEXTS, "commands": _by_name(TEXT)}))


DOCUMENTS: Final[Mapping[str, Callable[[], Schema]]] = {
    "calibrate": _calibration,
    "check": _check,
    "compare": _verdicts,
    "compare-values": _verdicts,
    "conform": _conformance,
    "plan": _plan,
    "run": _verdicts,
    "status": _status,
}
"""Schema of the output of each command; `plan` is that of `run --plan`."""
