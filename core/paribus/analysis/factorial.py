"""Effects of the factors of a factorial: main effects, pairwise interactions and Shapley shares, with verdicts.

An effect is a weighted sum over the cells of one seed, so seeds stay paired.

- A **main effect** is the change that a level of a factor makes, averaged over the levels of all other factors.
- An **interaction** of two levels is the effect of one level while the other is on, minus its effect while the other
  is off.
- A **Shapley share** is the change that a factor makes when it is added, averaged over all orders of adding the factors
  (Shapley 1953). The shares add up to the full model minus the base.
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
from paribus.analysis.table import Family, Row, verdict_fields
from paribus.analysis.trials import Cell, ComparisonSpec, FactorialCells, Level
from paribus.analysis.verdict_words import UNLEARNED, withheld_text
from paribus.analysis.verdicts import PairedDifferences, decide
from paribus.errors import join_names
from paribus.planning.settings import Setting
from paribus.studies.designs import Variation, cells_with_variants

Weights = Mapping[Cell, float]

MAX_REASONS: Final = 2  # reasons in the text of a withheld effect


def main_effect(cells: Sequence[Cell], level: Level) -> Weights:
    """Return the weights of the mean of the cells with this level, minus the mean of those with the base's level."""
    cells_on = [cell for cell in cells if cell[level.factor] == level.level]
    cells_off = [cell for cell in cells if cell[level.factor] == 0]
    return {**dict.fromkeys(cells_on, 1 / len(cells_on)), **dict.fromkeys(cells_off, -1 / len(cells_off))}


def interaction(cells: Sequence[Cell], first_level: Level, second_level: Level) -> Weights:
    """Return the weights of the effect of one level while the other is on, minus its effect while the other is off."""
    weights: dict[Cell, float] = {}
    for first_on, second_on in product((True, False), repeat=2):
        levels = (first_level.level if first_on else 0, second_level.level if second_on else 0)
        matching = [cell for cell in cells if (cell[first_level.factor], cell[second_level.factor]) == levels]
        weights |= dict.fromkeys(matching, (1 if first_on == second_on else -1) / len(matching))
    return weights


def shapley(factors: int, factor: int) -> Weights:
    """Return the weights of the Shapley share of a factor, given the number of factors with two levels."""
    weights: dict[Cell, float] = {}
    for cell in product((0, 1), repeat=factors):
        others_on = sum(cell) - cell[factor]
        share = 1 / (factors * math.comb(factors - 1, others_on))
        weights[cell] = share if cell[factor] else -share
    return weights


def levels(counts: Sequence[int]) -> list[Level]:
    """Return all levels except the base's; `counts` is the number of levels of each factor, including the base's."""
    return [Level(factor, level) for factor, count in enumerate(counts) for level in range(1, count)]


def level_pairs(counts: Sequence[int]) -> Iterator[tuple[Level, Level]]:
    """Return the pairs of levels of different factors."""
    return (
        (first_level, second_level)
        for first_level, second_level in combinations(levels(counts), 2)
        if first_level.factor != second_level.factor
    )


def effect_value(weights: Weights, values: Mapping[Cell, float]) -> float:
    """Return the value of an effect on one seed."""
    return math.fsum(weight * values[cell] for cell, weight in weights.items())


def factorial_cells(varied: Variation, setting: Setting) -> FactorialCells:
    """Return the cells of a factorial as planned."""
    planned = {variant.name for variant in setting.variants}
    excluded = {item.variant: item for item in setting.excluded}
    cells: dict[Cell, str] = {}
    missing: dict[Cell, str] = {}
    for cell, variant in cells_with_variants(varied):
        name = variant.name
        equivalent_name = excluded[name].same_as if name in excluded else name
        if equivalent_name in planned:
            cells[cell] = equivalent_name
        else:
            missing[cell] = f"{name} is excluded"
    names = tuple(tuple(level.name for level in factor) for factor in varied.factors)
    return FactorialCells(factors=names, cells=cells, missing=missing, regular=varied.regular)


@final
class _Effect(NamedTuple):
    """An effect to estimate: its name, its weights, and its aliases."""

    name: str
    weights: Weights
    aliases: tuple[str, ...] = ()


@final
class _Values:
    """The metric in each cell, and the reasons why some cells cannot be used."""

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
        self.values = {name: _metric_by_seed(trials, paired, name, comparison) for name in names}
        self.learned = {name: has_learned(list(trials[name].values()), comparison) for name in names}
        self.reasons = {name: text for name in names if (text := _unusable_reason(trials, paired, name, comparison))}

    def reason(self, weights: Weights) -> str:
        """Return why an effect of these cells is withheld, or an empty string."""
        names = {self.crossed.cells[cell]: None for cell in weights if cell in self.crossed.cells}
        reasons = [self.crossed.missing[cell] for cell in weights if cell in self.crossed.missing]
        reasons += [self.reasons[name] for name in names if name in self.reasons]
        if reasons:
            suffix = f", and {len(reasons) - MAX_REASONS} more cells" if len(reasons) > MAX_REASONS else ""
            return "; ".join(reasons[:MAX_REASONS]) + suffix
        return "" if self.seeds(weights) else f"no seed has all {len(names)} cells that it needs"

    def seeds(self, weights: Weights) -> list[int]:
        """Return the seeds with a metric in all cells."""
        cell_values = [self.values[self.crossed.cells[cell]] for cell in weights]
        return [seed for seed in self.comparison.seeds if all(seed in values for values in cell_values)]

    def differences(self, weights: Weights) -> tuple[float, ...]:
        """Return the effect on each seed."""
        return tuple(
            effect_value(weights, {cell: self.values[self.crossed.cells[cell]][seed] for cell in weights})
            for seed in self.seeds(weights)
        )

    def is_vacuous(self, weights: Weights, kind: str) -> bool:
        """Return whether a verdict of this kind would be about models that learned nothing."""
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
    families = [
        ("main_effects", "main effects", _main_effects(crossed)),
        ("interactions", "interactions", _interactions(crossed)),
        ("shapley", "Shapley shares of full - none", _shares(crossed)),
    ]
    families = [family for family in families if family[2]]
    setting_comparison = replace(comparison, alpha=comparison.alpha / settings)
    common_lines = _common_caption(crossed, len(families) + 1, comparison, settings)
    for index, (key, title, family_effects) in enumerate(families, start=1):
        rows = _rows(family_effects, values, setting_comparison)
        caption = (
            *_captions(key, len(family_effects), crossed, setting_comparison),
            *(common_lines if index == len(families) else ()),
        )
        yield Family(key=key, title=title, rows=rows, caption=caption)


def _rows(effects: Sequence[_Effect], values: _Values, comparison: ComparisonSpec) -> tuple[Row, ...]:
    """Return the rows of a family; a withheld effect has no differences, but still counts in the family."""
    reasons = [values.reason(effect.weights) for effect in effects]
    paired = {
        str(index): PairedDifferences(
            differences=() if reason else values.differences(effect.weights),
            seeds=() if reason else tuple(values.seeds(effect.weights)),
            diverged=0,
            planned=len(comparison.seeds),
        )
        for index, (effect, reason) in enumerate(zip(effects, reasons, strict=True))
    }
    verdicts = decide(paired, better=comparison.better, margin=comparison.margin, alpha=comparison.alpha)
    rows: list[Row] = []
    for index, (effect, reason) in enumerate(zip(effects, reasons, strict=True)):
        verdict = verdicts[str(index)]
        is_vacuous_verdict = not reason and values.is_vacuous(effect.weights, verdict.kind)
        text = UNLEARNED if is_vacuous_verdict else withheld_text(reason) if reason else ""
        fields = {"kind": "withheld", "verdict": text} if text else verdict_fields(verdict)
        rows.append(
            Row(variant=effect.name, n=verdict.n, planned=len(comparison.seeds), aliases=effect.aliases, **fields)
        )
    return tuple(rows)


def _main_effects(crossed: FactorialCells) -> list[_Effect]:
    return [
        _Effect(crossed.name(level), main_effect(crossed.all, level), crossed.aliases(level))
        for level in levels(crossed.counts)
    ]


def _interactions(crossed: FactorialCells) -> list[_Effect]:
    """Return the interactions that are not aliases of main effects; of aliased interactions, only the first."""
    interactions: list[_Effect] = []
    covered_names: set[str] = set()
    main_names = {crossed.name(level) for level in levels(crossed.counts)}
    for first_level, second_level in level_pairs(crossed.counts):
        name, aliases = crossed.name(first_level, second_level), crossed.aliases(first_level, second_level)
        if name not in covered_names and not main_names & set(aliases):
            covered_names |= {name, *aliases}
            interactions.append(_Effect(name, interaction(crossed.all, first_level, second_level), aliases))
    return interactions


def _shares(crossed: FactorialCells) -> list[_Effect]:
    """Return the Shapley shares; a fraction, or a factor with more than two levels, has none."""
    if crossed.regular is not None or any(count > 2 for count in crossed.counts):
        return []
    count = len(crossed.counts)
    return [_Effect(crossed.name(Level(factor, 1)), shapley(count, factor)) for factor in range(count)]


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


def _common_caption(crossed: FactorialCells, families: int, comparison: ComparisonSpec, settings: int) -> Iterator[str]:
    if crossed.regular is not None:
        yield "A fraction has no Shapley shares: they need every combination of the factors."
    elif any(count > 2 for count in crossed.counts):
        yield "A factor with more than two levels has no Shapley shares: they need a factor to be on or off."
    scope = f"in all {settings} settings together" if settings > 1 else "by itself"
    yield (
        f"Each of these families has {percent(1 - comparison.alpha)} confidence {scope}, as have the verdicts above; "
        f"all {families} together have {percent(max(0.0, 1 - families * comparison.alpha))}."
    )


def _metric_by_seed(
    trials: TrialsByVariant, paired: Mapping[str, PairedTrials], name: str, comparison: ComparisonSpec
) -> dict[int, float]:
    """Return the metric by seed of the trials that may be compared with the baseline."""
    if name == comparison.baseline:
        entries = list(trials[name].values())
    else:
        entries = [variant for _, variant in paired[name].finished]
    return {entry.seed: value for entry in entries if (value := entry.value(comparison.metric)) is not None}


def _unusable_reason(
    trials: TrialsByVariant, paired: Mapping[str, PairedTrials], name: str, comparison: ComparisonSpec
) -> str:
    """Return why a cell cannot be used, or an empty string."""
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
