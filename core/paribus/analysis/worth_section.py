"""Section on what each variant is worth in compute, at each setting, and its trend over the scales of a study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

from paribus.analysis.costs import SPEEDS
from paribus.analysis.formatting import format_number, plural, table_decimals
from paribus.analysis.table import Row, Section, Table
from paribus.analysis.worth import Multiplier, Trend, multiplier, trend
from paribus.errors import join_names
from paribus.planning.last_evaluations import with_last_mean
from paribus.planning.plan import Plan
from paribus.planning.worth import OWN, BaselineCurve
from paribus.specs.program_spec import PROGRAM
from paribus.storage.atomic import parse_number
from paribus.studies.study import Study

STEPS, FLOPS, SECONDS = "steps", "FLOPs", "seconds"
UNITS: Final[Mapping[str, str]] = {"flops": FLOPS, "seconds": SECONDS}

Records = Mapping[str, Mapping[str, Any]]
Budgets = Mapping[float, Mapping[int, float]]  # metric of the baseline, by multiple of its budget and seed


@final
class Worth(NamedTuple):
    """What a variant is worth in each unit; none if the baseline does not improve with its budget."""

    row: Row
    units: Mapping[str, Multiplier]
    dropped: Sequence[float] = ()  # budgets without a metric of all seeds


def worth_sections(plan: Plan, table: Table, records: Records) -> Iterator[Section]:
    """Yield a section on what each variant is worth in compute; nothing in a study without `worth`."""
    if plan.study.worth is None:
        return
    curves = {curve.setting: curve for curve in plan.curves}
    lines: list[str] = []
    documents: list[dict[str, Any]] = []
    missing = 0
    found: list[tuple[Table, list[Worth]]] = []
    for part in table.settings:
        if part.setting not in curves:
            missing += 1
            continue
        budgets, absent = baseline_values(curves[part.setting], part, records)
        missing += absent
        answers = [_worth(row, part, budgets, plan.study) for row in part.rows if row.difference is not None]
        found.append((part, answers))
        prefix = f"{part.setting}: " if part.setting else ""
        texts = [_flat_text(plan.study)] if _is_flat(budgets) else map(_text, answers)
        lines += [f"{prefix}{line}" for line in (_curve_text(part, budgets), *texts)]
        documents.append(_document(part, budgets, answers))
    trends = {name: value for name in _names(found) if (value := _trend(name, found)) is not None}
    pending = (f"not finished: {plural(missing, 'trial')} of the baseline at other budgets",) if missing else ()
    yield Section(
        key="worth",
        title="worth in compute",
        lines=(
            *lines,
            *(f"{name}: {value.text}" for name, value in trends.items()),
            *pending,
            *_caption(plan.study, table),
        ),
        document={
            "settings": documents,
            "trends": [{"variant": name, **vars(value)} for name, value in trends.items()],
            "missing": missing,
        },
        ok=not missing,
    )


def baseline_values(curve: BaselineCurve, table: Table, records: Records) -> tuple[dict[float, dict[int, float]], int]:
    """Return the metric of the baseline by budget and seed, and the number of trials without one."""
    values: dict[float, dict[int, float]] = {}
    missing = 0
    for factor, trials in curve.trials.items():
        values[factor] = {}
        for trial in trials:
            record = records.get(trial.identity)
            if record is not None:
                record = with_last_mean(record, table.metric, table.last)
            value = None if record is None else record["result"]["metrics"].get(table.metric)
            is_measured = trial.stage == table.stage or not table.stage
            missing += record is None
            if value is not None and is_measured and record is not None and record["result"]["state"] == "done":
                values[factor][trial.seed] = parse_number(value)
    return values, missing


def _worth(row: Row, table: Table, budgets: Budgets, study: Study) -> Worth:
    """Return what a variant is worth: in the unit of the budget, and in others as it takes more or less of them."""
    level = row.level if row.level is not None else 1 - table.alpha
    seeds = table.values[row.variant].keys() & budgets[OWN].keys()
    complete = {factor: values for factor, values in budgets.items() if seeds <= values.keys()}
    dropped = [factor for factor in budgets if factor not in complete]
    own = multiplier(complete, table.values[row.variant], better=table.better, alpha=1 - level)
    if own is None:
        return Worth(row, {}, dropped)
    unit = _unit(study)
    units = {unit: own}
    flops, speed = row.costs["total_flops"], row.costs["tokens_per_second"]
    if unit not in (FLOPS, SECONDS) and flops.ratio:
        units[FLOPS] = own.scaled(1 / flops.ratio)
    if unit == FLOPS and speed.ratio:
        per_token = row.costs["flops_per_token"].ratio or 1.0
        spread = None if speed.low is None or speed.high is None else (speed.low * per_token, speed.high * per_token)
        units[SECONDS] = own.scaled(speed.ratio * per_token, spread)
    elif unit != SECONDS and speed.ratio:
        spread = None if speed.low is None or speed.high is None else (speed.low, speed.high)
        units[SECONDS] = own.scaled(speed.ratio, spread)
    elif unit != SECONDS and row.costs["seconds"].ratio:
        units[SECONDS] = own.scaled(1 / row.costs["seconds"].ratio)
    return Worth(row, units, dropped)


def _unit(study: Study) -> str:
    """Return the unit of the budget, or the option of a program's."""
    assert study.worth is not None
    budget = study.stages[-1].budget or study.budget
    return study.worth.option or next((UNITS.get(key, STEPS) for key in budget), STEPS)


def _text(worth: Worth) -> str:
    dropped = f"without a metric of all seeds: {join_names(f'{it:g}' for it in worth.dropped)} of the budget"
    if not worth.units:
        reason = "two seeds and budgets are needed, and a baseline that improves from each budget to the next"
        return f"{worth.row.variant}: unknown: {dropped if worth.dropped else reason}"
    is_rough = any(worth.row.costs[name].rough for name in SPEEDS)
    texts = ", ".join(f"{'~' * (is_rough and unit == SECONDS)}{it.text} in {unit}" for unit, it in worth.units.items())
    outliers = f" (outlier: seed {join_names(worth.row.outliers)}, which its interval does not allow for)"
    notes = f"{outliers if worth.row.outliers else ''}{f'; {dropped}' if worth.dropped else ''}"
    return f"{worth.row.variant}: {texts}{notes}"


def _curve_text(table: Table, budgets: Budgets) -> str:
    decimals = table_decimals(table).get("mean", 3)
    means = {factor: sum(values.values()) / len(values) for factor, values in budgets.items() if values}
    points = (f"{format_number(mean, decimals)} at {factor:g}" for factor, mean in means.items())
    return f"baseline: {join_names(points)}"


def _is_flat(budgets: Budgets) -> bool:
    """Return whether the baseline has the same value at all budgets, for each seed."""
    measured = [values for values in budgets.values() if values]
    return len(measured) > 1 and all(values == measured[0] for values in measured)


def _flat_text(study: Study) -> str:
    option = f"; does the program read `{study.worth.option}`?" if study.worth and study.worth.option else ""
    return f"unknown: the budget has no effect, as the baseline has equal values at all budgets{option}"


def _document(table: Table, budgets: Budgets, answers: Sequence[Worth]) -> dict[str, Any]:
    return {
        **({"setting": table.setting} if table.setting else {}),
        "baseline": [
            {"budget": factor, "values": [{"seed": seed, "value": value} for seed, value in values.items()]}
            for factor, values in budgets.items()
        ],
        "variants": [
            {"variant": worth.row.variant, "units": {unit: it.to_json() for unit, it in worth.units.items()}}
            for worth in answers
        ],
    }


def _names(found: Sequence[tuple[Table, Sequence[Worth]]]) -> list[str]:
    return list(dict.fromkeys(worth.row.variant for _, answers in found for worth in answers))


def _trend(name: str, found: Sequence[tuple[Table, Sequence[Worth]]]) -> Trend | None:
    """Return the trend of one variant over the sizes of the baseline, in the unit of the budget."""
    points = [
        (table.baseline.costs["parameters"].value, next(iter(worth.units.values())))
        for table, answers in found
        for worth in answers
        if worth.row.variant == name and worth.units
    ]
    sizes = [size for size, _ in points if size]
    return trend(sizes, [it for _, it in points]) if len(sizes) == len(points) else None


def _caption(study: Study, table: Table) -> Iterator[str]:
    yield (
        f"The baseline's budget for the same mean {table.metric}, as a multiple of the variant's: above 1, the variant "
        "saves compute. Between two budgets, each with its own schedule, the metric is interpolated on the logarithm. "
        "An interval holds what Student's t over seeds does not reject, at the level of the verdict."
    )
    if PROGRAM not in study.base.data and _unit(study) != SECONDS:
        yield "In other units: divided by what the variant takes of them, relative to the baseline."
