"""Sections on all settings of a study: whether verdicts transfer between scales, matching, and tuning."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal, NamedTuple, final

from paribus.analysis.formatting import NO_VALUE, format_bare_difference, percent, plural, table_decimals
from paribus.analysis.p_values import summarise, t_quantile
from paribus.analysis.table import Row, Section, Table
from paribus.errors import join_names
from paribus.planning.plan import Plan
from paribus.planning.settings import BEST, SAME, Setting
from paribus.planning.tuning import Candidate, VariantTuning, format_cell, pending_notes
from paribus.studies.designs import format_value
from paribus.studies.study import Study

Transfer = Literal["transfers", "reverses", "undecided"]

DRAWS: Final = 1_000
NORMAL: Final = 1.959963984540054  # the quantile that the spread of resampled means would be worth
DECIDED: Final = ("better", "worse", "equivalent")


def transfer_verdict(kinds: Sequence[str]) -> Transfer:
    """Return whether the verdict of one variant transfers between all scales.

    It transfers where every scale decides, and decides alike; it reverses where one is better and another worse.
    Anything else is undecided: an inconclusive scale does not agree, and a variant that is equivalent at one scale
    may be slightly worse at another and still equivalent there.
    """
    if {"better", "worse"} <= set(kinds):
        return "reverses"
    return "transfers" if len(set(kinds)) == 1 and kinds[0] in DECIDED else "undecided"


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b: 1 for the same order, -1 for the opposite one; ties count for neither.

    None where one side has no order at all.
    """
    agree = tied_first = tied_second = pairs = 0
    for place, (one, second_value) in enumerate(zip(first, second, strict=True)):
        for first_earlier, second_earlier in zip(first[:place], second[:place], strict=True):
            signs = _sign(one - first_earlier), _sign(second_value - second_earlier)
            agree += signs[0] * signs[1]
            tied_first += signs[0] == 0
            tied_second += signs[1] == 0
            pairs += 1
    room = (pairs - tied_first) * (pairs - tied_second)
    return agree / math.sqrt(room) if room else None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


@final
@dataclass(frozen=True, kw_only=True)
class RankAgreement:
    """The rank correlation of the variants at two scales, with its interval over seeds."""

    tau: float | None
    low: float | None
    high: float | None
    variants: int
    seeds: int

    @property
    def verdict(self) -> Literal["agree", "reverse", "undecided"]:
        if self.low is None or self.high is None:
            return "undecided"
        return "agree" if self.low > 0 else "reverse" if self.high < 0 else "undecided"


class _Scale(NamedTuple):
    differences: Sequence[Sequence[float]]  # of each variant, seed by seed
    means: Sequence[float]


def rank_agreement(
    first_scale: Mapping[str, Mapping[int, float]],
    second_scale: Mapping[str, Mapping[int, float]],
    *,
    alpha: float = 0.05,
) -> RankAgreement:
    """Compare the order of the variants by mean difference at two scales; `first[variant][seed]` is a difference.

    Each scale uses the seeds on which all its variants finished. The interval is a bootstrap over seeds, drawn for
    each scale independently: noise that one seed brings to both scales would otherwise look like agreement. A few
    values resampled spread less than their mean is uncertain, so each resampled mean is moved away from the
    observed one until it spreads as Student's t requires. Both err towards undecided.
    """
    names = [name for name in first_scale if name in second_scale]
    scales = [_scale(differences, names) for differences in (first_scale, second_scale)]
    n = min((len(scale.differences[0]) for scale in scales if scale.differences), default=0)
    if len(names) < 2 or not n:
        return RankAgreement(tau=None, low=None, high=None, variants=len(names), seeds=n)
    tau = kendall_tau(scales[0].means, scales[1].means)
    if n < 2 or tau is None or any(_alike(differences, alpha) for scale in scales for differences in scale.differences):
        return RankAgreement(tau=tau, low=None, high=None, variants=len(names), seeds=n)
    chance = random.Random(0)  # it keeps no secret, and the same records give the same interval
    resampled = [kendall_tau(*(_drawn(scale, chance, alpha) for scale in scales)) or 0.0 for _ in range(DRAWS)]
    resampled.sort()
    tail = int(alpha / 2 * DRAWS)
    return RankAgreement(tau=tau, low=resampled[tail], high=resampled[DRAWS - 1 - tail], variants=len(names), seeds=n)


def _alike(differences: Sequence[float], alpha: float) -> bool:
    """Return whether too few seeds gave exactly one difference: resampled, they would seem to be certain."""
    return summarise(differences).sd == 0 and math.ldexp(2.0, -len(differences)) > alpha


def _scale(by_variant: Mapping[str, Mapping[int, float]], names: Sequence[str]) -> _Scale:
    seeds = sorted(set.intersection(*(set(by_variant[name]) for name in names))) if names else []
    differences = [[by_variant[name][seed] for seed in seeds] for name in names]
    return _Scale(differences, [math.fsum(values) / len(values) for values in differences if values])


def _drawn(scale: _Scale, chance: random.Random, alpha: float) -> list[float]:
    """Return the mean of each variant over resampled seeds, the same for all variants."""
    n = len(scale.differences[0])
    wider = math.sqrt(n / (n - 1)) * -t_quantile(alpha / 2, n - 1) / NORMAL
    places = chance.choices(range(n), k=n)
    return [
        mean + wider * (math.fsum(values[place] for place in places) / n - mean)
        for values, mean in zip(scale.differences, scale.means, strict=True)
    ]


Records = Mapping[str, Mapping[str, Any]]
FAR: Final = 0.05  # of a budget that is missed
MOST: Final = 12  # values that are told one by one


def transfer_sections(table: Table, settings: Sequence[Setting]) -> Iterator[Section]:
    """Yield for each kind of matching how verdicts and order transfer between scales."""
    ways: dict[str, dict[str, Table]] = {}
    tables = {setting_table.setting: setting_table for setting_table in table.settings}
    for setting in settings:
        if setting.scale and setting.name in tables:
            way = setting.name.removeprefix(setting.scale).removeprefix(", ")
            ways.setdefault(way, {})[setting.scale] = tables[setting.name]
    comparable = {way: scales for way, scales in ways.items() if len(scales) > 1}
    if not comparable:
        return
    lines: list[str] = []
    documents: list[dict[str, Any]] = []
    for way, scales in comparable.items():
        prefix = f"{way}: " if way else ""
        orders = () if settings[0].study.looks else _orders(scales, table.alpha)
        for line, document in (*_variants(scales), *orders):
            lines.append(prefix + line)
            documents.append({**({"matching": way} if way else {}), **document})
    names = join_names(next(iter(comparable.values())))
    yield Section(
        key="transfer",
        title=f"across the scales {names}",
        lines=(*lines, *_how(table, settings[0].study)),
        document={"comparisons": documents},
    )


def _how(table: Table, study: Study) -> Iterator[str]:
    yield (
        "A verdict transfers if it is the same decided one at every scale; it reverses if it is better at one and "
        "worse at another; else it is undecided, which is not a failure to transfer. This covers these scales only."
    )
    if study.looks:
        yield "Scales of a study that stops early are not compared by the order of variants: means lean away from 0."
    elif len(table.rows) > 1:
        yield (
            "Kendall's tau is 1 for the same order of the variants at two scales, -1 for the reverse order. Its "
            f"interval ({percent(1 - table.alpha)}, each by itself) is a bootstrap over seeds, "
            "widened to Student's t."
        )


def _variants(scales: Mapping[str, Table]) -> Iterator[tuple[str, dict[str, Any]]]:
    names = dict.fromkeys(row.variant for table in scales.values() for row in table.rows)
    for name in names:
        rows = {scale: _row(table, name) for scale, table in scales.items()}
        kinds = [row.kind if row is not None else "missing" for row in rows.values()]
        transfer = transfer_verdict(kinds)
        differences = {scale: _shown(scales[scale], row) for scale, row in rows.items()}
        if len(set(kinds)) == 1 and None not in rows.values():
            figures = f"{kinds[0]} at {join_names(f'{scale} ({text})' for scale, text in differences.items())}"
        else:
            pairs = zip(kinds, differences.items(), strict=True)
            figures = join_names(f"{kind} at {scale} ({text})" for kind, (scale, text) in pairs)
        verdicts = dict(zip(rows, kinds, strict=True))
        yield f"{name} {_said(transfer)}: {figures}", {"variant": name, "transfer": transfer, "verdicts": verdicts}


def _said(transfer: str) -> str:
    return "is undecided" if transfer == "undecided" else transfer


def _row(table: Table, variant: str) -> Row | None:
    return next((row for row in table.rows if row.variant == variant), None)


def _shown(table: Table, row: Row | None) -> str:
    if row is None:
        return "no trial"
    return format_bare_difference(row, table_decimals(table)[row.variant]) or NO_VALUE


def _orders(scales: Mapping[str, Table], alpha: float) -> Iterator[tuple[str, dict[str, Any]]]:
    if max(len(table.rows) for table in scales.values()) < 2:
        return  # one variant has no order
    for (one, first), (second_name, second) in combinations(scales.items(), 2):
        agreement = rank_agreement(first.differences, second.differences, alpha=alpha)
        yield (
            _order(one, second_name, agreement),
            {"scales": [one, second_name], "verdict": agreement.verdict, **_plain(agreement)},
        )


def _plain(agreement: RankAgreement) -> dict[str, Any]:
    return {key: value for key, value in vars(agreement).items() if value is None or math.isfinite(value)}


def _order(one: str, second_name: str, agreement: RankAgreement) -> str:
    between = f"order of {plural(agreement.variants, 'variant')}, {one} to {second_name}"
    if agreement.tau is None:
        return f"{between}: undecided, as an order needs two variants that differ"
    tau = f"Kendall's tau {agreement.tau:+.2f}"
    if agreement.low is None or agreement.high is None:
        return f"{between}: undecided: {tau} of {plural(agreement.seeds, 'seed')}, too few for an interval"
    tau = f"{tau} [{agreement.low:+.2f}, {agreement.high:+.2f}], n = {agreement.seeds}"
    words = {
        "agree": "agrees",
        "reverse": "reverses",
        "undecided": "is undecided, as other seeds may give another order",
    }
    return f"{between} {words[agreement.verdict]}: {tau}"


# -------------------------------------------------------------------------------------------------------- matching
def matching_note(setting: Setting) -> str:
    """Describe by what every variant was matched, and the residuals; empty where none was."""
    match = setting.study.match
    if match is None or not setting.matched:
        return ""
    texts = (
        f"{name} {match_result.value:g} ({match_result.residual_text})"
        for name, match_result in setting.matched.items()
    )
    machines = {
        match_result.timing.machine: match_result.timing.when
        for match_result in setting.matched.values()
        if match_result.timing
    }
    measured = (
        f"; measured in turns on {join_names(f'{name}, {when}' for name, when in machines.items())}" if machines else ""
    )
    return f"Matched on {match.on} by {match.by}: {join_names(texts, MOST)}{measured}."


def matched_option_notes(setting: Setting) -> dict[str, str]:
    """Return the same for each variant, for its certificate."""
    match = setting.study.match
    if match is None:
        return {}
    return {name: f"matched on {match.on} by {match.by}={match_result.value:g}: {match_result.residual_text}"
            for name, match_result in setting.matched.items()}  # fmt: skip


def mismatch_note(setting: Setting) -> str:
    """Describe the variants that are more than 5 % off the baseline's budget, and changes since the match."""
    match = setting.study.match
    since = dict.fromkeys(
        line for match_result in setting.matched.values() if match_result.timing for line in match_result.timing.changes
    )
    changed = f"Since the steps were timed for the match, {join_names(since)}." if since else ""
    far = [
        f"{name} ({match_result.residual:+.1%})"
        for name, match_result in setting.matched.items()
        if abs(match_result.residual) > FAR
    ]
    if match is None or not far:
        return changed
    names = join_names(far, MOST)
    text = f"No value of {match.by} matches the baseline's {match.on}, so these variants are not matched: {names}."
    return f"{text} {changed}".rstrip()


# ---------------------------------------------------------------------------------------------------------- tuning
def tuning_sections(plan: Plan, records: Records) -> Iterator[Section]:
    """Yield the values that were tried with each variant, the choice, and the cost; nothing without tuning."""
    tune = plan.study.tune
    if tune is None:
        return
    whose = "its own" if len(tune.seeds) == 1 else "their own"
    seeds = f"{plural(len(tune.seeds), 'seed')} of {whose} ({join_names(tune.seeds, 4)})"
    cost = _cost(plan, records)
    missing = tuple(pending_notes(plan.tuned))
    yield Section(
        key="tuning",
        title=f"tuned: {join_names(tune.values)}",
        lines=(
            f"`{SAME}`: every variant with its own values; `{BEST}`: each with the values chosen here.",
            *(_chosen(variant_tuning, plan) for variant_tuning in plan.tuned),
            *missing,
            _took(cost, seeds),
        ),
        document={
            "seeds": list(tune.seeds),
            **cost,
            "choices": [_choice(variant_tuning) for variant_tuning in plan.tuned],
        },
        ok=plan.is_complete and not any(tried.failed for tuned in plan.tuned for tried in tuned.candidates),
    )


def _chosen(tuned: VariantTuning, plan: Plan) -> str:
    """`attention=mqa: optimizer.lr=0.002 is its best (2.31; 0.001: 2.35, 0.004: diverged 1/2)`."""
    setting_name = plan.setting(tuned.setting).label
    who = f"{tuned.variant}, {setting_name}" if setting_name else tuned.variant
    alternatives = join_names((_tried(tried, tuned.better) for tried in tuned.candidates), MOST)
    if tuned.best is None:
        return f"{who}: not chosen yet ({alternatives})"
    chosen, is_default = tuned.candidates[tuned.best], tuned.best == tuned.default
    if chosen.mean is None:
        return f"{who}: default {format_cell(chosen.cell)}, as every value diverged or failed ({alternatives})"
    edge = f"; best at the edge of the tried values: {join_names(tuned.edge_keys)}" if tuned.edge_keys else ""
    return f"{who}: best at {format_cell(chosen.cell)}{', the default' if is_default else ''} ({alternatives}){edge}"


def _tried(tried: Candidate, better: str) -> str:
    value = " ".join(format_value(value_part) for _, value_part in tried.cell)
    if tried.pending:
        return f"{value}: {tried.pending} of {len(tried.trials)} without a record"
    if tried.failed:
        return f"{value}: failed {tried.failed}/{len(tried.trials)}, not eligible"
    if tried.mean is None:
        return f"{value}: diverged {tried.diverged}/{len(tried.trials)}"
    return f"{value}: {tried.mean:.4g}"


def _cost(plan: Plan, records: Records) -> dict[str, Any]:
    """Return the cost of the tuning, over all of its trials that have a record."""
    trials = {trial.identity for tuned in plan.tuned for trial in tuned.trials}
    records_found = [records[identity] for identity in trials if identity in records]
    flops = [record["result"].get("total_flops") for record in records_found]
    seconds = [record["provenance"].get("training_seconds") or 0.0 for record in records_found]
    whole = math.fsum(amount for amount in flops if amount) if all(amount is not None for amount in flops) else None
    return {"trials": len(trials), "records": len(records_found), "total_flops": whole, "seconds": math.fsum(seconds)}


def _took(cost: Mapping[str, Any], seeds: str) -> str:
    flops = "" if not cost["total_flops"] else f", {cost['total_flops']:.3g} FLOPs"
    prefix = "" if cost["records"] == cost["trials"] else f"{cost['records']} of "
    took = f"{prefix}{plural(cost['trials'], 'trial')} on {seeds}{flops}, {cost['seconds']:.0f} s of training"
    return f"Tuning took {took}; no verdict and no cost in a table includes these trials."


def _choice(tuned: VariantTuning) -> dict[str, Any]:
    return {
        "setting": tuned.setting,
        "variant": tuned.variant,
        "chosen": None if tuned.chosen is None else dict(tuned.chosen),
        "default": dict(tuned.candidates[tuned.default].cell),
        "edges": list(tuned.edge_keys),
        "tried": [
            {
                "values": dict(tried.cell),
                "mean": tried.mean,
                "diverged": tried.diverged,
                "failed": tried.failed,
                "pending": tried.pending,
            }
            for tried in tuned.candidates
        ],
    }
