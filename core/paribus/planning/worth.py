"""Trials of the baseline at other budgets than that of a study, which say what a variant is worth in compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from paribus.errors import Problem, SpecError
from paribus.planning.match_budget import resolve_with_budget
from paribus.planning.settings import Setting
from paribus.planning.tuning import VariantTuning
from paribus.planning.variants import Fingerprint, build_trials
from paribus.registry import Index
from paribus.specs.tree import get_path
from paribus.storage.store import Trial
from paribus.studies.budgets import WHOLE, Budget, FlopsPerStep
from paribus.studies.designs import BASELINE, Change, Variant
from paribus.studies.study import Study

OWN: Final = 1.0  # the budget of the study, at which the baseline is trained anyway


@final
@dataclass(frozen=True)
class BaselineCurve:
    """Trials of the baseline of a setting, by the multiple of its budget; of all stages."""

    setting: str
    trials: Mapping[float, tuple[Trial, ...]]


def baseline_curves(
    settings: Sequence[Setting],
    tunings: Sequence[VariantTuning],
    index: Index,
    fingerprint: Fingerprint,
    flops_per_step: FlopsPerStep | None,
) -> tuple[BaselineCurve, ...]:
    """Return the curve of each setting's baseline, with its tuned values; of none that still has to be tuned."""
    curves: list[BaselineCurve] = []
    untuned = Setting(study=settings[0].study)
    for setting in settings:
        changes: Sequence[Change] | None = ()
        if setting.tuned:
            own = (it for it in tunings if (it.setting, it.variant) == (untuned.name, BASELINE))
            changes = next(own).chosen
        else:
            untuned = setting
        if setting.study.worth is not None and changes is not None:
            curves.append(_baseline_curve(setting, changes, index, fingerprint, flops_per_step))
    return tuple(curves)


def _baseline_curve(
    setting: Setting,
    changes: Sequence[Change],
    index: Index,
    fingerprint: Fingerprint,
    flops_per_step: FlopsPerStep | None,
) -> BaselineCurve:
    study = setting.study
    assert study.worth is not None
    trials: dict[float, tuple[Trial, ...]] = {}
    for factor in study.worth.factors:
        if factor == OWN:
            trials[factor] = tuple(
                trial for stage in study.stages for trial in setting.trials.get((BASELINE, stage.name), ())
            )
            continue
        scaled, option = _scaled(study, factor), _scaled_option(study, factor)
        actual = _actual(study, scaled, option) or factor
        if actual in trials or actual == OWN:
            message = f"{factor:g} of the budget is, in whole numbers, the same as another multiple"
            location, valid = study.location(("worth",)), "multiples further apart, or a larger budget"
            raise SpecError(
                Problem(code="duplicate-budget", path="worth", location=location, message=message, valid=valid)
            )
        specs = resolve_with_budget(scaled, Variant(BASELINE), index, [*changes, *option], flops_per_step)
        name = ", ".join(filter(None, (setting.name, f"budget x {actual:g}")))
        built = build_trials(scaled, [Variant(BASELINE)], {BASELINE: specs}, {}, index, fingerprint)
        trials[actual] = tuple(replace(trial, setting=name) for trial in built)
    return BaselineCurve(setting.name, dict(sorted(trials.items())))


def _actual(study: Study, scaled: Study, option: Sequence[Change]) -> float:
    """Return the multiple of the budget after rounding to whole numbers; 0 without a budget in the last stage."""
    if option:
        [(key, value)] = option
        return float(value / get_path(study.base.data, key))
    own, new = (it.stages[-1].budget or it.budget for it in (study, scaled))
    return next((new[unit] / own[unit] for unit in own), 0.0)


def _scaled(study: Study, factor: float) -> Study:
    """Return a study with a multiple of its budget, at every stage."""
    stages = tuple(replace(stage, budget=_scaled_budget(stage.budget, factor)) for stage in study.stages)
    return replace(study, budget=_scaled_budget(study.budget, factor), stages=stages)


def _scaled_budget(budget: Budget, factor: float) -> Budget:
    return {
        unit: max(1, round(amount * factor)) if unit in WHOLE else amount * factor for unit, amount in budget.items()
    }


def _scaled_option(study: Study, factor: float) -> list[Change]:
    """Return the option of a program's budget with a multiple of its value, a whole number of a whole number."""
    assert study.worth is not None
    if not study.worth.option:
        return []
    value = get_path(study.base.data, study.worth.option)
    return [(study.worth.option, max(1, round(value * factor)) if isinstance(value, int) else value * factor)]
