"""Kind of a study: of models, whose base is a spec, or of a program, whose base is a mapping of its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from paribus.errors import closest_match, join_names
from paribus.registry.class_reader import group_options
from paribus.specs.program_spec import PROGRAM
from paribus.specs.values import Validator
from paribus.studies.study_keys import STUDY_OPTIONS, ProgramKeys

OF_MODELS: Final = tuple(STUDY_OPTIONS)
OF_PROGRAMS: Final = tuple(option.name for option in group_options(ProgramKeys))


def known_keys(validator: Validator, data: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the keys of a study, and whether it is one of a program.

    A misspelt `program` is reported, and read as if it were not. A key that only the other kind of study has, or one
    similar to such a key, is reported and left out.
    """
    misspelt = _misspelt_program(data)
    keys = {PROGRAM if key == misspelt else key: value for key, value in data.items()}
    if misspelt:
        validator.add_error("unknown-key", (misspelt,), f'unknown key "{misspelt}"', join_names(OF_PROGRAMS), PROGRAM)
    is_program = PROGRAM in keys or _lacks_program(keys)
    names, others = (OF_PROGRAMS, OF_MODELS) if is_program else (OF_MODELS, OF_PROGRAMS)
    kind = "of models, which have no `program`," if is_program else "of a program"
    for key in [key for key in keys if key not in names]:
        meant = closest_match(key, (*names, *others))
        if meant not in ("", *names):
            message = f'unknown key "{key}": only studies {kind} have `{meant}`'
            validator.add_error("unknown-key", (key,), message, join_names(names))
            del keys[key]
    return keys, is_program


def _misspelt_program(data: Mapping[str, Any]) -> str:
    """Return the key that must mean `program`: a similar one with a text, or an empty string."""
    unknown = [key for key in data if key not in (*OF_MODELS, *OF_PROGRAMS) and isinstance(data[key], str)]
    similar = closest_match(PROGRAM, unknown)
    return "" if PROGRAM in data else similar


def _lacks_program(data: Mapping[str, Any]) -> bool:
    """Return whether a study without `program` has keys that only one of a program has."""
    metric, only = data.get("metric"), {*OF_PROGRAMS} - {*OF_MODELS}
    is_of_program = bool(only & data.keys()) or (isinstance(metric, Mapping) and "from" in metric)
    return is_of_program and not ({*OF_MODELS} - {*OF_PROGRAMS}) & data.keys() and not isinstance(data.get("base"), str)
