"""What a study tunes: the keys with the values that are tried, and the seeds that they are tried on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, final

from paribus.errors import listed
from paribus.specs.tree import Keys, shown
from paribus.specs.values import Checking
from paribus.studies.designs import Change
from paribus.studies.stages import Stage, clashes

FIRST: Final = 1_000_000  # the first tuning seed: far from those that studies have
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


def tune_of(checking: Checking, given: Any, seeds: Sequence[int]) -> Tune | None:
    """What stands under `tune`, whose seeds must not be those of the verdict."""
    if given is None:
        return None
    found = checking.mapping(given, ("tune",), _VALID) or {}
    values: dict[str, Sequence[Any]] = {}
    for key, each in found.items():
        if key == "seeds":
            continue
        if isinstance(each, list) and each:
            values[str(key)] = each
        else:
            what = f"what is tuned is tried with a list of values, but this is {shown(each)}"
            checking.wrong("wrong-type", ("tune", key), what, _VALID)
    if not values and set(found) <= {"seeds"}:
        checking.wrong("empty", ("tune",), "this tunes nothing", _VALID)
    own = _seeds(checking, found.get("seeds", SEEDS))
    shared = sorted(set(own) & set(seeds))
    if shared:
        what = f"seed {listed(shared, 8)} would choose a value and then be its verdict's"
        checking.wrong("same-seeds", ("tune", "seeds"), what, f"seeds that the study does not have: {FIRST:_} and on")
    return Tune(values, own)


def _seeds(checking: Checking, given: Any) -> tuple[int, ...]:
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= MOST_SEEDS:
        return tuple(range(FIRST, FIRST + given))
    whole = isinstance(given, list) and all(isinstance(seed, int) and not isinstance(seed, bool) for seed in given)
    if whole and given and len(set(given)) == len(given) and all(0 <= seed < 2**63 for seed in given):
        return tuple(given)
    valid = "how many (≥ 1), or a list of different seeds"
    checking.wrong("wrong-type", ("tune", "seeds"), f"this is {shown(given)}", valid)
    return ()


def unclear(
    checking: Checking,
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
            checking.wrong("varied-twice", ("tune", key), what, "vary it, or tune it")
        if any(key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in turned):
            what = f"`{key}` is turned to match a budget, so that tuning it would undo that"
            checking.wrong("varied-twice", ("tune", key), what, "tune what nothing is matched by")
    clashes(checking, stages, [(("tune", key), key) for key in tune.values])
