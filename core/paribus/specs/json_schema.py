"""JSON Schema (draft 2020-12) of options, and of the keys of a spec with every installed component.

It does not contain the rules that relate values to each other, such as `Divides("heads")`: `paribus check` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, final

from paribus.hookspecs import SLOTS
from paribus.registry import Index
from paribus.schema import Kind, Limit, Names, Option, Pattern, Range
from paribus.specs import fields
from paribus.specs.model_sources import SOURCES, VOCABULARIES
from paribus.specs.trainer_options import trainer_arguments

Schema = dict[str, Any]

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
NULL: Final[Schema] = {"type": "null"}
TEXT: Final[Schema] = {"type": "string"}
REFERENCE: Final[Schema] = {"$ref": "#/$defs/reference"}
REFERENCES: Final[Schema] = {
    "description": "reference to another value of the spec, such as ${dims.width}; ??? is a value that is missing yet",
    "type": "string",
    "pattern": r"\$\{|^\?\?\?$",
}
LISTED: Final = {slot: slot for slot in (*fields.CYCLED, *fields.SUMMED)} | {
    "evaluate": "objective",
    "measure": "measure",
}  # keys that take a list of components -> slot
_TYPES: Final = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "mapping": "object"}
_BOUNDS: Final = {"low": "minimum", "high": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}


def any_of(*schemas: Schema) -> Schema:
    """Return the schema of a value that one of several schemas accepts."""
    return schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}


def list_of(item: Schema) -> Schema:
    """Return the schema of a list with at least one item."""
    return {"type": "array", "items": item, "minItems": 1}


def closed(properties: Mapping[str, Schema], **more: Any) -> Schema:
    """Return the schema of a mapping that has no other keys."""
    return {"type": "object", "properties": dict(properties), "additionalProperties": False, **more}


def option_schema(option: Option, *, in_spec: bool, form: Schema | None = None) -> Schema:
    """Return the schema of an option, with its description; `form` is that of a value that its kind does not describe.

    Values of a spec may be references, and its mappings are merged over those of a preset, so no key is required. In
    other blocks of keys, null counts as missing.
    """
    kind = option.kind
    forms = [form] if form is not None else _alternatives(kind, option.limits, in_spec=in_spec)
    is_missing = not in_spec and not option.required and option.default in (None, [], {}, "")
    if (kind.optional and kind.name != "any") or is_missing:
        forms.append(NULL)
    if in_spec:
        forms.append(REFERENCE)
    default = {} if option.required or option.default is None else {"default": option.default}
    return {**any_of(*forms), "description": option.doc, **default}


def block_schema(options: Sequence[Option], *, in_spec: bool, **forms: Schema) -> Schema:
    """Return the schema of a block of keys, with the `forms` of those whose kinds do not describe them."""
    properties = {
        option.name: option_schema(option, in_spec=in_spec, form=forms.get(option.name)) for option in options
    }
    required = [option.name for option in options if option.required and not in_spec]
    return closed(properties, **({"required": required} if required else {}))


def _alternatives(kind: Kind, limits: Sequence[Limit], *, in_spec: bool) -> list[Schema]:
    """Return the schemas of the forms that `Validator.read_kind` accepts, besides null."""
    if kind.name == "slot":
        return [{"$ref": f"#/$defs/{kind.slot}"}]
    if kind.name == "choice":
        return [{"enum": [choice for name in kind.choices for choice in (name, *_as_number(name))]}]
    if kind.name == "list":
        return _list_alternatives(kind, limits, in_spec=in_spec)
    if kind.name == "group":
        block = block_schema(kind.options, in_spec=in_spec)
        name = next((option for option in kind.options if option.name == "name"), None)
        others = [option for option in kind.options if option.required and option.name != "name"]
        is_short = name is not None and (in_spec or not others)
        return [block, option_schema(name, in_spec=in_spec)] if name is not None and is_short else [block]
    return [{"type": _TYPES[kind.name], **_limit_keywords(kind, limits)}]


def _list_alternatives(kind: Kind, limits: Sequence[Limit], *, in_spec: bool) -> list[Schema]:
    items = [_alternatives(item, limits, in_spec=in_spec) for item in kind.items]
    schemas = [
        any_of(*forms, *([NULL] if item.optional else [])) for item, forms in zip(kind.items, items, strict=True)
    ]
    if in_spec:
        schemas = [any_of(schema, REFERENCE) for schema in schemas]
    if len(items) > 1:
        return [{"type": "array", "prefixItems": schemas, "minItems": len(items), "maxItems": len(items)}]
    single = [] if kind.items[0].name == "mapping" else items[0]  # one item stands for a list of one
    return [{"type": "array", "items": schemas[0]}, *single]


def _limit_keywords(kind: Kind, limits: Sequence[Limit]) -> Schema:
    keywords: Schema = {}
    for limit in limits:
        if isinstance(limit, Range) and kind.name in ("int", "float"):
            bounds = {name: getattr(limit, key) for key, name in _BOUNDS.items()}
            keywords |= {name: value for name, value in bounds.items() if value is not None}
        elif isinstance(limit, Pattern) and kind.name == "str":
            keywords["pattern"] = f"^(?:{limit.regex})$"
        elif isinstance(limit, Names) and kind.name == "str":
            keywords = {"enum": list(limit.names)}
    return keywords


def _as_number(choice: str) -> list[float]:
    """Return the number that YAML reads from a choice, such as 13 from "13"."""
    try:
        return [int(choice) if choice.isdecimal() else float(choice)]
    except ValueError:
        return []


# --- components ---


def component_schemas(index: Index) -> dict[str, Schema]:
    """Return the definitions of all components: `attention.gqa`, and `attention` for any component of the slot."""
    schemas: dict[str, Schema] = {"reference": REFERENCES}
    for slot in SLOTS:
        entries = index.entries[slot]
        for name, entry in entries.items():
            options = {option.name: option_schema(option, in_spec=True) for option in entry.options}
            schemas[f"{slot}.{name}"] = closed({"name": {"const": name}, **options}, description=entry.summary)
        names = {"enum": list(entries), "enumDescriptions": [entry.summary for entry in entries.values()]}
        schemas[f"{slot}.name"] = any_of(names, REFERENCE) if entries else REFERENCE
        schemas[f"{slot}.options"] = closed({"name": TEXT, **_options_of_slot(index, slot)})
        chosen = [_if_named(slot, name) for name in entries]
        unnamed = {"if": {"not": {"required": ["name"]}}, "then": {"$ref": f"#/$defs/{slot}.options"}}
        named = {"properties": {"name": {"$ref": f"#/$defs/{slot}.name"}}, "allOf": [unnamed, *chosen]}
        schemas[f"layers.{slot}"] = _slot_value(slot, slot)
        schemas[slot] = any_of({"$ref": f"#/$defs/{slot}.name"}, {"type": "object", **named})
    return schemas


def _if_named(slot: str, name: str) -> Schema:
    condition = {"properties": {"name": {"const": name}}, "required": ["name"]}
    return {"if": condition, "then": {"$ref": f"#/$defs/{slot}.{name}"}}


def _options_of_slot(index: Index, slot: str) -> dict[str, Schema]:
    """Return the options of all components of a slot, for a mapping without a name, which changes that of a preset."""
    options = (option for entry in index.entries[slot].values() for option in entry.options)
    return _united((option.name, option_schema(option, in_spec=True)) for option in options)


def _united(named: Iterable[tuple[str, Schema]]) -> dict[str, Schema]:
    """Return schemas by name; one that is there several times accepts each form, and has the first description."""
    groups: dict[str, list[Schema]] = {}
    for name, schema in named:
        groups.setdefault(name, []).append(schema)
    forms = {name: {repr(form): form for form in map(_without_notes, schemas)} for name, schemas in groups.items()}
    return {
        name: {**any_of(*forms[name].values()), "description": schemas[0].get("description", "")}
        for name, schemas in groups.items()
    }


def _notes(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key in ("description", "default")}


def _without_notes(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key not in ("description", "default")}


# --- keys of a spec ---


@final
@dataclass(frozen=True)
class SpecKeys:
    """Keys of a spec as a mapping may have them, nested or dotted, each with the schema of its value."""

    names: Mapping[str, Schema]
    patterns: Mapping[str, Schema]  # by the regular expression of keys with an index or a part

    @cached_property
    def _groups(self) -> tuple[tuple[Schema, list[str]], ...]:
        """Return each form of values with the regular expressions of its keys."""
        groups = {repr(form): (form, names) for form, names in _by_form(self.names.items())}
        for regex, schema in self.patterns.items():
            form = _without_notes(schema)
            groups.setdefault(repr(form), (form, []))[1].append(regex)
        return tuple(groups.values())

    def definitions(self, **kinds: Callable[[Schema], Schema]) -> dict[str, Schema]:
        """Return a definition for each form of values, `value-3`, and for each of other `kinds` of it, `list-3`."""
        values = {f"value-{number}": form for number, (form, _) in enumerate(self._groups)}
        others = {
            f"{kind}-{number}": of({"$ref": f"#/$defs/value-{number}"})
            for kind, of in kinds.items()
            for number, _ in enumerate(self._groups)
        }
        return {**values, **others}

    def mapping(self, more: Mapping[str, Schema], *, kind: str = "value", prefix: str = "") -> Schema:
        """Return the schema of a mapping with these keys, perhaps behind a prefix, and of `more`.

        Its values are the definitions of a `kind`. Keys behind a prefix share a pattern if their values have one form:
        one for each key would need megabytes. Other keys are no patterns, for which editors complete nothing.
        """
        notes = {name.replace(".", r"\."): (name, _notes(schema)) for name, schema in self.names.items()}
        properties: dict[str, Schema] = {}
        patterns: dict[str, Schema] = {}
        for number, (_, regexes) in enumerate(self._groups):
            value = {"$ref": f"#/$defs/{kind}-{number}"}
            for name, note in (notes[regex] for regex in regexes if regex in notes):
                properties[name] = {**value, **note}
            plain = [regex for regex in regexes if regex in self.patterns]
            patterns |= {f"^(?:{'|'.join(plain)})$": value} if plain else {}
            patterns |= {f"^(?:{prefix})(?:{'|'.join(regexes)})$": value} if prefix else {}
        ordered = {name: properties[name] for name in self.names}
        return closed({**ordered, **more}, patternProperties=patterns)


def spec_keys(index: Index, docs: Mapping[str, str]) -> SpecKeys:
    """Return the keys of a spec, nested or dotted; `docs` describes slots, and keys without options."""
    components = {slot: _slot_value(slot, slot) for slot in SLOTS if slot in fields.KEYS}
    components |= {key: _slot_value(key, slot) for key, slot in LISTED.items()}
    blocks = {
        "dims": block_schema(fields.DIMS, in_spec=True),
        "data": _nullable(block_schema(fields.DATA, in_spec=True)),
        "trainer": _nullable(_trainer()),
        "freeze": any_of(TEXT, list_of(TEXT), block_schema(fields.FREEZE_OPTIONS, in_spec=True), NULL),
        **{key: any_of(TEXT, _source(key), NULL) for key in SOURCES},
    }
    parts = closed({part: _nullable(_part()) for part in _parts(index)})
    schemas = {**components, **blocks, "parts": _nullable(parts)}
    schemas = {key: {**schema, **_description(docs, key)} for key, schema in schemas.items()}
    schemas |= {option.name: option_schema(option, in_spec=True) for option in (fields.DROPOUT, fields.SEED)}
    dotted = {f"{key}.{name}": schema for key in blocks for name, schema in _inner(schemas[key]).items()}
    for key in components:
        dotted |= {
            f"{key}.{path}": schema for path, schema in _united(_option_paths(index, LISTED.get(key, key))).items()
        }
    assert set(schemas) == set(fields.KEYS), "every key of a spec has a schema"
    schemas |= dotted
    return SpecKeys(schemas, _key_patterns(index, schemas))


def _key_patterns(index: Index, schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return the schemas of keys with an index (`attention.0`) or a part, by regular expression."""
    part = rf"parts\.(?:{'|'.join(_parts(index))})"
    patterns = {part: any_of(_part(), NULL), rf"{part}\.dims": schemas["dims"], rf"{part}\.cross": _nullable(_cross())}
    patterns |= {rf"{part}\.dims\.{name}": schemas[f"dims.{name}"] for name in fields.PART_DIMS}
    for key, slot in LISTED.items():
        part_key = rf"{part}\.(?:cross\.)?{key}"
        owner = rf"(?:{part_key}|{key})" if key in fields.CYCLED else key
        patterns[rf"{owner}\.[0-9]+"] = {"$ref": f"#/$defs/{slot}"}
        options = [(name.removeprefix(f"{key}."), it) for name, it in schemas.items() if name.startswith(f"{key}.")]
        for form, names in _by_form(options):
            patterns[rf"{owner}(?:\.[0-9]+)?\.(?:{'|'.join(names)})"] = form
        if key in fields.CYCLED:
            patterns[part_key] = schemas[key]
    deep = "|".join(slot for slot in SLOTS if slot in fields.KEYS)
    patterns[
        rf"(?:{part}\.(?:cross\.)?)?(?:{deep})(?:\.[a-z][a-z0-9_-]*){{3,}}"
    ] = {}  # nested components of components
    patterns[r"trainer\.(?:compile|max_time)\.[a-z_]+"] = {}
    return patterns


def _by_form(named: Iterable[tuple[str, Schema]]) -> Iterable[tuple[Schema, list[str]]]:
    """Return each form of schemas with the regular expressions of the names that have it."""
    groups: dict[str, tuple[Schema, list[str]]] = {}
    for name, schema in named:
        form = _without_notes(schema)
        groups.setdefault(repr(form), (form, []))[1].append(name.replace(".", r"\."))
    return groups.values()


def _parts(index: Index) -> list[str]:
    return sorted({part.name for entry in index.entries["topology"].values() for part in entry.parts})


def _slot_value(key: str, slot: str) -> Schema:
    component = {"$ref": f"#/$defs/{slot}"}
    return any_of(component, *([list_of(component)] if key in LISTED else []), NULL)


def _nullable(schema: Schema) -> Schema:
    return any_of(schema, NULL)


def _description(docs: Mapping[str, str], key: str) -> Schema:
    return {"description": docs[key]} if key in docs else {}


def _inner(schema: Schema) -> dict[str, Schema]:
    """Return the properties of a mapping, or of the mapping among several forms."""
    return next((dict(form["properties"]) for form in schema.get("anyOf", [schema]) if "properties" in form), {})


def _option_paths(index: Index, slot: str) -> Iterator[tuple[str, Schema]]:
    """Yield the paths of options below a slot: `scores`, `scores.bias`, and `expert.inner` of a nested component."""
    yield "name", {"$ref": f"#/$defs/{slot}.name", "description": f"component of the slot {slot}"}
    yield from _options_of_slot(index, slot).items()
    for entry in index.entries[slot].values():
        for option in entry.options:
            for inner in option.kind.options:
                yield f"{option.name}.{inner.name}", option_schema(inner, in_spec=True)
            if option.kind.name == "slot":
                nested = option.kind.slot
                yield f"{option.name}.name", {"$ref": f"#/$defs/{nested}.name", "description": option.doc}
                yield from ((f"{option.name}.{name}", it) for name, it in _options_of_slot(index, nested).items())


def _trainer() -> Schema:
    """Return the schema of `trainer`: arguments of Lightning, whose values Lightning checks, and our own."""
    arguments: dict[str, Schema] = {name: {"description": doc} for name, doc in trainer_arguments().items()}
    own = {option.name: _nullable(option_schema(option, in_spec=True)) for option in fields.TRAINER_OPTIONS}
    own["max_steps"] = _nullable(option_schema(fields.STEPS, in_spec=True))
    own[fields.COMPILE] = any_of({"type": "boolean"}, block_schema(fields.COMPILE_OPTIONS, in_spec=True), NULL)
    properties = {name: {**schema, **own.get(name, {})} for name, schema in arguments.items()} or own
    return {"type": "object", "properties": properties, "additionalProperties": not arguments}


def _source(key: str) -> Schema:
    """Return the schema of a saved model by its folder, with other keys that a resolved spec has."""
    texts = dict.fromkeys(("name", "sha256", *(["trial"] if key == "from" else [])), TEXT)
    learned = {"learned": {"type": "object"}} if key == "from" else {}
    return closed({**texts, "vocabulary": {"enum": list(VOCABULARIES[key])}, **learned})


def _part() -> Schema:
    dims = block_schema([option for option in fields.DIMS if option.name in fields.PART_DIMS], in_spec=True)
    slots = {slot: {"$ref": f"#/$defs/layers.{slot}"} for slot in fields.CYCLED}
    return closed({"dims": _nullable(dims), **slots, "cross": _nullable(_cross())})


def _cross() -> Schema:
    return closed({slot: {"$ref": f"#/$defs/layers.{slot}"} for slot in fields.CROSS})
