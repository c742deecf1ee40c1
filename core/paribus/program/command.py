"""Command of a trial: a program with the options of a spec, as words, environment variables or a file.

A spec of a program is its options, with two keys besides: `program`, which says how it is run and measured, and `seed`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from paribus.errors import closest_match, join_names
from paribus.specs.program_spec import PROGRAM

SEED: Final = "seed"
RESERVED: Final = (PROGRAM, SEED)
ENVIRONMENT: Final = "environment"  # options as variables
OPTIONS: Final = "--{key}={value}"
FILES: Final = {"json": "options.json", "yaml": "options.yaml"}  # placeholder -> file with all options
VALID_OPTIONS: Final = "--{key}={value}, {key}={value}, --config {json}, --config {yaml}, or environment"
_PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w.-]*)\}")

Spec = Mapping[str, Any]


@final
@dataclass(frozen=True)
class Command:
    """Words of a command, the variables that it needs, and the files that it reads."""

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # text by name

    @property
    def text(self) -> str:
        """The command as a shell would read it, with its variables."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join((*variables, shlex.join(self.words)))


def options_of(spec: Spec) -> dict[str, Any]:
    """Return the options of a spec by dotted key, without those that are null; the seed comes last."""
    options = {key: value for key, value in _flat(spec) if value is not None and key.partition(".")[0] not in RESERVED}
    return {**options, spec[PROGRAM]["seed_option"]: spec[SEED]}


def command_of(spec: Spec) -> Command:
    """Return the command of a trial."""
    program, options = spec[PROGRAM], options_of(spec)
    values = {**options, SEED: spec[SEED]}
    words, used = _filled(shlex.split(program["command"]), values)
    if SEED in used:
        used.add(program["seed_option"])
    rest = {key: value for key, value in options.items() if key not in used}
    template = str(program["options"])
    files = {name for name in FILES if name in used}
    variables: dict[str, str] = {}
    if template == ENVIRONMENT:
        variables = {variable_name(key): value_text(value) for key, value in rest.items()}
    elif not files:
        pieces = shlex.split(template)
        if {"key", "value"} & set(placeholders(template)):
            for key, value in rest.items():
                added, _ = _filled(pieces, {"key": key, "value": value})
                words += added
        else:
            added, found = _filled(pieces, {})
            words, files = [*words, *added], found & set(FILES)
    return Command(tuple(words), variables, {FILES[name]: _document(name, spec) for name in sorted(files)})


def command_problems(command: str, options: str, keys: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the key of a study, the message, what is valid, and a suggestion, for each fault of the two templates."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        yield PROGRAM, f"`{command}` cannot be split into words: {error}", "a command as in a shell", ""
        return
    if not words:
        yield PROGRAM, "the command is empty", "a command: python train.py", ""
    for name in placeholders(command):
        if name not in (*keys, SEED, *FILES):
            yield (
                PROGRAM,
                f"the command has the placeholder `{{{name}}}`, and no option has this name",
                f"{join_names(dict.fromkeys([*keys, SEED, *FILES]))}; {{{{ is a brace",
                closest_match(name, keys) or "",
            )
    names = set(placeholders(options))
    is_template = bool(names) and (names in ({"value"}, {"key", "value"}) or names <= set(FILES))
    if options != ENVIRONMENT and not is_template:
        yield "options", f"`{options}` is no template for an option", VALID_OPTIONS, ""


def placeholders(template: str) -> list[str]:
    """Return the names of the placeholders of a template, each once."""
    return list(dict.fromkeys(match[1] for match in _PLACEHOLDER.finditer(template) if match[1]))


def variable_name(key: str) -> str:
    """Return the environment variable of an option: `model.n-head` is MODEL_N_HEAD."""
    return re.sub(r"[^A-Za-z0-9]", "_", key).upper()


def value_text(value: Any) -> str:
    """Return a value as a word of a command: true, 0.001, [1,2], or text as it is."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _filled(words: Sequence[str], values: Mapping[str, Any]) -> tuple[list[str], set[str]]:
    """Fill the placeholders of words; a word that is a placeholder without text is left out."""
    used: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0][0]
        used.add(name)
        if name in values:
            return value_text(values[name])
        return FILES.get(name, "")  # null, or an option that only other variants have

    filled = [(word, _PLACEHOLDER.sub(fill, word)) for word in words]
    return [text for word, text in filled if text or not placeholders(word)], used


def _document(kind: str, spec: Spec) -> str:
    """Return all options as a nested JSON or YAML document."""
    options = {key: value for key, value in spec.items() if key not in RESERVED}
    document = {**options, spec[PROGRAM]["seed_option"]: spec[SEED]}
    if kind == "json":
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    import yaml

    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each option with its dotted key."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
