"""Options of a study besides what it varies: match, scales, tune, stop, seeds and loggers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Final, final

from paribus.errors import closest_match, join_names
from paribus.specs.load import set_path
from paribus.specs.tree import Keys, Tree, copy_values, value_text
from paribus.specs.values import Validator
from paribus.studies.designs import Change
from paribus.studies.stages import Stage, check_stage_keys, is_overlap
from paribus.train.trial_options import LOGGERS

# --- seeds ---


def parse_seeds(validator: Validator, value: Any, keys: Keys, start: int, limit: int) -> tuple[int, ...]:
    """Return the seeds of a number or list; a number counts from `start`. An unreadable value has one seed."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= limit:
        return tuple(range(start, start + value))
    valid = f"how many (1 to {limit}), or a list of different seeds"
    is_list = isinstance(value, list) and all(isinstance(seed, int) and not isinstance(seed, bool) for seed in value)
    if not is_list or not value or not all(0 <= seed < 2**63 for seed in value):
        validator.add_error("wrong-type", keys, f"expected seeds, got {value_text(value)}", valid)
        return (start,)
    duplicates = sorted({seed for seed in value if value.count(seed) > 1}) if len(set(value)) < len(value) else []
    if duplicates:
        message = f"listed more than once: seed {join_names(duplicates, 8)}"
        validator.add_error("duplicate-seed", keys, message, valid)
    return tuple(dict.fromkeys(value))


# --- match ---

TIME: Final = "time"  # of a training step, which is measured and not counted
MATCHES: Final = ("params", "flops", "kv", "state", TIME)


@final
@dataclass(frozen=True)
class Match:
    """A budget that every variant shares with the baseline, and the option that is changed to reach it."""

    on: str
    by: str


def parse_matches(validator: Validator, value: Any) -> tuple[Match | None, ...]:
    """Return the matches of a study: one, None, or a list of them that the table shows side by side."""
    if not isinstance(value, list):
        return (_parse_match(validator, value, ("match",)),)
    matches = tuple(
        _parse_match(validator, None if item == "none" else item, ("match", index)) for index, item in enumerate(value)
    )
    if not matches or len(set(matches)) < len(matches):
        valid = "[{on: params, by: …}, {on: flops, by: …}], optionally with none"
        message = "the list has the same match twice" if matches else "the list is empty"
        validator.add_error("wrong-type", ("match",), message, valid)
    return matches or (None,)


def _parse_match(validator: Validator, value: Any, keys: Keys) -> Match | None:
    if value is None:
        return None
    options = validator.as_mapping(value, keys, "on, by") or {}
    for key in options:
        if key not in ("on", "by"):
            validator.add_unknown_key(key, (*keys, key), ("on", "by"))
    if options.get("on") not in MATCHES:
        validator.add_error("wrong-type", (*keys, "on"), describe_value(options, "on"), join_names(MATCHES))
    if not isinstance(options.get("by"), str):
        validator.add_error("wrong-type", (*keys, "by"), describe_value(options, "by"), "an option: feedforward.expand")
    return Match(str(options.get("on")), str(options.get("by")))


def describe_value(options: Mapping[str, Any], key: str) -> str:
    """Return the message for a required key with a wrong value, or without one."""
    return f"got {value_text(options[key])}" if key in options else f"`{key}` is missing"


# --- scales ---

_SCALE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
_VALID_SCALES: Final = "scales: {s: {dims.width: 32}, m: {dims.width: 64}}, or presets: [gpt-tiny, gpt2]"
PRESET: Final = "preset"
MIN_SCALES: Final = 2

LoadBase = Callable[[Mapping[str, Any]], Tree]  # a study's base spec from the mapping under `base`


def parse_scales(validator: Validator, value: Any, base: Any, load_base: LoadBase) -> dict[str, Tree]:
    """Return the base spec at each scale by the scale's name; empty for a study without scales."""
    if value is None:
        return {}
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = {name: {PRESET: name} for name in value}
    scales = validator.as_mapping(value, ("scales",), _VALID_SCALES) or {}
    if len(scales) < MIN_SCALES:
        message = f"expected two or more sizes to compare at, got {len(scales)}"
        validator.add_error("too-few", ("scales",), message, _VALID_SCALES)
    trees: dict[str, Tree] = {}
    for name, changes in scales.items():
        keys: Keys = ("scales", name)
        if not _SCALE_NAME.fullmatch(str(name)):
            validator.add_error("bad-name", keys, f"a scale cannot be called {value_text(name)}", "a word: s, m, l")
        elif (overrides := validator.as_mapping(changes, keys, "{dims.width: 64}, or {preset: NAME}")) is not None:
            if not overrides:
                validator.add_error("empty", keys, f"the scale `{name}` changes nothing", "{dims.width: 64}")
            trees[str(name)] = _scaled_base(validator, overrides, keys, base, load_base)
    return trees


def _scaled_base(
    validator: Validator, overrides: Mapping[str, Any], keys: Keys, base: Any, load_base: LoadBase
) -> Tree:
    """Return the base with the scale's changes, on another preset where the scale names one."""
    spec = copy_values(base if isinstance(base, Mapping) else {PRESET: base})
    tree = load_base({**spec, PRESET: overrides[PRESET]} if PRESET in overrides else spec)
    for key, value in overrides.items():
        if key != PRESET:
            location = validator.tree.location((*keys, key))
            set_path(tree, str(key), Tree(copy_values(value), {(): location}), location)
    return tree


def check_scale_keys(
    validator: Validator,
    scales: Mapping[str, Any] | Any,
    varied: Sequence[tuple[Keys, str]],
    stages: Sequence[Stage],
) -> None:
    """Report keys of a scale that a variant or a stage also sets, so that the scale's value would be ignored."""
    for name, changes in scales.items() if isinstance(scales, Mapping) else ():
        for key in changes if isinstance(changes, Mapping) else ():
            keys: Keys = ("scales", name, key)
            varied_key = next((other for _, other in varied if is_overlap(str(key), other)), None)
            stage = next(
                (stage for stage in stages if any(is_overlap(str(key), it) for it in stage.overrides.data)), None
            )
            if varied_key is not None:
                message = f"`{varied_key}` is varied, so the scale's `{key}` would be ignored"
                validator.add_error("varied-twice", keys, message, "a key that no variant changes")
            elif stage is not None:
                message = f"the stage `{stage.name}` sets `{key}`, so the scale's value would be ignored"
                validator.add_error("unused-option", keys, message, "a key that no stage sets")


# --- tune ---

FIRST_TUNING_SEED: Final = 1_000_000  # far from the seeds of studies
TUNING_SEEDS: Final = 2
MAX_TUNING_SEEDS: Final = 1_000
_VALID_TUNE: Final = "tune: {optimizer.lr: [5e-4, 1e-3, 2e-3], seeds: 2}"

Cell = tuple[Change, ...]  # one value for each tuned key


@final
@dataclass(frozen=True)
class Tune:
    """Values to try for each key. Every variant is trained with all combinations of them on every tuning seed."""

    values: Mapping[str, Sequence[Any]]
    seeds: tuple[int, ...]

    def cells(self) -> Iterator[Cell]:
        """Yield every combination, in the order of the file."""
        return product(*([(key, value) for value in values] for key, values in self.values.items()))


def parse_tune(validator: Validator, value: Any, seeds: Sequence[int]) -> Tune | None:
    """Return the section `tune`. Its seeds must not be those of the verdict."""
    if value is None:
        return None
    section = validator.as_mapping(value, ("tune",), _VALID_TUNE) or {}
    values: dict[str, Sequence[Any]] = {}
    for key, choices in section.items():
        if key == "seeds":
            continue
        if isinstance(choices, list) and choices:
            values[str(key)] = choices
        else:
            message = f"expected a list of values to try, got {value_text(choices)}"
            validator.add_error("wrong-type", ("tune", key), message, _VALID_TUNE)
    if not values and set(section) <= {"seeds"}:
        validator.add_error("empty", ("tune",), "this tunes nothing", _VALID_TUNE)
    keys: Keys = ("tune", "seeds")
    tuning_seeds = parse_seeds(validator, section.get("seeds", TUNING_SEEDS), keys, FIRST_TUNING_SEED, MAX_TUNING_SEEDS)
    shared = sorted(set(tuning_seeds) & set(seeds))
    if shared:
        message = f"seed {join_names(shared, 8)} would choose a value and then judge it"
        valid = f"seeds that the study does not use: {FIRST_TUNING_SEED:_} and up"
        validator.add_error("same-seeds", keys, message, valid)
    return Tune(values, tuning_seeds)


def check_tuned_keys(
    validator: Validator,
    tune: Tune | None,
    varied: Sequence[tuple[Keys, str]],
    stages: Sequence[Stage],
    matched: Sequence[str],
) -> None:
    """Report tuned keys that are also varied, or changed to match a budget."""
    if tune is None:
        return
    for key in tune.values:
        if any(key == other for _, other in varied):
            message = f"`{key}` is varied, so tuning it would make those variants equal"
            validator.add_error("varied-twice", ("tune", key), message, "vary it, or tune it")
        if any(is_overlap(key, other) for other in matched):
            message = f"`{key}` is changed to match a budget, which tuning would undo"
            validator.add_error("varied-twice", ("tune", key), message, "a key that is not under `match.by`")
    check_stage_keys(validator, stages, [(("tune", key), key) for key in tune.values])


# --- stop ---

WHEN: Final = "when-decided"
VALID_STOP: Final = f"{WHEN}, or {{when: decided, looks: [3, 5, 8]}}"
DEFAULT_LOOKS: Final = (3, 5, 8, 12, 18, 27, 40, 60, 90, 135, 200)  # each about half as many again
LAST_EARLY_LOOK: Final = 0.75  # of all seeds: a later look would save less than it costs
ONE_TABLE: Final = ("one-at-a-time", "grid", "list", "leave-one-out")  # designs that compare only with the baseline


def parse_looks(validator: Validator, study: Mapping[str, Any], design: str, seeds: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of seeds at which verdicts are taken, ending with all; empty without early stopping."""
    stop = study.get("stop")
    if stop is None:
        return ()
    if study.get("tune") is not None:
        message = "early stopping looks at all tables at once, and a tuned table has no trials until tuning has ended"
        validator.add_error("incompatible-options", ("stop",), message, "`stop` in a study without `tune`")
    if design not in ONE_TABLE:
        message = f"the design `{design}` also compares variants with each other, so it needs all seeds of each"
        validator.add_error("incompatible-options", ("stop",), message, join_names(ONE_TABLE))
    if isinstance(stop, Mapping):
        for key in stop:
            if key not in ("when", "looks"):
                validator.add_unknown_key(key, ("stop", key), ("when", "looks"))
        if stop.get("when", "decided") not in ("decided", WHEN):
            validator.add_error("wrong-type", ("stop", "when"), f"got {value_text(stop['when'])}", "decided")
        if "looks" in stop:
            return _check_looks(validator, stop["looks"], len(seeds))
    elif stop != WHEN:
        validator.add_error("wrong-type", ("stop",), f"got {value_text(stop)}", VALID_STOP)
        return ()
    if len(default_looks(len(seeds))) == 1:
        message = f"{len(seeds)} seeds are too few to stop early"
        validator.add_error("unused-option", ("stop",), message, "seeds: 4, or more")
    return default_looks(len(seeds))


def default_looks(seeds: int) -> tuple[int, ...]:
    """Return 3, 5, 8 … and the number of all seeds."""
    return (*(look for look in DEFAULT_LOOKS if look <= LAST_EARLY_LOOK * seeds), seeds)


def _check_looks(validator: Validator, looks: Any, seeds: int) -> tuple[int, ...]:
    is_list = isinstance(looks, list) and all(isinstance(look, int) and not isinstance(look, bool) for look in looks)
    valid = f"increasing numbers of seeds from 2 to {seeds}, which is all: [3, {seeds}]"
    if not is_list or len(looks) < 2 or looks[0] < 2 or any(later <= look for look, later in pairwise(looks)):
        validator.add_error(
            "wrong-type", ("stop", "looks"), f"expected increasing numbers, got {value_text(looks)}", valid
        )
        return ()
    if looks[-1] != seeds:
        message = f"the last look is at {looks[-1]} seeds, but the study has {seeds}"
        validator.add_error("wrong-type", ("stop", "looks"), message, valid)
    return tuple(looks)


# --- loggers ---

_LOGGERS_EXAMPLE: Final = "loggers: [csv, {name: tensorboard}]"


def parse_loggers(validator: Validator, value: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the section `loggers` as mappings with a name; a missing package is an error."""
    if value is None:
        return ()
    nodes = list(_logger_nodes(validator, value if isinstance(value, list) else [value]))
    names = [node["name"] for node in nodes]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        validator.add_error("too-many", ("loggers",), f"`{name}` is listed {names.count(name)} times", "each once")
    return tuple(nodes)


def _logger_nodes(validator: Validator, items: list[Any]) -> Iterator[Mapping[str, Any]]:
    for index, item in enumerate(items):
        node = {"name": item} if isinstance(item, str) else item
        name = node.get("name") if isinstance(node, Mapping) else None
        keys: Keys = ("loggers", index)
        if not isinstance(name, str):
            validator.add_error("wrong-type", keys, f"expected a logger, got {value_text(item)}", _LOGGERS_EXAMPLE)
        elif name not in LOGGERS:
            message = f'unknown logger "{name}"'
            validator.add_error("unknown-logger", keys, message, join_names(LOGGERS), closest_match(name, LOGGERS))
        elif not LOGGERS[name].is_installed:
            message = f"the logger `{name}` needs the package `{LOGGERS[name].package}`, which is not installed"
            validator.add_error("not-installed", keys, message, f"pip install 'paribus[{name}]'")
        else:
            _check_logger_options(validator, node, keys)
            yield dict(node)


def _check_logger_options(validator: Validator, node: Mapping[str, Any], keys: Keys) -> None:
    types = LOGGERS[node["name"]].options
    for key, value in node.items():
        if key == "name":
            continue
        if key not in types:
            validator.add_unknown_key(key, (*keys, key), tuple(types))
        elif type(value) is not types[key]:
            validator.add_error(
                "wrong-type", (*keys, key), f"got {value_text(value)}", f"a value of type {types[key].__name__}"
            )
