"""Parse a study of a program: its command, the base options, and the metric that it writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paribus.errors import closest_match, join_names
from paribus.program.command import RESERVED, command_problems
from paribus.program.input_files import input_problems, missing_script
from paribus.program.metric_files import source_problem
from paribus.specs.load import set_path
from paribus.specs.program_spec import EFFECTS, PROGRAM
from paribus.specs.tree import Keys, Tree, copy_values, get_path, value_text
from paribus.specs.values import Validator
from paribus.studies.parse_options import Worth, parse_worth
from paribus.studies.study_keys import Metric, ProgramKeys
from paribus.studies.task_metrics import check_direction


def parse_program(validator: Validator, keys: ProgramKeys, varied: Sequence[tuple[Keys, str]]) -> dict[str, Any]:
    """Return the block `program` of each spec, and report what is wrong with the command, options and metric."""
    tuned = [(("tune", key), str(key)) for key in keys.tune or {} if key != "seeds"]
    places = [*((("base", key), str(key)) for key in keys.base or {}), *varied, *tuned]
    _check_keys(validator, keys, places)
    if keys.program:
        names = list(dict.fromkeys(_names(keys, places)))
        for key, message, valid, suggestion in command_problems(keys.program, keys.options, names):
            validator.add_error("bad-template", (key,), message, valid, suggestion)
        _check_script(validator, keys.program)
    for place, message, valid in input_problems(keys.inputs, Path.cwd()):
        validator.add_error("no-file", ("inputs", place), message, valid)
    metric = keys.metric
    if metric.from_:
        wrong, message, valid = source_problem(metric.from_, metric.pattern)
        if wrong:
            validator.add_error("bad-source", ("metric", wrong), message, valid)
    return {
        "command": keys.program,
        "options": keys.options,
        "seed_option": keys.seed_option,
        "inputs": list(keys.inputs),
        "metric": {"name": metric.name, "from": metric.from_, "pattern": metric.pattern},
    }


def _check_script(validator: Validator, command: str) -> None:
    """Report a script that is not in the current folder, and the folder of the study if it is there."""
    folder, study = Path.cwd(), Path(validator.tree.location((PROGRAM,)).rpartition(":")[0]).parent
    if name := missing_script(command, folder):
        is_beside_study = study.resolve() != folder and (study / name).exists()
        advice = f"cd {study}, where it is" if is_beside_study else "the folder that has it, or an absolute path"
        message = f"there is no `{name}` in {folder}, where the command runs"
        validator.add_error("no-file", (PROGRAM,), message, advice)


def parse_effects(
    validator: Validator, keys: ProgramKeys, varied: Sequence[tuple[Keys, str]]
) -> dict[str, tuple[str, ...]]:
    """Return what each option changes on purpose, in a list."""
    known = [key for _, key in varied] + list(keys.tune or {})
    effects: dict[str, tuple[str, ...]] = {}
    for key, value in (keys.effects or {}).items():
        kinds = tuple(value) if isinstance(value, list | tuple) else (value,)
        if key not in known:
            validator.add_error(
                "unknown-key",
                ("effects", key),
                f"`{key}` is not varied",
                join_names(dict.fromkeys(known)),
                closest_match(key, known),
            )
        elif wrong := [kind for kind in kinds if kind not in EFFECTS]:
            message = f"expected what `{key}` changes besides the model, got {value_text(wrong[0])}"
            validator.add_error("unknown-value", ("effects", key), message, join_names(EFFECTS))
        else:
            effects[key] = kinds
    return effects


def parse_program_worth(validator: Validator, keys: ProgramKeys, varied: Sequence[tuple[Keys, str]]) -> Worth | None:
    """Return the budgets at which the baseline is run besides its own."""
    if keys.worth is None:
        return None
    option = keys.worth.option
    factors = parse_worth(
        validator, keys, [factor for factor in keys.worth.factors or () if factor], ("worth", "factors")
    )
    value = get_path(keys.base or {}, option)
    if option and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
        message = f"`{option}` has no positive number in `base`, of which multiples could be taken"
        validator.add_error("missing", ("worth", "option"), message, f"base: {{{option}: 1000}}")
    elif option in [*(key for _, key in varied), *(keys.tune or {})]:
        message = f"`{option}` is varied or tuned, and is to be the budget of the baseline"
        validator.add_error("incompatible-options", ("worth", "option"), message, "an option that all variants share")
    return Worth(factors, option) if factors else None


def program_metric(validator: Validator, keys: ProgramKeys, given: Collection[str]) -> Metric:
    """Return the metric of a program as that of a study; nobody knows a loss that its models must beat.

    `given` are the keys of the block `metric` in the file.
    """
    metric = keys.metric
    check_direction(validator, metric.name, given)
    return Metric(name=metric.name, better=metric.better, margin=metric.margin, last=metric.last)


def program_base(validator: Validator, program: Mapping[str, Any], *layers: tuple[Keys, Mapping[str, Any]]) -> Tree:
    """Return the spec of a baseline: the block `program`, and the options of each layer, dotted or nested."""
    tree = Tree({PROGRAM: dict(program)}, {(): validator.tree.location((PROGRAM,))})
    for place, options in layers:
        for key, value in options.items():
            if str(key).partition(".")[0] in RESERVED:
                continue  # it is reported
            location = validator.tree.location((*place, key))
            set_path(tree, str(key), Tree(copy_values(value), {(): location}), location)
    return tree


def _names(keys: ProgramKeys, places: Sequence[tuple[Keys, str]]) -> Iterator[str]:
    """Yield the dotted names of all options."""
    yield keys.seed_option
    for _, key in places:
        yield key
    yield from _nested(keys.base or {})


def _nested(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _nested(value, f"{prefix}{key}.")


def _check_keys(validator: Validator, keys: ProgramKeys, places: Sequence[tuple[Keys, str]]) -> None:
    """Report options that are called as a key of the spec itself, or as the option of the seed."""
    for place, key in places:
        first = key.partition(".")[0]
        if key == keys.seed_option:
            message = f"`{key}` is the option of the seed, which `seeds` sets"
            validator.add_error("reserved", place, message, "another option; or `seed_option` names that of the seed")
        elif first in RESERVED:
            message = f"`{first}` is a key of the spec itself, and no option of a program"
            validator.add_error("reserved", place, message, "another name, and a placeholder in `program`")
