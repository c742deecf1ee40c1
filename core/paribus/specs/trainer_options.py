"""Validation of `trainer:` (time limit, devices, strategy), and of the header of a spec (schema, plugins)."""

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

from paribus.errors import join_names
from paribus.registry import Index
from paribus.schema import Kind, Option
from paribus.specs.fields import (
    COMPILE,
    COMPILE_OPTIONS,
    SCHEMA,
    STEPS,
    TRAINER_OPTIONS,
    suggest_key,
)
from paribus.specs.named_plugins import PLUGINS, check_plugins
from paribus.specs.spec_view import Violation
from paribus.specs.tree import UNREAD, Keys, value_text
from paribus.specs.values import MISSING, Validator

UNITS: Final = {"days": 86_400.0, "hours": 3_600.0, "minutes": 60.0, "seconds": 1.0}
VALID: Final = "{seconds: 60}, also minutes, hours and days; or DD:HH:MM:SS"
_ARGUMENT: Final = re.compile(
    r"^    (\w+): (.*?)(?=^    \w+: |^\w|\Z)", flags=re.MULTILINE | re.DOTALL
)  # of a docstring
_CLOCK: Final = re.compile(r"(\d+):(\d+):(\d+):(\d+)")


def max_seconds(trainer: Mapping[str, Any] | None) -> float | None:
    """Return the time limit of training in seconds, or None."""
    return _seconds((trainer or {}).get("max_time"))


def check_max_time(validator: Validator, trainer: Mapping[str, Any]) -> None:
    """Report an invalid `max_time`."""
    value = trainer.get("max_time")
    if value is not None and _seconds(value) is None:
        validator.add_error(
            "wrong-type", ("trainer", "max_time"), f"got {value_text(value)}; expected a time > 0", VALID
        )


def check_objects(validator: Validator, trainer: Mapping[str, Any]) -> None:
    """Report arguments that are objects of Lightning, which no text can be."""
    for key, valid in (
        ("logger", "the key `loggers:` of a study: [csv, wandb]"),
        ("callbacks", "a Trainer of your own"),
    ):
        value = trainer.get(key)
        if value is not None and not isinstance(value, bool) and value != []:
            message = f"got {value_text(value)}; Lightning expects an object here, which a spec cannot have"
            validator.add_error("wrong-type", ("trainer", key), message, valid)


def _seconds(given: Any) -> float | None:
    if isinstance(given, str) and (clock := _CLOCK.fullmatch(given)):
        given = dict(zip(UNITS, map(int, clock.groups()), strict=True))
    if not isinstance(given, Mapping) or not all(key in UNITS and _is_number(given[key]) for key in given):
        return None
    total = math.fsum(UNITS[key] * float(value) for key, value in given.items())
    return total if 0 < total < math.inf else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


IN_PIECES: Final = "fsdp"
WHOLE: Final = ("ddp", "ddp_find_unused_parameters_true", "ddp_find_unused_parameters_false", "ddp_static_graph")
SHARDED: Final = (IN_PIECES, "deepspeed", "model_parallel")


class TrainerProblem(NamedTuple):
    """Invalid argument of the trainer."""

    key: str
    message: str
    valid: str


def requested_processes(trainer: Mapping[str, Any]) -> int | None:
    """Return the number of processes that a trainer requests, or None if it depends on the machine."""
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
    """Yield the arguments of a trainer that a trial on several devices does not support."""
    if trainer.get("num_nodes", 1) != 1:
        message = "a trial on several machines is not supported"
        yield TrainerProblem("num_nodes", message, "1; many trials run on many machines by the study's `launcher:`")
    strategy = trainer.get("strategy", "auto")
    if strategy not in ("auto", IN_PIECES, *WHOLE):
        message = (
            f"`{strategy}` is not supported: checkpoints and parameter digests need whole tensors, and paribus can "
            f"gather sharded ones only with `{IN_PIECES}`"
        )
        yield TrainerProblem("strategy", message, ", ".join((*WHOLE, IN_PIECES)))
    if trainer.get(COMPILE) and uses_sharding(trainer):
        message = "sharded layers cannot be compiled"
        yield TrainerProblem(COMPILE, message, "compile: false, or another strategy")
    if trainer.get("max_time"):
        message = "a time limit is not supported with several processes"
        yield TrainerProblem("max_time", message, "a budget in steps, tokens or FLOPs")


def division_violations(spec: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield a violation if a batch has fewer examples than there are micro-batches and processes."""
    trainer, data = (value if isinstance(value := spec.get(key), Mapping) else {} for key in ("trainer", "data"))
    shares, batch = trainer.get("accumulate_grad_batches", 1), data.get("batch")
    if not isinstance(shares, int) or not isinstance(batch, int):
        return
    processes = requested_processes(trainer) or 1
    if shares * processes > batch:
        parts = [f"{shares} micro-batches"] * (shares > 1) + [f"{processes} devices"] * (processes > 1)
        among = " on each of ".join(parts)
        message = f"a batch of {batch} examples cannot be divided into {among}: some would be empty"
        place = ("trainer", "accumulate_grad_batches") if shares > 1 else ("data", "batch")
        yield Violation("empty-micro-batch", place, message, f"a `data.batch` of at least {shares * processes}")


def freezing_violations(spec: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield a violation if `freeze` has options and nothing to freeze, or `freeze.steps` does not fit the trainer."""
    freeze, trainer = (value if isinstance(value := spec.get(key), Mapping) else {} for key in ("freeze", "trainer"))
    steps, max_steps = freeze.get("steps"), trainer.get("max_steps")
    given = [name for name in ("trained", "steps") if freeze.get(name)]
    if given and not freeze.get("paths") and not freeze.get("layers"):
        message = f"`{given[0]}` has no effect without `paths` or `layers`, as nothing is frozen"
        yield Violation("unused-option", ("freeze", given[0]), message, 'paths: "*", or other paths, or layers')
    if not isinstance(steps, int):
        return
    if isinstance(max_steps, int) and steps >= max_steps:
        message = f"got {steps:,}, but the training has {max_steps:,} steps"
        yield Violation("out-of-range", ("freeze", "steps"), message, f"< {max_steps:,}, or null for every step")
    if requested_processes(trainer) != 1 or uses_sharding(trainer):
        message = "on several devices, the parameters that are trained cannot change during training"
        yield Violation("does-not-fit", ("freeze", "steps"), message, "null, or one device")


def sharding_violations(index: Index, spec: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield a violation if the optimizer does not support sharded parameters."""
    trainer, optimizer = spec.get("trainer"), spec.get("optimizer")
    if not isinstance(trainer, Mapping) or not isinstance(optimizer, Mapping) or trainer.get("strategy") != IN_PIECES:
        return
    entries = index.entries["optimizer"]
    name = optimizer["name"]
    if not entries[name].traits.get("sharded"):
        message = f"with `{IN_PIECES}` parameters lie in pieces, on which the optimizer `{name}` is not known to step"
        valid = join_names([entry.name for entry in entries.values() if entry.traits.get("sharded")])
        yield Violation("does-not-fit", ("optimizer",), message, valid)


_IDENTIFIER: Final = re.compile(r"[a-z][a-z0-9_]*")
OWN_ARGUMENTS: Final = {
    COMPILE: "Compile the layers of the model by `torch.compile`, in training; see `paribus explain trainer`.",
    **{option.name: f"{option.doc[0].upper()}{option.doc[1:]}." for option in TRAINER_OPTIONS},
}  # which Lightning does not know


def check_header(validator: Validator, data: Mapping[str, Any]) -> None:
    """Validate the schema version and the required plugins of a spec."""
    schema = data.get("paribus", SCHEMA)
    if schema != SCHEMA or isinstance(schema, bool):
        advice = "upgrade paribus" if isinstance(schema, int) and schema > SCHEMA else "rewrite the spec"
        message = f"expected schema {SCHEMA}, got schema {value_text(schema)}: {advice}"
        validator.add_error("schema", ("paribus",), message, str(SCHEMA))
    if "preset" in data:
        message = "an override cannot change the preset"
        validator.add_error("preset-override", ("preset",), message, "the name of the preset in place of the spec")
    check_plugins(validator, data.get(PLUGINS) or [], "spec")


def resolve_trainer(validator: Validator, data: Mapping[str, Any]) -> Any:
    """Validate the names of Lightning's arguments; Lightning validates their values."""
    valid = "arguments of lightning.Trainer"
    given = validator.as_mapping(data.get("trainer") or {}, ("trainer",), valid)
    if given is None:
        return UNREAD
    options = dict(given)
    own = {STEPS.name: STEPS.doc, **OWN_ARGUMENTS}
    known_arguments = own if set(options) <= set(own) else trainer_arguments()
    for key, value in options.items():
        if not _IDENTIFIER.fullmatch(key):
            message = f'expected an argument of lightning.Trainer, got "{key}"'
            validator.add_error("unknown-key", ("trainer", key), message, valid)
        elif known_arguments and key not in known_arguments:
            message = f'unknown argument "{key}" of lightning.Trainer'
            validator.add_error(
                "unknown-key",
                ("trainer", key),
                message,
                join_names(sorted(known_arguments), 40),
                suggest_key(key, known_arguments),
            )
        _finite(validator, value, ("trainer", key))
    _resolve_own(validator, options)
    steps = options.get("max_steps")
    if steps is not None:
        validator.read_option(STEPS, steps, ("trainer", "max_steps"), {})
    check_max_time(validator, options)
    check_objects(validator, options)
    if uses_sharding(options) or (requested_processes(options) or 1) > 1 or options.get("num_nodes", 1) != 1:
        for key, message, valid in trainer_problems(options):
            validator.add_error("trainer-error", ("trainer", key), message, valid)
    return options


def _resolve_own(validator: Validator, options: dict[str, Any]) -> None:
    """Validate our own arguments in place, and remove those that have their defaults."""
    if options.get(COMPILE) is not None:
        options[COMPILE] = _resolve_compile(validator, options[COMPILE])
    else:
        options.pop(COMPILE, None)  # the default
    for option in TRAINER_OPTIONS:
        if options.get(option.name) is not None:
            keys = ("trainer", option.name)
            options[option.name] = validator.read_option(option, options[option.name], keys, {})
        if options.get(option.name) in (None, option.default):
            options.pop(option.name, None)


def _resolve_compile(validator: Validator, value: Any) -> Any:
    """Validate `compile`; of a mapping, return the options that differ from their defaults, or True if none does."""
    keys = ("trainer", COMPILE)
    if isinstance(value, bool) or value is UNREAD:
        return value
    if not isinstance(value, Mapping):
        valid = "true, false, null (only on CUDA), or options such as {mode: max-autotune}"
        return validator.add_error(
            "wrong-type", keys, f"expected a boolean or a mapping, got {value_text(value)}", valid
        )
    chosen = validator.read_options(COMPILE_OPTIONS, value, keys, {})
    changed = {option.name: chosen[option.name] for option in COMPILE_OPTIONS if chosen[option.name] != option.default}
    if len(changed) == len(COMPILE_OPTIONS) and UNREAD not in changed.values():
        message = f"`{chosen['backend']}` has no modes"
        return validator.add_error("does-not-fit", (*keys, "mode"), message, "mode: default, or backend: inductor")
    return changed or True


def trainer_arguments() -> Mapping[str, str]:
    """Return our own arguments, and those of lightning.Trainer with the first sentence of their documentation.

    They are read from its source, since importing it takes seconds. Empty if the source cannot be read; then Lightning
    itself reports unknown arguments.
    """
    arguments = {option.name: option.doc for option in _lightning_arguments()}
    return {**OWN_ARGUMENTS, **arguments} if arguments else {}


def trainer_options() -> tuple[Option, ...]:
    """Return our own arguments, and those of lightning.Trainer, whose types are part of their descriptions."""
    compiled = Kind("any", options=COMPILE_OPTIONS, optional=True)
    own = (
        STEPS,
        Option(COMPILE, compiled, "compile the layers in training: true, false, or options"),
        *TRAINER_OPTIONS,
    )
    names = {option.name for option in own}
    return (*own, *(option for option in _lightning_arguments() if option.name not in names))


@lru_cache(maxsize=1)
def _lightning_arguments() -> tuple[Option, ...]:
    package = importlib.util.find_spec("lightning")
    if package is None or not package.submodule_search_locations:
        return ()
    source = Path(package.submodule_search_locations[0], "pytorch", "trainer", "trainer.py")
    with suppress(OSError, SyntaxError):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                docs = dict(_ARGUMENT.findall(ast.get_docstring(node) or ""))
                arguments = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                return tuple(
                    Option(
                        argument.arg,
                        Kind("any"),
                        _first_sentence(docs.get(argument.arg, "")),
                        default=ast.literal_eval(default) if default is not None else None,
                    )
                    for argument, default in arguments
                )
    return ()


def _first_sentence(text: str) -> str:
    words = re.sub(r":\w+:`([^`]+)`|`+", r"\1", " ".join(text.split()))  # without the markup of Sphinx
    return re.split(r"(?<=\.)\s", words, maxsplit=1)[0]


def _finite(validator: Validator, value: Any, keys: Keys) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _finite(validator, item, (*keys, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _finite(validator, item, (*keys, index))
    elif isinstance(value, float) and not math.isfinite(value):
        validator.add_error("not-finite", keys, f"expected a finite number, got {value}")
    elif value == MISSING:
        validator.add_error("missing", keys, "this has no value yet (???)")
