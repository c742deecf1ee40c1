"""Section on the tuned values of each variant, and on what the tuning cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from paribus.analysis.formatting import MAX_VALUES, percent, plural
from paribus.analysis.sensitivity import Sensitivity, candidates_within_noise, sensitivities
from paribus.analysis.table import Section
from paribus.errors import join_names
from paribus.planning.plan import Plan
from paribus.planning.settings import BEST, SAME
from paribus.planning.tuning import Candidate, VariantTuning, format_cell, pending_notes
from paribus.studies.designs import format_value

ALPHA: Final = 0.05  # of the intervals of sensitivities, each by itself


def tuning_sections(plan: Plan, records: Mapping[str, Mapping[str, Any]]) -> Iterator[Section]:
    """Yield a section on the tuned values of each variant and the cost of tuning; nothing without tuning."""
    tune = plan.study.tune
    if tune is None:
        return
    owner = "its own" if len(tune.seeds) == 1 else "their own"
    seeds = f"{plural(len(tune.seeds), 'seed')} of {owner} ({join_names(tune.seeds, 4)})"
    cost = _cost(plan, records)
    pending = tuple(pending_notes(plan.tuned))
    sensitive = sensitivities(plan.tuned, tune.values, ALPHA)
    yield Section(
        key="tuning",
        title=f"tuned: {join_names(tune.values)}",
        lines=(
            f"`{SAME}`: every variant with its own values; `{BEST}`: each with the values chosen here.",
            *(_choice_text(variant_tuning, plan) for variant_tuning in plan.tuned),
            *_sensitivity_lines(sensitive, plan),
            *pending,
            _cost_text(cost, seeds),
        ),
        document={
            "seeds": list(tune.seeds),
            **cost,
            "choices": [_choice_json(variant_tuning) for variant_tuning in plan.tuned],
            "sensitivity": [it.to_json() for it in sensitive],
        },
        ok=plan.is_complete and not any(candidate.failed for tuned in plan.tuned for candidate in tuned.candidates),
    )


def _choice_text(tuned: VariantTuning, plan: Plan) -> str:
    """`attention=mqa: optimizer.lr=0.002 is its best (2.31; 0.001: 2.35, 0.004: diverged 1/2)`."""
    setting_name = plan.setting(tuned.setting).label
    label = f"{tuned.variant}, {setting_name}" if setting_name else tuned.variant
    alternatives = join_names((_candidate_text(candidate) for candidate in tuned.candidates), MAX_VALUES)
    if tuned.best is None:
        return f"{label}: not chosen yet ({alternatives})"
    chosen, is_default = tuned.candidates[tuned.best], tuned.best == tuned.default
    if chosen.mean is None:
        return f"{label}: default {format_cell(chosen.cell)}, as every value diverged or failed ({alternatives})"
    edge = f"; best at the edge of the tried values: {join_names(tuned.edge_keys)}" if tuned.edge_keys else ""
    ties = join_names((_values_text(candidate) for candidate in candidates_within_noise(tuned, ALPHA)), MAX_VALUES)
    ties = f", not told apart from {ties}" if ties else ""
    default = ", the default" if is_default else ""
    return f"{label}: best at {format_cell(chosen.cell)}{default}{ties} ({alternatives}){edge}"


def _sensitivity_lines(sensitive: Sequence[Sensitivity], plan: Plan) -> Iterator[str]:
    """Yield what a wrong choice costs each variant, and what that is."""
    if not sensitive or plan.study.tune is None:
        return
    for item in sensitive:
        label = ", ".join(filter(None, (item.variant, plan.setting(item.setting).label)))
        text = f"{item.value:.3g}{_ends(item.low, item.high)}"
        if item.against_baseline is not None:
            difference, low, high = item.against_baseline
            text += f", {difference:+.3g}{_ends(low, high)} against the baseline"
        yield f"{label}: sensitivity to {next(iter(plan.study.tune.values))} {text}"
    yield (
        "Sensitivity is how much worse the metric is on average over the tried values than at the best of them, with "
        f"an interval of {percent(1 - ALPHA)} over the seeds of the tuning."
    )


def _ends(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.3g}, {high:.3g}]"


def _values_text(candidate: Candidate) -> str:
    return " ".join(format_value(value) for _, value in candidate.cell)


def _candidate_text(candidate: Candidate) -> str:
    values = _values_text(candidate)
    if candidate.pending:
        return f"{values}: {candidate.pending} of {len(candidate.trials)} without a record"
    if candidate.failed:
        return f"{values}: failed {candidate.failed}/{len(candidate.trials)}, not eligible"
    if candidate.mean is None:
        return f"{values}: diverged {candidate.diverged}/{len(candidate.trials)}"
    return f"{values}: {candidate.mean:.4g}"


def _cost(plan: Plan, records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the cost of all trials of the tuning that have a record."""
    trials = {trial.identity for tuned in plan.tuned for trial in tuned.trials}
    tuning_records = [records[identity] for identity in trials if identity in records]
    flops = [record["result"].get("total_flops") for record in tuning_records]
    seconds = [record["provenance"].get("training_seconds") or 0.0 for record in tuning_records]
    total = math.fsum(amount for amount in flops if amount) if all(amount is not None for amount in flops) else None
    return {"trials": len(trials), "records": len(tuning_records), "total_flops": total, "seconds": math.fsum(seconds)}


def _cost_text(cost: Mapping[str, Any], seeds: str) -> str:
    flops = "" if not cost["total_flops"] else f", {cost['total_flops']:.3g} FLOPs"
    prefix = "" if cost["records"] == cost["trials"] else f"{cost['records']} of "
    text = f"{prefix}{plural(cost['trials'], 'trial')} on {seeds}{flops}, {cost['seconds']:.0f} s of training"
    return f"Tuning took {text}; no verdict and no cost in a table includes these trials."


def _choice_json(tuned: VariantTuning) -> dict[str, Any]:
    return {
        "setting": tuned.setting,
        "variant": tuned.variant,
        "chosen": None if tuned.chosen is None else dict(tuned.chosen),
        "default": dict(tuned.candidates[tuned.default].cell),
        "edges": list(tuned.edge_keys),
        "within_noise": [dict(candidate.cell) for candidate in candidates_within_noise(tuned, ALPHA)],
        "tried": [
            {
                "values": dict(candidate.cell),
                "mean": candidate.mean,
                "diverged": candidate.diverged,
                "failed": candidate.failed,
                "pending": candidate.pending,
            }
            for candidate in tuned.candidates
        ],
    }
