"""What a spec says of itself, and what it hands on: its schema, the plugins it needs, Lightning's own arguments.

How long a training may take: `trainer.max_time`, as Lightning spells it, in seconds of training steps.

A trial over several devices: what its `trainer:` may ask for, and what a trial cannot be cut into.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from paribus.errors import closest_match, join_names
from paribus.registry import Index
from paribus.specs.fields import SCHEMA, STEPS
from paribus.specs.spec_view import Violation
from paribus.specs.synonyms import suggest_key
from paribus.specs.tree import UNREAD, Keys, value_text
from paribus.specs.values import MISSING, Validator

UNITS: Final = {"days": 86_400.0, "hours": 3_600.0, "minutes": 60.0, "seconds": 1.0}
VALID: Final = "{seconds: 60}, also minutes, hours and days; or DD:HH:MM:SS"
_CLOCK: Final = re.compile(r"(\d+):(\d+):(\d+):(\d+)")


def max_seconds(trainer: Mapping[str, Any] | None) -> float | None:
    """The seconds after which a training ends, or None where steps alone decide."""
    return _seconds((trainer or {}).get("max_time"))


def check_max_time(validator: Validator, trainer: Mapping[str, Any]) -> None:
    """Tells of a `max_time` that is no time."""
    given = trainer.get("max_time")
    if given is not None and _seconds(given) is None:
        validator.add_error(
            "wrong-type", ("trainer", "max_time"), f"this is {value_text(given)}, and no time > 0", VALID
        )


def _seconds(given: Any) -> float | None:
    if isinstance(given, str) and (clock := _CLOCK.fullmatch(given)):
        given = dict(zip(UNITS, map(int, clock.groups()), strict=True))
    if not isinstance(given, Mapping) or not all(key in UNITS and _is_number(given[key]) for key in given):
        return None
    found = math.fsum(UNITS[key] * float(value) for key, value in given.items())
    return found if 0 < found < math.inf else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


IN_PIECES: Final = "fsdp"
WHOLE: Final = ("ddp", "ddp_find_unused_parameters_true", "ddp_find_unused_parameters_false", "ddp_static_graph")
SHARDED: Final = (IN_PIECES, "deepspeed", "model_parallel")


class TrainerProblem(NamedTuple):
    """An argument of the trainer, what is wrong with it, and what would do."""

    key: str
    message: str
    valid: str


def requested_processes(trainer: Mapping[str, Any]) -> int | None:
    """How many processes a trainer asks for; None where only the machine can tell."""
    devices = trainer.get("devices", 1)
    if isinstance(devices, list | tuple):
        return len(devices)
    if isinstance(devices, str) and "," in devices:
        return len(devices.split(","))
    if devices in ("auto", -1, "-1"):
        return 1 if devices == "auto" and trainer.get("strategy", "auto") == "auto" else None
    return int(devices) if str(devices).isdecimal() else 1


def uses_sharding(trainer: Mapping[str, Any]) -> bool:
    return str(trainer.get("strategy", "auto")).startswith(SHARDED)


def trainer_problems(trainer: Mapping[str, Any]) -> Iterator[TrainerProblem]:
    """Why a trial cannot be spread as its trainer asks; nothing where it can."""
    if trainer.get("num_nodes", 1) != 1:
        what = "a trial on several machines is not supported: its processes are started on one"
        yield TrainerProblem("num_nodes", what, "1; many trials run on many machines by the study's `launcher:`")
    strategy = trainer.get("strategy", "auto")
    if strategy not in ("auto", IN_PIECES, *WHOLE):
        what = (
            f"`{strategy}` is not supported: what is kept of a trial (checkpoints, digests of each parameter, the "
            "optimizer's state by name) is whole, and only of `fsdp` is known how pieces are put together"
        )
        yield TrainerProblem("strategy", what, ", ".join((*WHOLE, IN_PIECES)))
    if trainer.get("max_time"):
        what = "a budget in seconds is held against the clock of one process, and here there are several"
        yield TrainerProblem("max_time", what, "a budget in steps, tokens or FLOPs")


def sharding_violations(index: Index, spec: Mapping[str, Any]) -> Iterator[Violation]:
    """An optimizer that is not known to step on parameters of which each process keeps a piece, where it is to."""
    trainer, optimizer = spec.get("trainer"), spec.get("optimizer")
    if not isinstance(trainer, Mapping) or not isinstance(optimizer, Mapping) or trainer.get("strategy") != IN_PIECES:
        return
    entries = index.entries["optimizer"]
    name = optimizer["name"]
    if not entries[name].traits.get("sharded"):
        what = f"with `{IN_PIECES}` parameters lie in pieces, on which the optimizer `{name}` is not known to step"
        valid = join_names([entry.name for entry in entries.values() if entry.traits.get("sharded")])
        yield Violation("does-not-fit", ("optimizer",), what, valid)


_IDENTIFIER: Final = re.compile(r"[a-z][a-z0-9_]*")


def check_header(validator: Validator, given: Mapping[str, Any]) -> None:
    """What a spec says of itself: how it is written, and which plugins it needs."""
    schema = given.get("paribus", SCHEMA)
    if schema != SCHEMA or isinstance(schema, bool):
        advice = "upgrade paribus" if isinstance(schema, int) and schema > SCHEMA else "write it anew"
        what = f"this spec is written in schema {value_text(schema)}, and this paribus reads schema {SCHEMA}: {advice}"
        validator.add_error("schema", ("paribus",), what, str(SCHEMA))
    if "preset" in given:
        what = "a preset is what a spec begins from, so an override comes too late for it"
        validator.add_error("preset", ("preset",), what, "the preset's name in place of the spec's")
    needed = given.get("plugins") or []
    if not isinstance(needed, list) or not all(isinstance(name, str) for name in needed):
        validator.add_error("wrong-type", ("plugins",), f"expected a list of names, but this is {value_text(needed)}")
        return
    doors = [piece.source for piece in validator.index.plugins]
    for place, name in enumerate(needed):
        keys = ("plugins", place)
        for broken in validator.index.broken:
            if name in (broken.source.name, broken.source.distribution):
                validator.add_error("plugin-failed", keys, f"this spec needs it, and {broken}")
        if not any(name in (door.name, door.distribution) for door in doors):
            what = f"this spec needs the plugin `{name}`, which is not installed; a spec never loads one itself"
            known = sorted({door.name for door in doors} | {door.distribution for door in doors if door.distribution})
            validator.add_error("plugin-missing", keys, what, join_names(known), closest_match(name, known))


def resolve_trainer(validator: Validator, given: Mapping[str, Any]) -> Any:
    """Lightning's own arguments, of which it says what they mean; here, whether there are such, and plain values."""
    valid = "arguments of lightning.Trainer"
    found = validator.as_mapping(given.get("trainer") or {}, ("trainer",), valid)
    if found is None:
        return UNREAD
    known = trainer_arguments() if set(found) - {STEPS.name} else frozenset({STEPS.name})
    for key, value in found.items():
        if not _IDENTIFIER.fullmatch(key):
            validator.add_error("unknown-key", ("trainer", key), f"`{key}` is no argument's name", valid)
        elif known and key not in known:
            what = f"lightning.Trainer has no argument `{key}`"
            validator.add_error(
                "unknown-key", ("trainer", key), what, join_names(sorted(known), 40), suggest_key(key, known)
            )
        _finite(validator, value, ("trainer", key))
    steps = found.get("max_steps")
    if steps is not None:
        validator.read_option(STEPS, steps, ("trainer", "max_steps"), {})
    check_max_time(validator, found)
    if uses_sharding(found) or (requested_processes(found) or 1) > 1 or found.get("num_nodes", 1) != 1:
        for key, what, valid in trainer_problems(found):
            validator.add_error("trainer-refused", ("trainer", key), what, valid)
    return dict(found)


@lru_cache(maxsize=1)
def trainer_arguments() -> frozenset[str]:
    """What lightning.Trainer takes, read from its source: importing it takes seconds, and `check` is quick.

    Empty where the source cannot be read, and then Lightning itself is the first to say.
    """
    found = importlib.util.find_spec("lightning")
    if found is None or not found.submodule_search_locations:
        return frozenset()
    source = Path(found.submodule_search_locations[0], "pytorch", "trainer", "trainer.py")
    with suppress(OSError, SyntaxError):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return frozenset(argument.arg for argument in node.args.kwonlyargs)
    return frozenset()


def _finite(validator: Validator, value: Any, keys: Keys) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _finite(validator, item, (*keys, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _finite(validator, item, (*keys, place))
    elif isinstance(value, float) and not math.isfinite(value):
        validator.add_error("not-finite", keys, f"this must be finite, but is {value}")
    elif value == MISSING:
        validator.add_error("missing", keys, "this is still to be filled in")
