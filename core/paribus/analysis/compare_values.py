"""Verdicts on numbers that exist already: the metric of each variant and seed, without records of trials."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from paribus.analysis.captions import (
    assumption,
    correction,
    holding,
    levels,
    outlier_warning,
    pairing_gain,
    test_on_differences,
)
from paribus.analysis.costs import INFERENCE_LABELS, LABELS, Cost
from paribus.analysis.formatting import MAX_NAMES, percent, plural, span
from paribus.analysis.p_values import variance_reduction
from paribus.analysis.table import Row, Table, verdict_fields
from paribus.analysis.value_rows import ValueSource, ValueTable, read_values
from paribus.analysis.verdicts import Better, PairedDifferences, Verdict, decide
from paribus.errors import Problem, SpecError, closest_match, join_names
from paribus.studies.metric_direction import direction, direction_message

UNCERTIFIED: Final = (
    "Not certified: these are numbers only. Whether the trials of a pair had the same data, initial weights, budget "
    "and environment is not known."
)
_NO_COSTS: Final = dict.fromkeys([*LABELS, *INFERENCE_LABELS], Cost(value=None, ratio=None))


def verdict(
    baseline: Sequence[float],
    variant: Sequence[float],
    *,
    better: Better = "lower",
    margin: float | None = None,
    alpha: float = 0.05,
    open_ended: bool = False,
) -> Verdict:
    """Return the verdict on the values of a variant, paired with those of the baseline by their order.

    `paribus.verdict([2.41, 2.44, 2.40], [2.38, 2.40, 2.37], margin=0.01).text`

    A value that is not finite is a diverged trial. Outliers are named by their index in the lists, from 0. With
    `open_ended`, the verdict holds at every number of values, so more may be added after it was seen; its interval is
    wider. Several variants are compared by `compare_values`, which corrects their verdicts together.
    """
    if len(baseline) != len(variant):
        message = f"`baseline` has {len(baseline)} values, and `variant` has {len(variant)}"
        raise SpecError(Problem(code="unpaired", message=message, valid="a value of both for each seed"))
    sides = ({seed: float(value) for seed, value in enumerate(side)} for side in (baseline, variant))
    _check(better, margin, alpha)
    paired = replace(_differences(*sides, open_ended=open_ended), label="index")
    return decide({"variant": paired}, better=better, margin=margin, alpha=alpha)["variant"]


def compare_values(
    values: ValueSource,
    *,
    metric: str = "",
    baseline: str = "",
    better: Better | None = None,
    margin: float | None = None,
    alpha: float = 0.05,
    open_ended: bool = False,
) -> Table:
    """Return the verdict table of numbers, as `paribus.compare_values` describes."""
    table = read_values(values, metric)
    better = better or direction(table.metric)
    if better is None:
        raise _error("missing", direction_message(table.metric), "`better` (`--better`): higher, or lower")
    _check(better, margin, alpha)
    base_name = _baseline(table, baseline)
    variants = {name: by_seed for name, by_seed in table.values.items() if name != base_name}
    if not variants:
        raise _error("no-variant", f"{table.name} has one variant, `{base_name}`", "two or more")
    base_values = table.values[base_name]
    differences = {
        name: _differences(base_values, by_seed, open_ended=open_ended) for name, by_seed in variants.items()
    }
    verdicts = decide(differences, better=better, margin=margin, alpha=alpha)
    rows = tuple(_row(name, table.values[base_name], by_seed, verdicts[name]) for name, by_seed in variants.items())
    return Table(
        study=table.name,
        metric=table.metric,
        better=better,
        margin=margin,
        alpha=alpha,
        seeds=tuple(sorted({seed for by_seed in table.values.values() for seed in by_seed})),
        baseline=_baseline_row(base_name, table.values[base_name]),
        rows=rows,
        correction=correction(rows),
        caption=tuple(_caption(base_name, rows, margin, alpha, open_ended=open_ended)),
        open_ended=open_ended,
        warnings=(UNCERTIFIED, *outlier_warning(rows)),
        notes=tuple(_unpaired(table.values[base_name], base_name, variants)),
        certificates={},
        differences={
            name: dict(zip(pairs.seeds, pairs.differences, strict=True)) for name, pairs in differences.items()
        },
        values={name: _finished(by_seed) for name, by_seed in table.values.items()},
    )


def _check(better: str, margin: float | None, alpha: float) -> None:
    """Raise an error for options that no comparison can have."""
    if better not in ("lower", "higher"):
        raise _error("bad-value", f"`better` is {better!r}", "lower, or higher")
    if margin is not None and not 0 < margin < math.inf:
        raise _error("out-of-range", f"`margin` is {margin:g}", "a number above 0, or none")
    if not 0 < alpha < 1:
        raise _error("out-of-range", f"`alpha` is {alpha:g}", "a number between 0 and 1, such as 0.05")


def _error(code: str, message: str, valid: str, suggestion: str = "") -> SpecError:
    return SpecError(Problem(code=code, message=message, valid=valid, suggestion=suggestion))


def _baseline(table: ValueTable, name: str) -> str:
    if not name:
        return "baseline" if "baseline" in table.values else next(iter(table.values))
    if name not in table.values:
        message = f"{table.name} has no variant `{name}`"
        suggestion = closest_match(name, list(table.values)) or ""
        raise _error("unknown-variant", message, join_names(table.values), suggestion)
    return name


def _finished(by_seed: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in sorted(by_seed.items()) if math.isfinite(value)}


def _paired(baseline: Mapping[int, float], variant: Mapping[int, float]) -> list[int]:
    """Return the seeds that both sides finished."""
    return [seed for seed in _finished(variant) if seed in _finished(baseline)]


def _differences(baseline: Mapping[int, float], variant: Mapping[int, float], *, open_ended: bool) -> PairedDifferences:
    seeds = _paired(baseline, variant)
    return PairedDifferences(
        differences=tuple(variant[seed] - baseline[seed] for seed in seeds),
        seeds=tuple(seeds),
        diverged=len(variant) - len(_finished(variant)),
        baseline_diverged=len(baseline) - len(_finished(baseline)),
        planned=len({*baseline, *variant}),
        open_ended=open_ended,
    )


def _row(name: str, baseline: Mapping[int, float], variant: Mapping[int, float], verdict: Verdict) -> Row:
    seeds = _paired(baseline, variant)
    sides = [[side[seed] for seed in seeds] for side in (baseline, variant)]
    finished = _finished(variant)
    return Row(
        **verdict_fields(verdict),
        variant=name,
        n=len(seeds),
        planned=len(variant),
        done=len(finished),
        diverged=len(variant) - len(finished),
        mean=fmean(sides[1] or finished.values()) if finished else None,
        variance_reduction=variance_reduction(*sides),
        costs=_NO_COSTS,
    )


def _baseline_row(name: str, values: Mapping[int, float]) -> Row:
    finished = _finished(values)
    return Row(
        variant=name,
        kind="baseline",
        verdict="baseline",
        n=len(finished),
        planned=len(values),
        done=len(finished),
        diverged=len(values) - len(finished),
        mean=fmean(finished.values()) if finished else None,
        costs=_NO_COSTS,
    )


def _caption(
    baseline: str, rows: Sequence[Row], margin: float | None, alpha: float, *, open_ended: bool
) -> Iterator[str]:
    equivalence = "" if margin is None else f"; a difference below {margin:g} either way counts as equivalent"
    yield f"A difference is variant - {baseline} on the same seed{equivalence}."
    level_text = levels(rows)
    yield (
        f"All verdicts together {holding(rows)} with {percent(1 - alpha)} confidence"
        f"{test_on_differences(open_ended=open_ended)}, "
        f"{correction(rows)}{f'; {level_text}' if level_text else ''}."
    )
    yield f"They generalise over what the seeds changed (n = {span([row.n for row in rows])}), and not beyond."
    yield from assumption(rows)
    yield from pairing_gain(rows)


def _unpaired(baseline: Mapping[int, float], name: str, variants: Mapping[str, Mapping[int, float]]) -> Iterator[str]:
    """Yield the seeds that only one side of a comparison has."""
    for variant, by_seed in variants.items():
        sides = [(sorted({*by_seed} - {*baseline}), variant), (sorted({*baseline} - {*by_seed}), name)]
        texts = [f"seed {join_names(map(str, seeds), MAX_NAMES)} of {side}" for seeds, side in sides if seeds]
        if texts:
            common = plural(len({*baseline} & {*by_seed}), "common seed")
            yield f"{variant}: {common}; unpaired: {join_names(texts)}"
