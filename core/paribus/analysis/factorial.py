"""Effects of the factors of a factorial: main effects, pairwise interactions and Shapley shares, with verdicts.

An effect is a weighted sum over the cells of one seed, so seeds stay paired.

- A **main effect** is the change that a level of a factor makes, averaged over the levels of all other factors.
- An **interaction** of two levels is the difference between the effect of one where the other is on and where it is
off.
- A **Shapley share** is the change that a factor makes when it is added to the factors that are on already, averaged
over all orders of adding them (Shapley 1953): the shares add up to the full model minus the base.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Final, NamedTuple, final

from paribus.analysis.formatting import percent, plural
from paribus.analysis.pairing import PairedTrials, has_learned, is_vacuous
from paribus.analysis.select_trials import FAILED_STATES, TrialsByVariant
from paribus.analysis.table import UNLEARNED, Family, Row, verdict_fields
from paribus.analysis.trials import Cell, ComparisonSpec, FactorialCells, Level
from paribus.analysis.verdicts import PairedDifferences, decide
from paribus.errors import join_names
from paribus.planning.settings import Setting
from paribus.studies.designs import Variation, cells_with_variants

Weights = Mapping[Cell, float]


def main_effect(cells: Sequence[Cell], level: Level) -> Weights:
    """Return the weights of the mean of the cells with this level minus the mean of those with the base's."""
    on = [cell for cell in cells if cell[level.factor] == level.level]
    off = [cell for cell in cells if cell[level.factor] == 0]
    return {**dict.fromkeys(on, 1 / len(on)), **dict.fromkeys(off, -1 / len(off))}


def interaction(cells: Sequence[Cell], first: Level, second: Level) -> Weights:
    """Return the weights of the effect of one level where the other is on, minus that where it is off."""
    weights: dict[Cell, float] = {}
    for one_on, other_on in product((True, False), repeat=2):
        levels = (first.level if one_on else 0, second.level if other_on else 0)
        matching = [cell for cell in cells if (cell[first.factor], cell[second.factor]) == levels]
        weights |= dict.fromkeys(matching, (1 if one_on == other_on else -1) / len(matching))
    return weights


def shapley(factors: int, factor: int) -> Weights:
    """Return the weights of the Shapley share of a factor, where all factors are on or off."""
    weights: dict[Cell, float] = {}
    for cell in product((0, 1), repeat=factors):
        others_on = sum(cell) - cell[factor]
        share = 1 / (factors * math.comb(factors - 1, others_on))
        weights[cell] = share if cell[factor] else -share
    return weights


def levels(counts: Sequence[int]) -> list[Level]:
    """Return all levels but the base's, for factors with so many levels each, the base's included."""
    return [Level(factor, level) for factor, count in enumerate(counts) for level in range(1, count)]


def level_pairs(counts: Sequence[int]) -> Iterator[tuple[Level, Level]]:
    """Return the pairs of levels of different factors."""
    return ((one, other) for one, other in combinations(levels(counts), 2) if one.factor != other.factor)


def effect_value(weights: Weights, values: Mapping[Cell, float]) -> float:
    """Return the value of an effect on one seed."""
    return math.fsum(weight * values[cell] for cell, weight in weights.items())


MOST: Final = 2  # reasons that are told of one effect


def factorial_cells(varied: Variation, setting: Setting) -> FactorialCells:
    """Return the cells of a factorial as planned."""
    planned = {variant.name for variant in setting.variants}
    excluded = {item.variant: item for item in setting.excluded}
    cells: dict[Cell, str] = {}
    missing: dict[Cell, str] = {}
    for cell, variant in cells_with_variants(varied):
        name = variant.name
        same = excluded[name].same_as if name in excluded else name
        if same in planned:
            cells[cell] = same
        else:
            missing[cell] = f"{name} is excluded"
    names = tuple(tuple(level.name for level in item) for item in varied.factors)
    return FactorialCells(factors=names, cells=cells, missing=missing, regular=varied.regular)


@final
class _Effect(NamedTuple):
    """An effect to estimate: its name, its weights, and its aliases."""

    name: str
    weights: Weights
    aliases: tuple[str, ...] = ()


@final
class _Values:
    """The metric in every cell, and why some cells cannot be used."""

    def __init__(
        self,
        trials: TrialsByVariant,
        paired: Mapping[str, PairedTrials],
        comparison: ComparisonSpec,
        crossed: FactorialCells,
    ) -> None:
        self.comparison = comparison
        self.crossed = crossed
        names = set(crossed.cells.values())
        self.numbers = {name: _numbers(trials, paired, name, comparison) for name in names}
        self.learned = {name: has_learned(list(trials[name].values()), comparison) for name in names}
        self.faults = {name: fault for name in names if (fault := _fault(trials, paired, name, comparison))}

    def reason(self, weights: Weights) -> str:
        """Return why an effect of these cells is withheld; empty where it is not."""
        named = {self.crossed.cells[cell]: None for cell in weights if cell in self.crossed.cells}
        reasons = [self.crossed.missing[cell] for cell in weights if cell in self.crossed.missing]
        reasons += [self.faults[name] for name in named if name in self.faults]
        if reasons:
            suffix = f", and {len(reasons) - MOST} more cells" if len(reasons) > MOST else ""
            return "; ".join(reasons[:MOST]) + suffix
        return "" if self.seeds(weights) else f"no seed has all {len(named)} cells that it needs"

    def seeds(self, weights: Weights) -> list[int]:
        """Return the seeds that have all cells."""
        have = [self.numbers[self.crossed.cells[cell]] for cell in weights]
        return [seed for seed in self.comparison.seeds if all(seed in values for values in have)]

    def differences(self, weights: Weights) -> tuple[float, ...]:
        """Return the effect on each seed."""
        return tuple(
            effect_value(weights, {cell: self.numbers[self.crossed.cells[cell]][seed] for cell in weights})
            for seed in self.seeds(weights)
        )

    def unlearned(self, weights: Weights, kind: str) -> bool:
        """Return whether the effect would be between models that learned nothing."""
        learned = [self.learned[self.crossed.cells[cell]] is not False for cell in weights]
        return not self.comparison.allow_unlearned and is_vacuous(kind, any(learned), all(learned))


def effects(
    trials: TrialsByVariant, paired: Mapping[str, PairedTrials], comparison: ComparisonSpec, settings: int = 1
) -> Iterator[Family]:
    """Yield the families of a factorial; nothing for other designs. All `settings` of a study share its alpha."""
    crossed = comparison.factorial
    if crossed is None:
        return
    values = _Values(trials, paired, comparison, crossed)
    families = [("main_effects", "main effects", _main(crossed)), ("interactions", "interactions", _pairs(crossed))]
    shared = _shares(crossed)
    families += [("shapley", "Shapley shares of full - none", shared)] if shared else []
    requested = [family for family in families if family[2]]
    settings_spec = replace(comparison, alpha=comparison.alpha / settings)
    end = _end(crossed, len(requested) + 1, comparison, settings)
    for place, (key, title, effects_of_family) in enumerate(requested, start=1):
        rows = _decided(effects_of_family, values, settings_spec)
        caption = (
            *_captions(key, len(effects_of_family), crossed, settings_spec),
            *(end if place == len(requested) else ()),
        )
        yield Family(key=key, title=title, rows=rows, caption=caption)


def _decided(effects: Sequence[_Effect], values: _Values, comparison: ComparisonSpec) -> tuple[Row, ...]:
    """Return the rows of a family; withheld effects stay in the family, where they prove nothing."""
    reasons = [values.reason(effect.weights) for effect in effects]
    paired = {
        str(place): PairedDifferences(
            differences=() if reason else values.differences(effect.weights),
            seeds=() if reason else tuple(values.seeds(effect.weights)),
            diverged=0,
            planned=len(comparison.seeds),
        )
        for place, (effect, reason) in enumerate(zip(effects, reasons, strict=True))
    }
    verdicts = decide(paired, better=comparison.better, margin=comparison.margin, alpha=comparison.alpha)
    rows: list[Row] = []
    for place, (effect, reason) in enumerate(zip(effects, reasons, strict=True)):
        verdict = verdicts[str(place)]
        empty_handed = not reason and values.unlearned(effect.weights, verdict.kind)
        text = UNLEARNED if empty_handed else f"withheld ({reason})" if reason else ""
        fields = {"kind": "withheld", "verdict": text} if text else verdict_fields(verdict)
        rows.append(
            Row(variant=effect.name, n=verdict.n, planned=len(comparison.seeds), aliases=effect.aliases, **fields)
        )
    return tuple(rows)


def _main(crossed: FactorialCells) -> list[_Effect]:
    return [
        _Effect(crossed.name(level), main_effect(crossed.all, level), crossed.aliases(level))
        for level in levels(crossed.counts)
    ]


def _pairs(crossed: FactorialCells) -> list[_Effect]:
    """Return the interactions that are not aliases of main effects; one stands for all of its aliases."""
    interactions: list[_Effect] = []
    listed_names: set[str] = set()
    single = {crossed.name(level) for level in levels(crossed.counts)}
    for one, other in level_pairs(crossed.counts):
        name, aliases = crossed.name(one, other), crossed.aliases(one, other)
        if name not in listed_names and not single & set(aliases):
            listed_names |= {name, *aliases}
            interactions.append(_Effect(name, interaction(crossed.all, one, other), aliases))
    return interactions


def _shares(crossed: FactorialCells) -> list[_Effect]:
    if crossed.regular is not None or any(count > 2 for count in crossed.counts):
        return []
    factors = len(crossed.counts)
    return [_Effect(crossed.name(Level(factor, 1)), shapley(factors, factor)) for factor in range(factors)]


def _captions(key: str, count: int, crossed: FactorialCells, comparison: ComparisonSpec) -> Iterator[str]:
    level = percent(1 - comparison.alpha)
    if key == "main_effects":
        yield (
            "A main effect is the change by a level, averaged over the cells of all other factors, seed by seed; "
            f"Student-t, Holm over {plural(count, 'main effect')} at {level}."
        )
    elif key == "interactions":
        yield (
            "An interaction is the change by one factor while the other is on, minus the change while it is off: "
            "`better` means that the two together do better than the sum of their single effects, and 0 that the "
            f"effects add up; Holm over {plural(count, 'interaction')} at {level}."
        )
    else:
        cells = len(crossed.all)
        yield (
            f"A Shapley share is the change by adding a factor, averaged over all orders of adding them ({cells} cells "
            f"a seed); on each seed the shares sum to full - none. Holm over {plural(count, 'share')} at {level}."
        )


def _end(crossed: FactorialCells, families: int, comparison: ComparisonSpec, settings: int) -> Iterator[str]:
    if crossed.regular is not None:
        yield "A fraction has no Shapley shares: they need every combination of the factors."
    elif any(count > 2 for count in crossed.counts):
        yield "A factor with more than two levels has no Shapley shares: they need a factor to be on or off."
    scope = f"in all {settings} settings together" if settings > 1 else "by itself"
    yield (
        f"Each of these families has {percent(1 - comparison.alpha)} confidence {scope}, as have the verdicts above; "
        f"all {families} together have {percent(max(0.0, 1 - families * comparison.alpha))}."
    )


def _numbers(
    trials: TrialsByVariant, paired: Mapping[str, PairedTrials], name: str, comparison: ComparisonSpec
) -> dict[int, float]:
    """Return the metric by seed, of the trials that may be compared with the baseline."""
    if name == comparison.baseline:
        entries = list(trials[name].values())
    else:
        entries = [variant for _, variant in paired[name].finished]
    return {entry.seed: value for entry in entries if (value := entry.value(comparison.metric)) is not None}


def _fault(trials: TrialsByVariant, paired: Mapping[str, PairedTrials], name: str, comparison: ComparisonSpec) -> str:
    """Return why a cell cannot be used; empty where it can."""
    if name != comparison.baseline and paired[name].reason:
        return f"{name}: {paired[name].reason}"
    variant_trials = trials[name].values()
    for outcome, seeds in (
        ("diverged", [entry.seed for entry in variant_trials if entry.diverged(comparison.metric)]),
        ("failed", [entry.seed for entry in variant_trials if entry.record is None and entry.state in FAILED_STATES]),
    ):
        if seeds:
            return f"{name} {outcome} on seed {join_names(sorted(seeds), 4)}"
    return "" if any(entry.record is not None for entry in variant_trials) else f"{name} has no result yet"
