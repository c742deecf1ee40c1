"""What a study matches its variants on, and the option that is turned for it: in one way, or in several.

Scales: the same study at several sizes. Each is the base with some sizes changed, or on another preset.

What a study tunes: the keys with the values that are tried, and the seeds that they are tried on.

When a study may stop early: `stop: when-decided`, and the numbers of seeds at which it looks.

The loggers of a study: Lightning's, by name, told of every trial while it runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Final, final

from paribus.errors import closest_match, join_names
from paribus.specs.override import put
from paribus.specs.tree import Keys, Tree, copied, shown
from paribus.specs.values import Validator
from paribus.studies.designs import Change
from paribus.studies.stages import Stage, check_stage_keys
from paribus.train.loggers import LOGGERS

TIME: Final = "time"  # of a training step, which is measured and not counted
MATCHES: Final = ("params", "flops", "kv", "state", TIME)


@final
@dataclass(frozen=True)
class Match:
    """What every variant is made to have as much of as the baseline, and the option that is turned for it."""

    on: str
    by: str


def parse_matches(validator: Validator, given: Any) -> tuple[Match | None, ...]:
    """One way to match, or none, or a list of them that are shown side by side."""
    if not isinstance(given, list):
        return (_match(validator, given, ("match",)),)
    found = tuple(_match(validator, None if each == "none" else each, ("match", at)) for at, each in enumerate(given))
    if not found or len(set(found)) < len(found):
        valid = "[{on: params, by: …}, {on: flops, by: …}], or none among them"
        validator.add_error("wrong-type", ("match",), "this list is empty, or has the same twice", valid)
    return found or (None,)


def _match(validator: Validator, given: Any, at: Keys) -> Match | None:
    if given is None:
        return None
    found = validator.mapping(given, at, "on, by") or {}
    for key in found:
        if key not in ("on", "by"):
            validator.unknown(key, (*at, key), ("on", "by"))
    if found.get("on") not in MATCHES:
        validator.add_error("wrong-type", (*at, "on"), _is(found, "on"), join_names(MATCHES))
    if not isinstance(found.get("by"), str):
        validator.add_error("wrong-type", (*at, "by"), _is(found, "by"), "an option: feedforward.expand")
    return Match(str(found.get("on")), str(found.get("by")))


def _is(found: Mapping[str, Any], key: str) -> str:
    """What stands at a key that is needed: what is not there is no null."""
    return f"this is {shown(found[key])}" if key in found else f"`{key}` is missing"


_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
_VALID_SCALES: Final = "scales: {s: {dims.width: 32}, m: {dims.width: 64}}, or presets: [gpt-tiny, gpt2]"
PRESET: Final = "preset"
FEWEST: Final = 2

Begin = Callable[[Mapping[str, Any]], Tree]  # a study's base, from what it says of it


def parse_scales(validator: Validator, given: Any, base: Any, begin: Begin) -> dict[str, Tree]:
    """The base at each scale, by the scale's name; the study's own where it has no scales."""
    if given is None:
        return {}
    if isinstance(given, list) and all(isinstance(each, str) for each in given):
        given = {name: {PRESET: name} for name in given}
    found = validator.mapping(given, ("scales",), _VALID_SCALES) or {}
    if len(found) < FEWEST:
        validator.add_error(
            "too-few", ("scales",), f"this is {len(found)} of the two or more sizes to compare at", _VALID_SCALES
        )
    trees: dict[str, Tree] = {}
    for name, says in found.items():
        at: Keys = ("scales", name)
        if not _NAME.fullmatch(str(name)):
            validator.add_error("bad-name", at, f"a scale cannot be called {shown(name)}", "a word: s, m, l")
        elif (own := validator.mapping(says, at, "{dims.width: 64}, or {preset: NAME}")) is not None:
            if not own:
                validator.add_error("empty", at, f"the scale `{name}` changes nothing", "{dims.width: 64}")
            trees[str(name)] = _at_scale(validator, own, at, base, begin)
    return trees


def _at_scale(validator: Validator, own: Mapping[str, Any], at: Keys, base: Any, begin: Begin) -> Tree:
    """What the scale says, over the base: on another preset, where it names one."""
    below = base if isinstance(base, Mapping) else {PRESET: base}
    tree = begin({**copied(below), PRESET: own[PRESET]} if PRESET in own else copied(below))
    for key, value in own.items():
        if key != PRESET:
            where = validator.tree.where((*at, key))
            put(tree, str(key), Tree(copied(value), {(): where}), where)
    return tree


def check_scale_keys(
    validator: Validator, scales: Mapping[str, Any] | Any, varied: Sequence[tuple[Keys, str]], stages: Sequence[Stage]
) -> None:
    """A key that a scale says, and that is varied as well or said by a stage, would be ignored at that scale."""
    for name, says in scales.items() if isinstance(scales, Mapping) else ():
        for key in says if isinstance(says, Mapping) else ():
            at: Keys = ("scales", name, key)
            other = next((each for _, each in varied if _overlap(str(key), each)), None)
            stage = next((each for each in stages if any(_overlap(str(key), it) for it in each.overrides.data)), None)
            if other is not None:
                what = f"`{other}` is varied, so that the scale's own `{key}` would be ignored"
                validator.add_error("varied-twice", at, what, "a scale changes what no variant does")
            elif stage is not None:
                what = f"the stage `{stage.name}` says this itself, so that the scale's own would be ignored"
                validator.add_error("not-read", at, what, "a scale changes what no stage does")


def _overlap(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


FIRST_TUNING_SEED: Final = 1_000_000  # the first tuning seed: far from those that studies have
SEEDS: Final = 2
MOST_SEEDS: Final = 1_000
_VALID: Final = "tune: {optimizer.lr: [5e-4, 1e-3, 2e-3], seeds: 2}"

Cell = tuple[Change, ...]  # one value for each tuned key


@final
@dataclass(frozen=True)
class Tune:
    """The values of each key, all combinations of which are tried with every variant, on every one of the seeds."""

    values: Mapping[str, Sequence[Any]]
    seeds: tuple[int, ...]

    def cells(self) -> Iterator[Cell]:
        """Every combination, in the order in which the values are written."""
        return product(*([(key, value) for value in values] for key, values in self.values.items()))


def parse_tune(validator: Validator, given: Any, seeds: Sequence[int]) -> Tune | None:
    """What stands under `tune`, whose seeds must not be those of the verdict."""
    if given is None:
        return None
    found = validator.mapping(given, ("tune",), _VALID) or {}
    values: dict[str, Sequence[Any]] = {}
    for key, each in found.items():
        if key == "seeds":
            continue
        if isinstance(each, list) and each:
            values[str(key)] = each
        else:
            what = f"what is tuned is tried with a list of values, but this is {shown(each)}"
            validator.add_error("wrong-type", ("tune", key), what, _VALID)
    if not values and set(found) <= {"seeds"}:
        validator.add_error("empty", ("tune",), "this tunes nothing", _VALID)
    own = parse_seeds(validator, found.get("seeds", SEEDS), ("tune", "seeds"), FIRST_TUNING_SEED, MOST_SEEDS)
    shared = sorted(set(own) & set(seeds))
    if shared:
        what = f"seed {join_names(shared, 8)} would choose a value and then be its verdict's"
        validator.add_error(
            "same-seeds", ("tune", "seeds"), what, f"seeds that the study does not have: {FIRST_TUNING_SEED:_} and on"
        )
    return Tune(values, own)


def parse_seeds(validator: Validator, value: Any, keys: Keys, start: int, limit: int) -> tuple[int, ...]:
    """Return the seeds of a number or list; a number counts from `start`. An unreadable value has one seed."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= limit:
        return tuple(range(start, start + value))
    valid = f"how many (1 to {limit}), or a list of different seeds"
    is_list = isinstance(value, list) and all(isinstance(seed, int) and not isinstance(seed, bool) for seed in value)
    if not is_list or not value or not all(0 <= seed < 2**63 for seed in value):
        validator.add_error("wrong-type", keys, f"this is {shown(value)}", valid)
        return (start,)
    duplicates = sorted({seed for seed in value if value.count(seed) > 1}) if len(set(value)) < len(value) else []
    if duplicates:
        validator.add_error("duplicate-seed", keys, f"listed more than once: seed {join_names(duplicates, 8)}", valid)
    return tuple(dict.fromkeys(value))


def check_tuned_keys(
    validator: Validator,
    tune: Tune | None,
    varied: Sequence[tuple[Keys, str]],
    stages: Sequence[Stage],
    turned: Sequence[str],
) -> None:
    """A key that is tuned and varied, or tuned and turned to match, would lose what the one or the other says."""
    if tune is None:
        return
    for key in tune.values:
        if any(key == other for _, other in varied):
            what = f"`{key}` is varied, so that tuning it would make those variants one"
            validator.add_error("varied-twice", ("tune", key), what, "vary it, or tune it")
        if any(key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in turned):
            what = f"`{key}` is turned to match a budget, so that tuning it would undo that"
            validator.add_error("varied-twice", ("tune", key), what, "tune what nothing is matched by")
    check_stage_keys(validator, stages, [(("tune", key), key) for key in tune.values])


WHEN: Final = "when-decided"
WRITTEN: Final = f"{WHEN}, or {{when: decided, looks: [3, 5, 8]}}"
FIRST_LOOK: Final = (3, 5, 8, 12, 18, 27, 40, 60, 90, 135, 200)  # each about half as many again
NEAR: Final = 0.75  # of all seeds: a look beyond it would save less than it costs
ONE_TABLE: Final = ("one-at-a-time", "grid", "list", "leave-one-out")  # designs whose every claim is variant - baseline


def parse_looks(validator: Validator, given: Mapping[str, Any], design: str, seeds: Sequence[int]) -> tuple[int, ...]:
    """The numbers of seeds at which verdicts are taken, the last of which is all; none where nothing stops early."""
    asked = given.get("stop")
    if asked is None:
        return ()
    if given.get("tune") is not None:
        what = "a look is at all tables together, and that of what is tuned has no trials before its tuning has ended"
        validator.add_error("not-together", ("stop",), what, "`stop` in a study without `tune`")
    if design not in ONE_TABLE:
        what = f"the design `{design}` holds variants against one another too, so it needs all seeds of each"
        validator.add_error("not-together", ("stop",), what, join_names(ONE_TABLE))
    if isinstance(asked, Mapping):
        for key in asked:
            if key not in ("when", "looks"):
                validator.unknown(key, ("stop", key), ("when", "looks"))
        if asked.get("when", "decided") not in ("decided", WHEN):
            validator.add_error("wrong-type", ("stop", "when"), f"this is {shown(asked['when'])}", "decided")
        if "looks" in asked:
            return _given(validator, asked["looks"], len(seeds))
    elif asked != WHEN:
        validator.add_error("wrong-type", ("stop",), f"this is {shown(asked)}", WRITTEN)
        return ()
    return _usual(validator, len(seeds))


def _usual(validator: Validator, seeds: int) -> tuple[int, ...]:
    """3, 5, 8 … and all."""
    early = tuple(look for look in FIRST_LOOK if look <= NEAR * seeds)
    if not early:
        what = f"with {seeds} seeds there is no look before the last, so nothing could stop early"
        validator.add_error("not-read", ("stop",), what, "seeds: 4, or more")
    return (*early, seeds)


def _given(validator: Validator, looks: Any, seeds: int) -> tuple[int, ...]:
    whole = isinstance(looks, list) and all(isinstance(look, int) and not isinstance(look, bool) for look in looks)
    valid = f"numbers of seeds that grow, from 2 to {seeds}, which is all: [3, {seeds}]"
    if not whole or len(looks) < 2 or looks[0] < 2 or any(after <= before for before, after in pairwise(looks)):
        validator.add_error("wrong-type", ("stop", "looks"), f"this is {shown(looks)}", valid)
        return ()
    if looks[-1] != seeds:
        what = f"the last look is at {looks[-1]} seeds, and the study has {seeds}"
        validator.add_error("wrong-type", ("stop", "looks"), what, valid)
    return tuple(looks)


EXAMPLE: Final = "loggers: [csv, {name: tensorboard}]"


def parse_loggers(validator: Validator, given: Any) -> tuple[Mapping[str, Any], ...]:
    """What `loggers:` says, each as a mapping with a name; a package that is missing is told now."""
    if given is None:
        return ()
    nodes = list(_nodes(validator, given if isinstance(given, list) else [given]))
    names = [node["name"] for node in nodes]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        validator.add_error("too-many", ("loggers",), f"`{name}` stands here {names.count(name)} times", "each once")
    return tuple(nodes)


def _nodes(validator: Validator, given: list[Any]) -> Iterator[Mapping[str, Any]]:
    for place, each in enumerate(given):
        node = {"name": each} if isinstance(each, str) else each
        name = node.get("name") if isinstance(node, Mapping) else None
        at = ("loggers", place)
        if not isinstance(name, str):
            validator.add_error("wrong-type", at, f"this is {shown(each)}", EXAMPLE)
        elif name not in LOGGERS:
            what = f'unknown logger "{name}"'
            validator.add_error("unknown-logger", at, what, join_names(LOGGERS), closest_match(name, LOGGERS))
        elif not LOGGERS[name].there:
            package = LOGGERS[name].package
            what = f"the logger `{name}` needs the package `{package}`, which is not installed"
            validator.add_error("no-package", at, what, f"pip install 'paribus[{name}]'")
        else:
            _options(validator, node, at)
            yield dict(node)


def _options(validator: Validator, node: Mapping[str, Any], at: tuple[Any, ...]) -> None:
    known = LOGGERS[node["name"]].options
    for key, value in node.items():
        if key == "name":
            continue
        if key not in known:
            validator.unknown(key, (*at, key), tuple(known))
        elif type(value) is not known[key]:
            validator.add_error(
                "wrong-type", (*at, key), f"this is {shown(value)}", f"a value of type {known[key].__name__}"
            )
