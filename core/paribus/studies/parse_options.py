"""Parse the options of a study besides what it varies, which `study_keys.py` declares: match, scales, tune, stop …"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Final, final

from paribus.errors import join_names
from paribus.schema import Kind, Names, Option
from paribus.specs.load import set_path
from paribus.specs.tree import UNREAD, Keys, Tree, copy_values, value_text
from paribus.specs.values import Validator
from paribus.studies.designs import Change
from paribus.studies.stages import Stage, check_stage_keys, is_overlap
from paribus.studies.study_keys import STUDY_OPTIONS, CommonKeys, Match, Stop
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


def check_matches(validator: Validator, matches: Sequence[Match | None]) -> None:
    """Report an empty list of matches, and a match that is listed twice."""
    is_empty = not matches and validator.tree.data.get("match") == []
    if is_empty or any(matches.count(match) > 1 for match in matches if match is None or (match.on and match.by)):
        valid = "[{on: params, by: …}, {on: flops, by: …}], optionally with none"
        message = "the list is empty" if is_empty else "the list has the same match twice"
        validator.add_error("wrong-type", ("match",), message, valid)


# --- scales ---

SCALE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
_VALID_SCALES: Final = f"{STUDY_OPTIONS['scales'].example_text}, or presets: [gpt-tiny, gpt2]"
PRESET: Final = "preset"
MIN_SCALES: Final = 2

LoadBase = Callable[[Any, str], Tree]  # a study's base spec from a value of the file, and the key of its problems


def parse_scales(validator: Validator, value: Any) -> dict[str, Mapping[str, Any]]:
    """Return the changes of the base at each scale by the scale's name; empty for a study without scales."""
    if value is None:
        return {}
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = {name: {PRESET: name} for name in value}
    scales = validator.as_mapping(value, ("scales",), _VALID_SCALES) or {}
    if len(scales) < MIN_SCALES:
        message = f"expected two or more sizes to compare at, got {len(scales)}"
        validator.add_error("too-few", ("scales",), message, _VALID_SCALES)
    valid_scales: dict[str, Mapping[str, Any]] = {}
    for name, changes in scales.items():
        keys: Keys = ("scales", name)
        if not SCALE_NAME.fullmatch(str(name)):
            validator.add_error("bad-name", keys, f"a scale cannot be called {value_text(name)}", "a word: s, m, l")
        elif (overrides := validator.as_mapping(changes, keys, "{dims.width: 64}, or {preset: NAME}")) is not None:
            if not overrides:
                validator.add_error("empty", keys, f"the scale `{name}` changes nothing", "{dims.width: 64}")
            valid_scales[str(name)] = overrides
    return valid_scales


def scaled_base(validator: Validator, name: str, overrides: Mapping[str, Any], base: Any, load_base: LoadBase) -> Tree:
    """Return the base with the scale's changes, on another preset where the scale names one."""
    spec = base if isinstance(base, Mapping) else {PRESET: base}
    tree = load_base({**spec, PRESET: overrides[PRESET]} if PRESET in overrides else dict(spec), "scales")
    for key, value in overrides.items():
        if key != PRESET:
            location = validator.tree.location(("scales", name, key))
            set_path(tree, str(key), Tree(copy_values(value), {(): location}), location)
    return tree


def check_scale_keys(
    validator: Validator,
    scales: Mapping[str, Mapping[str, Any]],
    varied: Sequence[tuple[Keys, str]],
    stages: Sequence[Stage],
) -> None:
    """Report keys of a scale that a variant or a stage also sets, so that the scale's value would be ignored."""
    for name, key in ((name, str(key)) for name, changes in scales.items() for key in changes):
        varied_key = next((other for _, other in varied if is_overlap(key, other)), None)
        stage = next((stage for stage in stages if any(is_overlap(key, it) for it in stage.overrides.data)), None)
        if varied_key is not None:
            message = f"`{varied_key}` is varied, so the scale's `{key}` would be ignored"
            validator.add_error("varied-twice", ("scales", name, key), message, "a key that no variant changes")
        elif stage is not None:
            message = f"the stage `{stage.name}` sets `{key}`, so the scale's value would be ignored"
            validator.add_error("unused-option", ("scales", name, key), message, "a key that no stage sets")


# --- tune ---

FIRST_TUNING_SEED: Final = 1_000_000  # far from the seeds of studies
TUNING_SEEDS: Final = 2
MAX_TUNING_SEEDS: Final = 1_000
_VALID_TUNE: Final = STUDY_OPTIONS["tune"].example_text

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


def parse_tune(validator: Validator, section: Mapping[str, Any] | None, seeds: Sequence[int]) -> Tune | None:
    """Return the section `tune`. Its seeds must not be those of the verdict."""
    if section is None:
        return None
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

DEFAULT_LOOKS: Final = (3, 5, 8, 12, 18, 27, 40, 60, 90, 135, 200)  # each about half as many again
LAST_EARLY_LOOK: Final = 0.75  # of all seeds: a later look would save less than it costs
ONE_TABLE: Final = ("one-at-a-time", "grid", "list", "leave-one-out")  # designs that compare only with the baseline


def check_looks(validator: Validator, keys: CommonKeys, seeds: int) -> tuple[int, ...]:
    """Return the numbers of seeds at which verdicts are taken, ending with all; empty without early stopping."""
    if keys.stop is None or any(problem.path == "seeds" for problem in validator.problems):
        return ()
    if keys.tune is not None:
        message = "early stopping looks at all tables at once, and a tuned table has no trials until tuning has ended"
        validator.add_error("incompatible-options", ("stop",), message, "`stop` in a study without `tune`")
    if keys.design and keys.design not in ONE_TABLE:
        message = f"the design `{keys.design}` also compares variants with each other, so it needs all seeds of each"
        validator.add_error("incompatible-options", ("stop",), message, join_names(ONE_TABLE))
    if keys.stop.open:
        return _open_ended_looks(validator, keys.stop, seeds)
    looks = default_looks(seeds) if keys.stop.looks is None else keys.stop.looks
    valid = f"increasing numbers of seeds from 2 to {seeds}, which is all: [{min(3, seeds - 1)}, {seeds}]"
    if seeds < 3 or (keys.stop.looks is None and len(looks) == 1):
        message = f"{seeds} seeds are too few to stop early"
        validator.add_error("unused-option", ("stop",), message, "seeds: 4, or more")
    elif len(looks) < 2 or looks[0] < 2 or any(later <= look for look, later in pairwise(looks)):
        validator.add_error(
            "wrong-type", ("stop", "looks"), f"expected two or more increasing numbers, got {list(looks)}", valid
        )
    elif looks[-1] != seeds:
        message = f"the last look is at {looks[-1]} seeds, but the study has {seeds}"
        validator.add_error("wrong-type", ("stop", "looks"), message, valid)
    return looks


def _open_ended_looks(validator: Validator, stop: Stop, seeds: int) -> tuple[int, ...]:
    """Return the numbers of seeds at which a variant may stop, where verdicts hold at any: those below all, and all."""
    looks = stop.looks if stop.looks is not None else [look for look in default_looks(seeds) if look > DEFAULT_LOOKS[0]]
    if seeds < 2:
        validator.add_error("unused-option", ("stop",), "an interval needs two seeds or more", "seeds: 8")
    if any(look < 2 for look in looks) or any(later <= look for look, later in pairwise(looks)):
        valid = "increasing numbers of seeds from 2: [5, 8]"
        validator.add_error("wrong-type", ("stop", "looks"), f"expected increasing numbers, got {list(looks)}", valid)
    return (*(look for look in looks if look < seeds), seeds)


def default_looks(seeds: int) -> tuple[int, ...]:
    """Return 3, 5, 8 … and the number of all seeds."""
    return (*(look for look in DEFAULT_LOOKS if look <= LAST_EARLY_LOOK * seeds), seeds)


# --- worth ---


@final
@dataclass(frozen=True)
class Worth:
    """Budgets at which the baseline is trained, as multiples of the study's, in increasing order with 1."""

    factors: tuple[float, ...]
    option: str = ""  # of a program's budget


def parse_worth(validator: Validator, keys: CommonKeys, written: Sequence[float], place: Keys) -> tuple[float, ...]:
    """Return the multiples of the budget in increasing order, with 1; empty if none is written."""
    if not written:
        return ()
    if keys.stop is not None:
        message = "early stopping would leave the baseline with fewer seeds at other budgets"
        validator.add_error("incompatible-options", ("stop",), message, "`stop` in a study without `worth`")
    factors = tuple(sorted({*map(float, written), 1.0}))
    if len(factors) == 1:
        message = "the baseline is trained at the budget of the study anyway"
        validator.add_error("unused-option", place, message, "other multiples, such as [0.5, 0.71, 1, 1.41, 2]")
    return factors


# --- loggers ---

_LOGGER: Final = Option("name", Kind("str"), "a logger", (Names("logger", tuple(LOGGERS)),), required=True)
_KINDS: Final[Mapping[type, Kind]] = {int: Kind("int"), str: Kind("str"), bool: Kind("bool")}


def logger_options(name: str) -> list[Option]:
    """Return the keys of a logger."""
    return [
        _LOGGER,
        *(Option(key, _KINDS[kind], f"`{key}` of the logger") for key, kind in LOGGERS[name].options.items()),
    ]


def parse_loggers(validator: Validator, value: Any) -> tuple[Mapping[str, Any], ...]:
    """Return the section `loggers` as mappings with a name; a missing package is an error."""
    nodes: list[Mapping[str, Any]] = []
    for index, item in enumerate(value if isinstance(value, list) else [] if value is None else [value]):
        keys: Keys = ("loggers", index)
        node = {"name": item} if isinstance(item, str) else item
        if not isinstance(node, Mapping) or not isinstance(node.get("name"), str):
            message, valid = f"expected a logger, got {value_text(item)}", STUDY_OPTIONS["loggers"].example_text
            validator.add_error("wrong-type", keys, message, valid)
        elif validator.read_option(_LOGGER, node["name"], keys, {}) is not UNREAD:
            logger = LOGGERS[node["name"]]
            if not logger.is_installed:
                message = f"the logger `{node['name']}` needs the package `{logger.package}`, which is not installed"
                validator.add_error("not-installed", keys, message, f"pip install 'paribus[{node['name']}]'")
            validator.read_given(logger_options(node["name"]), node, keys, {})
            nodes.append(dict(node))
    names = [node["name"] for node in nodes]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        validator.add_error("too-many", ("loggers",), f"`{name}` is listed {names.count(name)} times", "each once")
    return tuple(nodes)
